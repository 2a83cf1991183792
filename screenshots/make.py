"""The pictures and the tour of the README: the app on the demo tree, driven by keys, drawn as SVG beside this file.

`make screenshots` runs it; nothing is faked but the names of the machine and the person.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
SIZE = (120, 34)
PATIENCE_S = 60.0
AGES_H = {"zero3": 2, "zero2": 9, "fsdp": 26, "tied-model": 30, "bloated-bins": 400, "damaged": 700}
"""How long ago each checkpoint of the demo was saved."""


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A home folder for somebody called anna, with the demo in `runs`; gone afterwards."""
    base = Path(tempfile.gettempdir()) / "anna"
    try:
        base.mkdir()
    except FileExistsError:
        base = Path(tempfile.mkdtemp()) / "anna"
        base.mkdir()
    os.environ.update(HOME=str(base), USER="anna", SHARDYARD_STATE=str(base / ".state"), XDG_CONFIG_HOME=str(base / ".config"))
    for name in ("NO_COLOR", "TEXTUAL_THEME", "COLORTERM"):
        os.environ.pop(name, None)
    try:
        yield base
    finally:
        shutil.rmtree(base)


def demo(folder: Path) -> None:
    """The demo tree, with ages."""
    from shardyard.demo import write

    write(folder)
    now = time.time()
    for name, hours in AGES_H.items():
        for path in (folder / name).rglob("*"):
            os.utime(path, (now - hours * 3600, now - hours * 3600))


class Camera:
    """Presses keys, waits until what it wants to show is there, and takes the picture."""

    def __init__(self, app: object, pilot: object) -> None:
        self.app, self.pilot = app, pilot

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips(self.app.size)  # type: ignore[attr-defined]
        return "\n".join(strip.text for strip in strips)

    async def press(self, *keys: str, until: str | Callable[[], bool] = "") -> None:
        """Press keys, then wait for a text (or a condition)."""
        for key in keys:
            await self.pilot.press(key)  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)
        end = time.monotonic() + PATIENCE_S
        while not (until() if callable(until) else until in self.text):
            if time.monotonic() > end:
                raise SystemExit(f"{until!r} did not come. The screen was:\n{self.text}")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.4)
        await self.pilot.pause()  # type: ignore[attr-defined]

    def take(self, name: str) -> None:
        """Draw the screen to `<name>.svg`."""
        picture = self.app.export_screenshot(title="shardyard", simplify=True)  # type: ignore[attr-defined]
        (HERE / f"{name}.svg").write_text(picture)
        print(f"screenshots/{name}.svg")


async def go_to(camera: Camera, name: str, until: str) -> None:
    """Put the browser's cursor on a row by its name."""
    browser = camera.app.screen  # type: ignore[attr-defined]
    key = next(node.key for node in browser.browse.walk() if node.key.endswith(name))
    browser.browse.go_to(key)
    await camera.press(until=until)


async def tour(camera: Camera) -> None:
    """Every picture, in one session."""
    await camera.press(until="7 checkpoints")
    await go_to(camera, "zero3/checkpoint-2000", "Checked")
    camera.take("browser")
    await camera.press("2", "enter", until="model.layers")
    camera.take("tensors")
    await camera.press("slash", *"layers.1 q_proj", "enter", "i", until="SHA-256")
    camera.take("tensor")
    await camera.press("escape", "escape", "escape", "1", until="7 checkpoints")
    await go_to(camera, "damaged/checkpoint-100", "Merge is off")
    await camera.press("h", until="What to do")
    camera.take("health")
    await camera.press("escape", until="7 checkpoints")
    await go_to(camera, "bloated-bins", "shrink")
    await camera.press("i", "4", "G", "k", until="a cell is about")
    camera.take("files")
    await camera.press("escape", "escape", until="7 checkpoints")
    await go_to(camera, "zero3/checkpoint-2000", "Checked")
    await camera.press("m", "j", "l", "l", until="nothing is written yet")
    camera.take("plan")
    await camera.press("enter", "J", until="done in")
    await camera.press("enter", until="plan made")
    camera.take("job")
    await camera.press("escape", "escape", until="8 checkpoints")
    await camera.press("c", until="press c again")
    await go_to(camera, "tied-model", "Checked")
    await camera.press("c", until="rounded-bfloat16")
    await camera.press(until=lambda: getattr(camera.app.screen, "result", None) is not None)  # type: ignore[attr-defined]
    camera.take("compare")
    await camera.press("escape", "g", "minus", "u", until="Give back")
    await camera.press(until="Wasted")
    camera.take("disk")
    await camera.press("escape", "question_mark", until="half a page down")
    camera.take("help")


async def main() -> None:
    """Write all pictures."""
    from shardyard_tui import terminal
    from shardyard_tui.app import ShardyardApp
    from shardyard_tui.engine import RealEngine

    terminal.host_and_user = lambda: ("login3", "anna")
    with home() as base:
        demo(base / "runs")
        app = ShardyardApp(RealEngine(), str(base / "runs"))
        async with app.run_test(size=SIZE) as pilot:
            await tour(Camera(app, pilot))


if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent / "engine"), str(HERE.parent / "tui")]
    import tour as cast

    with home() as base:
        demo(base / "runs")
        cast.record(base / "runs", HERE / "tour.cast")
    asyncio.run(main())
