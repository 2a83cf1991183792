"""A plan in lines: what is read and written, what it needs, what is odd, and the same as a command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shardyard_tui import units
from shardyard_tui.facts import Document, JobRequest
from shardyard_tui.glyphs import ARROW, OK
from shardyard_tui.glyphs import WARNING as CAUTION
from shardyard_tui.summary import SEVERITIES
from shardyard_tui.widgets.panel import Line, Span, fit
from shardyard_tui.widgets.sheet import fact, wrap

DEFAULTS: Mapping[str, str] = {
    "dtype": "", "max_shard_size": "5GB", "tied": "auto", "format": "safetensors", "verify": "sample", "strip_prefix": "auto",
    "lora": "", "tag": "", "part": "", "select": "", "exclude": "", "like": "", "allow_incomplete": "no", "overwrite": "no",
    "dedupe_tied": "no", "pattern": "", "keep_dtype": "", "allow_overflow": "no", "trainable_only": "no",
}  # fmt: skip
"""What an option is when nothing was asked for."""
FLAGS = ("allow_incomplete", "overwrite", "dedupe_tied", "allow_overflow", "trainable_only", "in_place")
LISTS = ("select", "exclude", "keep_dtype", "strip_prefix")


def options_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Options that were asked for, as a job takes them."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if name in ("out", "slurm") or value == DEFAULTS.get(name, ""):
            continue
        if name in FLAGS:
            options[name] = value == "yes"
        elif name in LISTS:
            options[name] = value.split()
        else:
            options[name] = value
    return options


def slurm_of(values: Mapping[str, str]) -> dict[str, str] | None:
    """What is asked of Slurm; None: the job runs on this machine."""
    text = values.get("slurm", "").strip()
    if not text:
        return None
    pairs = (part.partition("=") for part in text.replace(" ", ",").split(",") if part)
    return {key.strip(): value.strip() for key, _, value in pairs if value}


def command(request: JobRequest) -> str:
    """The same as a command line."""
    words = ["shardyard", request.verb, *request.sources]
    if request.options.get("in_place"):
        words.append("--in-place")
    elif request.out:
        words += ["-o", request.out]
    for name, value in request.options.items():
        option = "--" + name.replace("_", "-")
        if name == "in_place":
            continue
        if isinstance(value, bool):
            words += [option] if value else []
        elif isinstance(value, (list, tuple)):
            for one in value:
                words += [option, str(one)]
        else:
            words += [option, str(value)]
    if request.slurm is not None:
        words.append("--slurm=" + ",".join(f"{key}={value}" for key, value in request.slurm.items()))
    return shlex.join(words)


def checks(plan: Document) -> list[tuple[bool, str, str]]:
    """(whether it is well, what, in words) for what `M` asks before it starts without asking."""
    limits = plan.get("limits") or {}
    need, limit = int(plan.get("memory") or 0), limits.get("available") or limits.get("memory")
    disk = plan.get("disk") or {}
    found = [
        (bool(plan.get("complete", True)), "whole", "every tensor has all its data"),
        (int(disk.get("free") or 0) > int(disk.get("needed") or 0), "disk", "it fits on the disk"),
        (limit is None or need < int(limit), "memory", "it fits into memory"),
        (not any(f.get("severity") in ("error", "warning") for f in plan.get("findings") or ()), "findings", "nothing is odd"),
    ]
    return found


def plan_lines(plan: Document, request: JobRequest, width: int) -> list[Line]:
    """The plan, the sizes first."""
    lines: list[Line] = []
    files = [f for f in plan.get("files") or () if f.get("tensors") or str(f.get("name", "")).endswith(".index.json")]
    reads, writes = int(plan.get("bytes_read") or 0), int(plan.get("bytes_written") or 0)
    lines += _amount("Read", units.size(reads), f"{units.plural(int(plan.get('tensors') or 0), 'tensor')}", width)
    weights = [f for f in files if f.get("tensors")]
    what = f"{units.plural(len(weights), 'file')}" + (" and an index" if len(files) > len(weights) else "")
    lines += _amount("Write", units.size(writes), what, width)
    lines += _disk(plan, width)
    lines += _memory(plan, width)
    lines.append(())
    lines += _shrunk(plan, width) if request.verb == "shrink" else _values(plan, width)
    lines += _odd(plan, width)
    lines += [(), *fact("The same as a command (Y copies it)", "", width, indent=36)]
    lines += wrap(command(request), width, "accent")
    source = "Nothing under the source is changed."
    if request.options.get("in_place"):
        source = "Each file is replaced once the new one was read back and proved to be equal."
    lines += [(), *wrap(f"If it stops, the same again goes on where it was. {source}", width, "dim")]
    return lines


def _shrunk(plan: Document, width: int) -> list[Line]:
    """What a shrink saves, file by file: those that become smaller first."""
    rows = sorted(plan.get("files") or (), key=lambda row: -int(row.get("saved") or 0))
    lines = fact("Saves", f"{units.size(int(plan.get('saved') or 0))} of {units.size(int(plan.get('before') or 0))}", width)
    for row in rows[:_MOST_ROWS]:
        if row.get("action") == "shrink":
            text = f"{units.size(int(row['before']))} {ARROW} {units.size(int(row['after']))}"
        else:
            text = f"left as it is: {row.get('why')}"
        lines += wrap(f"{row['name']}: {text}", width, "text" if row.get("action") == "shrink" else "dim", indent=2)
    if len(rows) > _MOST_ROWS:
        lines += wrap(f"and {len(rows) - _MOST_ROWS} more files", width, "dim", indent=2)
    return lines


_MOST_ROWS = 12


def _amount(label: str, amount: str, text: str, width: int, style: str = "dim") -> list[Line]:
    return [[(f"{label:<10}", "dim"), (f"{amount:>10}   ", "strong"), (text[: max(0, width - 24)], style)]]


def _disk(plan: Document, width: int) -> list[Line]:
    disk = plan.get("disk") or {}
    needed, free = int(disk.get("needed") or 0), int(disk.get("free") or 0)
    good = free > needed
    text = f"free {units.size(free)} in "
    text += fit(str(disk.get("path", "")), max(0, width - 26 - len(text)), cut="left").rstrip()
    return [[("Disk      ", "dim"), (f"{units.size(needed):>10}   ", "strong"), *_good(good), (text, "dim")]]


def _memory(plan: Document, width: int) -> list[Line]:
    limits = plan.get("limits") or {}
    need = int(plan.get("memory") or 0)
    available = limits.get("available") or limits.get("memory")
    text = f"of {units.size(int(available))} that may be taken here" if available else "no limit is set here"
    good = available is None or need < int(available)
    return [
        [
            ("Memory    ", "dim"),
            (f"{'~ ' + units.size(need):>10}   ", "strong"),
            *_good(good),
            (text[: max(0, width - 26)], "dim"),
        ]
    ]


def _good(good: bool) -> list[Span]:
    return [(f"{OK} ", "ok")] if good else [(f"{CAUTION} ", "warning")]


def _values(plan: Document, width: int) -> list[Line]:
    lines: list[Line] = []
    dtypes = plan.get("dtypes") or {}
    casts = plan.get("casts") or ()
    kinds = ", ".join(f"{units.count(int(n))} {name}" for name, n in dtypes.items())
    lines += fact("Values", kinds + ("" if casts else ", as stored: bit for bit"), width)
    for cast in casts:
        many = units.plural(int(cast["tensors"]), "tensor")
        lines += fact("Cast", f"{many} {cast['from']} {ARROW} {cast['to']}: {_loses(cast)}", width)
    tied = plan.get("tied") or {}
    for alias, owner in list(tied.items())[:2]:
        lines += fact("Tied", f"{alias} is {owner}: written once", width)
    if len(tied) > 2:
        lines += fact("", f"and {len(tied) - 2} more", width, "dim")
    renamed = plan.get("renamed") or {}
    if renamed:
        old, new = next(iter(renamed.items()))
        lines += fact("Names", f"{units.plural(len(renamed), 'name')} changed, such as {old} {ARROW} {new}", width)
    return lines


def _loses(cast: Mapping[str, Any]) -> str:
    return {
        ("float32", "bfloat16"): "the same range, 8 of 24 bits of precision, rounded to nearest even",
        ("float32", "float16"): "11 of 24 bits; values beyond 65504 stop it",
        ("bfloat16", "float16"): "values beyond 65504 stop it, very small ones become 0",
        ("bfloat16", "float32"): "nothing is lost, twice the bytes",
        ("float16", "float32"): "nothing is lost, twice the bytes",
    }.get((str(cast.get("from")), str(cast.get("to"))), "rounded to nearest even")


def _odd(plan: Document, width: int) -> list[Line]:
    lines: list[Line] = []
    missing: Sequence[Any] = plan.get("missing") or ()
    if missing:
        lines += wrap(
            f"{units.plural(len(missing), 'tensor')} cannot be rebuilt, such as {missing[0]}: the output will say so.",
            width, "text", indent=2, first=CAUTION, first_style="warning",
        )  # fmt: skip
    left_out = int(plan.get("frozen_left_out") or 0)
    if left_out:
        text = f"{units.plural(left_out, 'frozen weight')} were left out by the trainer."
        lines += wrap(text, width, "text", indent=2, first=CAUTION, first_style="warning")
    for finding in list(plan.get("findings") or ())[:6]:
        sign, style = SEVERITIES.get(str(finding.get("severity")), SEVERITIES["info"])
        lines += wrap(str(finding.get("message", "")), width, "text", indent=2, first=sign, first_style=style)
    return [(), *lines] if lines else []


def out_note(out: str) -> str:
    """Where an output goes, for its row."""
    return os.path.dirname(out)
