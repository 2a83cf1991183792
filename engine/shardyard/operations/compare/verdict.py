"""The outcome of a comparison in sentences that a person can act on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from shardyard.text import printable

Row = Mapping[str, Any]

GOOD = ("identical", "equal")
_ADAPTER = re.compile(r"(^|\.)(lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector)(\.|$)")
_MOST_NAMED = 3
"""Exceptions that are named; more are counted."""


def verdict(result: Mapping[str, Any]) -> str:
    """One to four sentences."""
    rows: Sequence[Row] = result["tensors"]
    alone = _alone(result)
    if not rows:
        if not alone["a"] and not alone["b"]:
            return "Both hold no tensor at all."
        sentences = ["No tensor name is in both."]
    elif not any(alone.values()) or _only_adapters(alone):
        sentences = [_adapter(result, alone) or _values(rows)]
    else:
        sentences = [_with_missing(rows, alone)]
    sentences += _lost(rows) + _ties(result) + _candidates(result) + _hint(result)
    return " ".join(sentences)


def _alone(result: Mapping[str, Any]) -> dict[str, list[str]]:
    """Names without a partner, by side, without proved ties."""
    tied = {(t["in"], t["name"]) for t in result["tied"]}
    return {side: [n for n in result[f"only_in_{side}"] if (side, n) not in tied] for side in "ab"}


def _only_adapters(alone: Mapping[str, list[str]]) -> bool:
    return all(_ADAPTER.search(name) for names in alone.values() for name in names)


def _adapter(result: Mapping[str, Any], alone: Mapping[str, list[str]]) -> str:
    """What is to be said where an adapter is there and nothing differs; empty if that is not the case."""
    rows: Sequence[Row] = result["tensors"]
    if not all(row["relation"] in (*GOOD, "rounded-bfloat16", "rounded-float16") for row in rows):
        return ""
    count = len(alone["a"]) + len(alone["b"])
    side = "A" if alone["a"] else "B"
    if count:
        return (
            f"No tensor differs from the base model ({_count(rows)}): the LoRA "
            f"({count} adapter tensor{'s' if count > 1 else ''} in {side}) was never folded in."
        )
    for label in ("a", "b"):
        if result[label].get("adapter"):
            return (
                f"No tensor differs ({_count(rows)}): the LoRA in {printable(str(result[label]['adapter']))} "
                f"beside {label.upper()} was never folded in."
            )
    return ""


def _values(rows: Sequence[Row]) -> str:
    """How the tensors that both sides have go together."""
    bad = [row for row in rows if _differs(row)]
    good = [row for row in rows if not _differs(row)]
    if not bad:
        return f"{_agreement(good)}{_ending(good)}."
    if good and len(bad) <= _MOST_NAMED:
        exceptions = "; ".join(f"{printable(row['name'], 120)}: {reason(row)}" for row in bad)
        agreement = _short_agreement(good)
        return f"{agreement}{',' if 'exactly' in agreement else ''} except {exceptions}."
    return _many(rows, bad)


def _with_missing(rows: Sequence[Row], alone: Mapping[str, list[str]]) -> str:
    """As `_values`, where names of one side have no partner."""
    missing = "; ".join(f"{_names(names)} only in {side.upper()}" for side, names in alone.items() if names)
    bad = [row for row in rows if _differs(row)]
    if not bad:
        return f"{_short_agreement(rows)} in the {len(rows)} tensors that both have; {missing}."
    return f"{_values(rows)} {missing[0].upper() + missing[1:]}."


def _differs(row: Row) -> bool:
    return row["relation"] in ("different", "both-rounded", "shape-differs", "dtype-differs")


def _agreement(rows: Sequence[Row], everything: str | None = None) -> str:
    """What all of these rows have in common; `everything` says in how many tensors."""
    relations = {row["relation"] for row in rows}
    everything = f" in {_count(rows)}" if everything is None else everything
    if relations == {"identical"}:
        return f"Identical: the same bits{everything}"
    if relations <= set(GOOD):
        return f"Equal: the same values{everything}"
    if "close" in relations:
        return f"Within the tolerance{everything}"
    rounded = [row for row in rows if row["relation"].startswith("rounded-")]
    sides = {(row["rounded"], row["relation"]) for row in rounded}
    if len(sides) > 1:
        counts = Counter(f"{row['relation'].removeprefix('rounded-')}" for row in rounded)
        return f"One is exactly the other rounded, tensor by tensor ({_counts(counts)}){everything}"
    side, kind = rounded[0]["rounded"].upper(), rounded[0]["relation"].removeprefix("rounded-")
    exact = f"{side} is {'A' if side == 'B' else 'B'} rounded to {kind}, exactly"
    rest = [row for row in rows if not _could_be_rounded(row, side.lower(), kind)]
    if not rest:
        return f"{exact},{everything}" if everything else exact
    return f"{exact}, in {len(rows) - len(rest)} of {len(rows)} tensors, and equal in the other{'s' if len(rest) > 1 else ''}"


def _could_be_rounded(row: Row, side: str, kind: str) -> bool:
    """Whether the rounding is true of a tensor: also of one that lost nothing by it, or has no fractions to round."""
    if row["relation"].startswith("rounded-") or not ("float" in row["dtype_a"] or "complex" in row["dtype_a"]):
        return True
    return kind in row.get(f"{side}_is_{'b' if side == 'a' else 'a'}_rounded_to", ()) or row[f"dtype_{side}"] == kind


def _ending(rows: Sequence[Row]) -> str:
    """What that means."""
    relations = {row["relation"] for row in rows}
    if relations == {"identical"} or "close" in relations:
        return ""
    if relations <= set(GOOD):
        wider = Counter((row["dtype_a"], row["dtype_b"]) for row in rows if row["dtype_a"] != row["dtype_b"])
        if not wider:
            return "; only signs of zeros or payloads of NaNs differ"
        (a, b), count = wider.most_common(1)[0]
        return f"; {a} in A is {b} in B in {count:,} of them, and nothing is lost"
    if any(row["relation"].startswith("rounded-float8") for row in rows):
        return "; a rounding to 8 bits does not count as equal"
    return "" if _lost(rows) else "; nothing is lost but precision"


def _short_agreement(rows: Sequence[Row]) -> str:
    relations = {row["relation"] for row in rows if not _differs(row)}
    if relations <= {"identical"}:
        return "Identical"
    return "Equal" if relations <= set(GOOD) else _agreement([row for row in rows if not _differs(row)], "")


def _many(rows: Sequence[Row], bad: Sequence[Row]) -> str:
    worst = worst_first(bad)[0]
    share = f"All {len(rows)} tensors" if len(bad) == len(rows) else f"{len(bad)} of {len(rows)} tensors"
    if len(rows) == 1:
        return f"{printable(rows[0]['name'], 120)} differs: {reason(rows[0])}."
    siblings = all(row["relation"] == "both-rounded" for row in bad)
    if siblings:
        return f"{share} are two roundings of one parent, bfloat16 and float16: the same model, saved twice in different types."
    return f"{share} differ, most of all {printable(worst['name'], 120)}: {reason(worst)}."


def reason(row: Row) -> str:
    """Why a tensor counts as different, in a few words."""
    relation = row["relation"]
    if relation == "shape-differs":
        return str(row.get("note") or f"{_shape(row['shape_a'])} in A, {_shape(row['shape_b'])} in B")
    if relation == "dtype-differs":
        return f"{row['dtype_a']} in A, {row['dtype_b']} in B"
    if relation == "both-rounded":
        return "both are roundings of one parent"
    if row["max_abs"] is None:
        return "its bytes differ"
    total = 1
    for n in row["shape_a"]:
        total *= n
    one = row["differing"] == 1
    many = f"{row['differing']:,} of {total:,} values {'differs' if one else 'differ'}" if total > 1 else "its value differs"
    nan = "".join(
        f", {row[f'{what}_{side}']:,} {label} in {side.upper()}"
        for what, label in (("nan", "NaN"), ("inf", "inf"))
        for side in "ab"
        if row[f"{what}_{side}"] != row[f"{what}_{'b' if side == 'a' else 'a'}"] and row[f"{what}_{side}"]
    )
    if row.get("unexplained"):
        are = "is no rounding" if row["unexplained"] == 1 else "are no roundings"
        many = f"{row['unexplained']:,} of {total:,} values {are} to {row['narrower']}"
    by = f", by up to {figure(row['max_abs'])} at {row['place']}" if row["max_abs"] and row.get("place") is not None else ""
    return many + by + nan


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Rows by what differs most: other shapes and types, then other values by relative size, then what is equal."""
    from shardyard.operations.compare.pairs import RELATIONS

    def weight(row: Row) -> tuple[int, float]:
        relative = row["max_rel"]
        return -RELATIONS.index(row["relation"]), -(float(relative) if relative is not None else 0.0)

    return sorted(rows, key=weight)


