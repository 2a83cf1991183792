"""The list: cursor, window, marks, filter, order, and what each repaints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from textual.app import App, ComposeResult

from shardyard_tui.theme import LOOKS
from shardyard_tui.views.tensors import TensorRows
from shardyard_tui.widgets.panel import Panel, fit
from shardyard_tui.widgets.row_list import Column, RowList, sorted_in_slices
from support.fake_engine import large_table, table


class Host(App[None]):
    """A list alone on a screen."""

    look = LOOKS["dark"]

    def __init__(self, widget: RowList[Any]) -> None:
        super().__init__()
        self.widget = widget
        self.messages: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.widget

    def say(self, text: str, style: str = "") -> None:
        self.messages.append(text)


COLUMNS = (
    Column("Name", lambda r: r[0], sort="n"),
    Column("Size", lambda r: str(r[1]), 6, right=True, sort="s", key=lambda r: r[1], falling=True),
    Column("Wide", lambda r: "w", 5, least=60),
)


def rows(count: int) -> list[tuple[str, int]]:
    return [(f"row {n}", n * 7 % 100) for n in range(count)]


@pytest.fixture
async def shown() -> AsyncIterator[tuple[RowList[Any], Any]]:
    widget: RowList[Any] = RowList(COLUMNS, lambda r: r[0], "Rows")
    host = Host(widget)
    async with host.run_test(size=(40, 12)) as pilot:
        widget.set_rows(rows(50))
        widget.focus()
        await pilot.pause()
        yield widget, pilot


async def test_arrows_and_vi_keys_move_alike(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    for keys, cursor in (
        (("j", "j", "down"), 3),
        (("k", "up"), 1),
        (("G",), 49),
        (("g",), 0),
        (("end",), 49),
        (("home",), 0),
        (("ctrl+f",), 8),
        (("pagedown",), 16),
        (("ctrl+b",), 8),
        (("ctrl+d",), 12),
        (("ctrl+u",), 8),
        (("up",) * 20, 0),
    ):
        await pilot.press(*keys)
        assert widget.cursor == cursor, keys


async def test_the_window_follows_the_cursor(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    assert widget.window == 9
    await pilot.press(*["j"] * 9)
    assert (widget.cursor, widget.top) == (9, 1)
    await pilot.press("G")
    assert widget.top == 41
    low, high = widget.thumb()
    assert high == widget.inner_height and high > low


async def test_moving_the_cursor_repaints_two_rows_and_the_note(
    shown: tuple[RowList[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pilot = shown
    painted: list[Any] = []
    refresh = Panel.refresh

    def watch(self: Panel, *regions: Any, **options: Any) -> Any:
        painted.extend(regions or ["everything"])
        return refresh(self, *regions, **options)

    monkeypatch.setattr(Panel, "refresh", watch)
    await pilot.press("j")
    assert "everything" not in painted
    assert sorted((r.y, r.height) for r in painted) == [(2, 1), (3, 1), (11, 1)]


async def test_marks_survive_filter_and_order_and_hidden_ones_are_counted(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    await pilot.press("space", "space", "j", "space")
    assert widget.marked == {0, 1, 3}
    assert widget.cursor == 4
    widget.set_filter("/row 3$/")
    assert "3 marked, 2 hidden" in widget.note
    widget.set_filter("")
    assert [r[0] for r in widget.chosen] == ["row 0", "row 1", "row 3"]
    widget.sort_by("s")
    assert [r[0] for r in widget.chosen] == ["row 0", "row 1", "row 3"]
    await pilot.press("U")
    assert not widget.marked
    assert widget.chosen == [widget.current]


async def test_the_cursor_stays_on_its_row_when_the_filter_goes(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    widget.set_filter("/^row 4/")
    await pilot.press("j", "j")
    row = widget.current
    widget.set_filter("")
    assert widget.current == row
    assert widget.cursor > 2


async def test_a_range_and_all_that_is_shown_can_be_marked(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    await pilot.press("v", "j", "j", "v")
    assert widget.marked == {0, 1, 2}
    assert pilot.app.messages == ["Move, then v again marks the range.", "3 marked."]
    widget.set_filter("/^row 4/")
    await pilot.press("asterisk")
    assert widget.marked == {0, 1, 2, 4, *range(40, 50)}


async def test_sorting_puts_the_large_ones_first_and_reverses(shown: tuple[RowList[Any], Any]) -> None:
    widget, _ = shown
    assert widget.sort_by("s")
    sizes = [widget.all[i][1] for i in widget.shown]
    assert sizes == sorted(sizes, reverse=True)
    widget.reverse()
    assert [widget.all[i][1] for i in widget.shown] == sorted(sizes)
    assert widget.sort_by("n")
    assert widget.all[widget.shown[2]][0] == "row 2"
    assert not widget.sort_by("q")


async def test_a_filter_keeps_the_cursor_on_its_row(shown: tuple[RowList[Any], Any]) -> None:
    widget, pilot = shown
    await pilot.press(*["j"] * 13)
    widget.set_filter("3")
    assert widget.current == ("row 13", 91)
    assert widget.note == "/3 · 2 of 14, 50 in all"


async def test_an_empty_list_says_why(shown: tuple[RowList[Any], Any]) -> None:
    widget, _ = shown
    widget.set_filter("nothing like this")
    assert widget.nothing() == "Nothing matches; Esc clears the filter."
    assert widget.current is None
    widget.set_rows([])
    assert widget.nothing() == "Nothing here."


async def test_columns_that_do_not_fit_are_left_out() -> None:
    widget: RowList[Any] = RowList(COLUMNS, lambda r: r[0])
    async with Host(widget).run_test(size=(40, 5)) as pilot:
        widget.set_rows(rows(2))
        await pilot.resize_terminal(80, 5)
        await pilot.pause()
        assert [c.title for c, _ in widget._widths()] == ["Name", "Size", "Wide"]
        await pilot.resize_terminal(40, 5)
        await pilot.pause()
        assert [c.title for c, _ in widget._widths()] == ["Name", "Size"]


async def test_half_a_million_rows_filter_and_sort_in_slices() -> None:
    widget = TensorRows()
    async with Host(widget).run_test(size=(80, 24)) as pilot:
        widget.show(large_table(500_000))
        await pilot.press("G")
        assert widget.cursor == 499_999
        widget.set_filter("experts.17.up")
        await pilot.app.workers.wait_for_complete()
        assert {widget.table.name(widget.all[i]) for i in widget.shown[:3]} == {  # type: ignore[arg-type]
            f"model.layers.{layer}.mlp.experts.17.up_proj.weight" for layer in range(3)
        }
        widget.set_filter("")
        await pilot.app.workers.wait_for_complete()
        widget.sort_by("s")
        await pilot.app.workers.wait_for_complete()
        assert len(widget.shown) == 500_000


async def test_folding_shows_one_row_a_pattern() -> None:
    widget = TensorRows()
    async with Host(widget).run_test(size=(80, 24)):
        widget.show(table(layers=4))
        widget.fold()
        names = [row.name for row in widget.all]  # type: ignore[union-attr]
        assert "model.layers.#.self_attn.q_proj.weight" in names
        assert len(names) == 11
        widget.fold()
        assert len(widget.all) == 35


async def test_slices_sort_as_one_sort_would() -> None:
    values = [(n * 7919) % 1000 for n in range(70_001)]
    assert await sorted_in_slices(range(len(values)), values.__getitem__, True) == sorted(
        range(len(values)), key=values.__getitem__, reverse=True
    )


@pytest.mark.parametrize(
    ("text", "width", "options", "shown"),
    [
        ("abc", 5, {}, "abc  "),
        ("abc", 5, {"right": True}, "  abc"),
        ("abcdef", 4, {}, "abc…"),
        ("abcdef", 4, {"cut": "left"}, "…def"),
        ("abcdefghij", 7, {"cut": "middle"}, "ab…ghij"),
        ("global_step3/layer_03-model_states.pt", 22, {"cut": "middle"}, "…layer_03…el_states.pt"),
        ("step/layer_2_expert_1_mp_rank_00_model_states.pt", 24, {"cut": "middle"}, "…layer_2_expert_1…tes.pt"),
        ("pytorch_model-00001-of-00004.bin", 22, {"cut": "middle"}, "py…-00001-of-00004.bin"),
        ("dir/zero_pp_rank_12_mp_rank_00_states.pt", 12, {"cut": "middle"}, "…rank_12….pt"),
        ("dir/zero_pp_rank_12_mp_rank_00_states.pt", 32, {"cut": "middle"}, "dir…rank_12_mp_rank_00_states.pt"),
        ("日本語", 5, {}, "日本…"),
        ("日本", 5, {}, "日本 "),
        ("a\x1b[31mb", 20, {}, r"a\x1b[31mb          "),
        ("abc", 0, {}, ""),
        ("abc", 1, {}, "…"),
    ],
)
def test_text_is_fitted_to_cells(text: str, width: int, options: dict[str, Any], shown: str) -> None:
    assert fit(text, width, **options) == shown
