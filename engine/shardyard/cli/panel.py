"""Plans, progress and results as text: one line that is redrawn on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from shardyard.text import printable

_PLAIN_EVERY_S = 10.0


def size(nbytes: float | None) -> str:
    """Bytes for people, in binary units: `5.7 GiB`."""
    if nbytes is None:
        return "?"
    from humanize import naturalsize

    return str(naturalsize(nbytes, binary=True, format="%.1f")).replace(" Bytes", " B").replace(" Byte", " B")


def duration(seconds: float | None) -> str:
    """`0:03`, `1:02:03`."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Panel:
    """Shows a job's events on a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._last_plain = time.monotonic()

    def show(self, event: Mapping[str, Any]) -> None:
        """Show one event."""
        kind = event["event"]
        if kind == "progress":
            self._progress(event)
        elif kind == "plan":
            self._lines(plan_lines(event))
        elif kind == "message":
            self._lines([printable(str(event.get("text", event.get("message", ""))))])
        elif kind == "finding":
            self._lines([f"{event.get('severity', 'note')}: {printable(str(event.get('message', '')))}"])

    def _progress(self, event: Mapping[str, Any]) -> None:
        line = progress_line(event)
        if self._live:
            width = shutil.get_terminal_size().columns
            self._stream.write(f"\r{line[: width - 1]}\x1b[K")
            self._stream.flush()
        elif time.monotonic() - self._last_plain >= _PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            print(line, file=self._stream, flush=True)

    def _lines(self, lines: Iterable[str]) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
        print("\n".join(lines), file=self._stream, flush=True)


def finish(stream: TextIO) -> None:
    """Leave the line that was redrawn."""
    if stream.isatty():
        stream.write("\r\x1b[K")
        stream.flush()


def progress_line(event: Mapping[str, Any]) -> str:
    """One line: bar, share, bytes, rate, time left, memory against its limit."""
    done, total = event.get("done") or 0, event.get("total") or 0
    share = min(1.0, done / total) if total else 0.0
    bar = "#" * round(share * 24)
    memory = event.get("memory") or {}
    limit = f" of {size(memory['limit'])}" if memory.get("limit") else ""
    return (
        f"[{bar:.<24}] {share:4.0%}  {size(done)} of {size(total)}  {size(event.get('rate') or 0)}/s"
        f"  left {duration(event.get('eta'))}  memory {size(memory.get('anon'))}{limit}"
    )


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The plan as a person reads it: what is read and written, what it needs, what is tied, cast, missing or odd."""
    if "files" not in plan and "summary" in plan:
        plan = plan["summary"]
    rows = [
        ("from", _source(plan)),
        ("to", _target(plan)),
        ("reads", size(plan["bytes_read"]) if "bytes_read" in plan else ""),
        ("writes", _writes(plan)),
        ("needs", _needs(plan)),
        ("casts", ", ".join(f"{c['tensors']} tensors {c['from']} to {c['to']}" for c in plan.get("casts", ()))),
        ("tied", _tied(plan.get("tied") or {})),
        ("missing", _some(plan.get("missing") or ())),
    ]
    lines = [f"{label:<9}{text}" for label, text in rows if text]
    lines += [f"{'note':<9}{printable(str(note))}" for note in plan.get("notes", ())]
    return lines + [
        _finding_line(f) for f in plan.get("findings", ()) if f["severity"] != "info" or f.get("certainty") == "likely"
    ]


def _finding_line(finding: Mapping[str, Any]) -> str:
    label = "note" if finding["severity"] == "info" else finding["severity"]
    return f"{label:<9}{printable(str(finding['message']))}"


def _source(plan: Mapping[str, Any]) -> str:
    named = ", ".join(str(s) for s in plan.get("sources", ()))
    told = [str(plan[key]) for key in ("kind", "tag", "part") if plan.get(key)]
    return printable(f"{named} ({', '.join(told)})" if told else named)


def _target(plan: Mapping[str, Any]) -> str:
    files = plan.get("files", ())
    weights = [f for f in files if f.get("tensors")]
    count = f"{len(weights)} weight file{'s' if len(weights) != 1 else ''}" if weights else ""
    where = str(plan.get("out") or ("where they are" if plan.get("in_place") else ""))
    told = ", ".join(str(part) for part in (count, plan.get("format")) if part) if count else ""
    return printable(f"{where} ({told})" if told else where)


def _writes(plan: Mapping[str, Any]) -> str:
    if "bytes_written" not in plan:
        return ""
    dtypes = ", ".join(f"{n} {name}" for name, n in (plan.get("dtypes") or {}).items())
    return size(plan["bytes_written"]) + (f" in {plan['tensors']} tensors ({dtypes})" if dtypes else "")


def _needs(plan: Mapping[str, Any]) -> str:
    disk = plan.get("disk") or {}
    told = []
    if plan.get("memory"):
        told.append(f"{size(plan['memory'])} of memory")
    if disk.get("needed") is not None:
        told.append(f"{size(disk['needed'])} of disk, {size(disk.get('free'))} free at {printable(str(disk.get('path', '')))}")
    return "; ".join(told)


def _tied(tied: Mapping[str, str]) -> str:
    return _some([f"{alias} = {owner}" for alias, owner in tied.items()])


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(printable(str(n), 120) for n in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """How a job ended well: what was written, what was checked, how to load it."""
    lines = [printable(str(line)) for line in result.get("lines", ())]
    if not lines and result.get("out"):
        files = [f for f in result.get("files", ()) if f.get("tensors")]
        what = f": {result['tensors']} tensors, {size(result.get('bytes_written'))}, {len(files)} weight files" if files else ""
        lines = [printable(f"Wrote {result['out']}{what}.".replace(", 1 weight files", ", 1 weight file"))]
        if result.get("complete") is False:
            missing = _some(result.get("missing") or ())
            lines.append(f"It is NOT complete; missing: {missing}." if missing else "It is NOT complete: the plan says why.")
        if result.get("checked"):
            lines.append(f"Checked: {_checked(result['checked'])}.")
    if result.get("load"):
        lines += ["", *(f"    {printable(str(line))}" for line in result["load"])]
    return lines


_CHECKS = {
    "records_checked": "{} {records} against their CRC-32",
    "records_not_read_whole": "{} {records} not read whole, so without a CRC",
    "copies_compared": "{} {samples} against the 16-bit copy",
    "bytes_read_back": "{size} read back",
}


def _checked(checked: Any) -> str:
    if not isinstance(checked, Mapping):
        return ", ".join(str(c) for c in checked) if isinstance(checked, (list, tuple)) else str(checked)
    return ", ".join(_check(name, value) for name, value in checked.items() if value)


def _check(name: str, value: Any) -> str:
    """One check in words: `4 records against their CRC-32`."""
    if name not in _CHECKS or not isinstance(value, int):
        return f"{name.replace('_', ' ')} {value}"
    plural = "" if value == 1 else "s"
    return _CHECKS[name].format(f"{value:,}", records=f"record{plural}", samples=f"sample{plural}", size=size(value))