def _lost(rows: Sequence[Row]) -> list[str]:
    """Values that a rounding made infinite."""
    found = []
    for side, other in (("a", "b"), ("b", "a")):
        grown = {
            row["name"]: row[f"inf_{side}"] - row[f"inf_{other}"]
            for row in rows
            if row.get("rounded") == side and row[f"inf_{side}"] > row[f"inf_{other}"]
        }
        if grown:
            count = sum(grown.values())
            values = "value" if count == 1 else "values"
            found.append(f"{count:,} finite {values} became infinite in {side.upper()}, in {_list(list(grown))}.")
    return found


def _ties(result: Mapping[str, Any]) -> list[str]:
    ties = [
        f"{printable(t['name'], 120)} is only in {t['in'].upper()}, where it equals {printable(t['equals'], 120)}: a tie."
        for t in result["tied"]
    ]
    return ties[:_MOST_NAMED]


def _candidates(result: Mapping[str, Any]) -> list[str]:
    renamed = [c for c in result["candidates"] if c["a"] != c["b"]] if not result["prefix_hint"] else []
    found = [f"{printable(c['a'], 120)} in A may be {printable(c['b'], 120)} in B: {c['reason']}." for c in renamed[:_MOST_NAMED]]
    if len(renamed) > _MOST_NAMED:
        found.append(f"{len(renamed) - _MOST_NAMED} more may be renamed.")
    return found


def _hint(result: Mapping[str, Any]) -> list[str]:
    prefix = result["prefix_hint"]
    if not prefix:
        return []
    return [f"More names match without the prefix {printable(prefix)}: compare with --strip-prefix {printable(prefix)}"]


def _count(rows: Sequence[Row]) -> str:
    return f"all {len(rows):,} tensors" if len(rows) != 1 else "its one tensor"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} to {kind}" for kind, n in counts.items())


def _names(names: Sequence[str]) -> str:
    return f"{_list(names)} {'is' if len(names) == 1 else 'are'}"


def _list(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMED:
        return ", ".join(printable(n, 120) for n in names)
    return f"{len(names):,} names such as {printable(names[0], 120)}"


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def figure(value: float | int | str) -> str:
    """A number in a sentence: whole numbers in full, others to four digits."""
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else f"{value:.4g}"
