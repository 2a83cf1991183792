"""Look at every hostile file with `shardyard inspect`, in this process, and print one JSON row for each.

    python tests/hostile/inspect_all.py          a table and the counts
    python tests/hostile/inspect_all.py --rows   JSON rows, for the test

One process looks at all files, so that its peak memory bounds each of them.  It works in an empty folder: a payload that ran
would leave a file there.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "engine"), str(HERE.parents[1])]

from shardyard.cli import main  # noqa: E402
from support.checkpoints import fixture_root  # noqa: E402


def hostile_files() -> list[tuple[str, str]]:
    """(path, what would be good to say) of the files that travel in the archive."""
    root = fixture_root() / "hostile"
    cases = json.loads((root / "expected.json").read_text())["cases"]
    return [(str(root / case["path"]), case["say"]) for case in cases]


def hostile_places(folder: Path) -> list[tuple[str, str]]:
    """The same for links, pipes, sockets and names that no archive can carry: made now."""
    spec = importlib.util.spec_from_file_location("make_hostile_fs", fixture_root() / "hostile" / "make_hostile_fs.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    with contextlib.redirect_stdout(io.StringIO()):
        cases = maker.main(str(folder))
    paths = [os.fsdecode(bytes.fromhex(c["path_bytes_hex"])) if "path_bytes_hex" in c else c["path"] for c in cases]
    return [(str(folder / path), case["say"]) for path, case in zip(paths, cases, strict=True)] + [
        (str(folder), "The whole tree.")
    ]


def look(path: str, say: str) -> dict[str, Any]:
    """One file through the command line, as text and as JSON; seconds are of this process, not of a busy machine."""
    row: dict[str, Any] = {"path": path.encode("utf-8", "backslashreplace").decode(), "say": say}
    for form, arguments in (("text", ["inspect", "--", path]), ("json", ["inspect", "--json", "--tensors", "--", path])):
        out, err = io.StringIO(), io.StringIO()
        start = time.process_time()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                row[form + "_code"] = int(main(arguments))
            except SystemExit as stop:
                row[form + "_code"] = int(stop.code or 0) if not isinstance(stop.code, str) else 2
        row[form + "_seconds"] = round(time.process_time() - start, 3)
        row[form], row[form + "_err"] = out.getvalue(), err.getvalue()
    row["peak_bytes"] = peak()
    return row


def peak() -> int:
    """Most memory that this process ever held; `ru_maxrss` would count the parent's before the exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def rows() -> Iterator[dict[str, Any]]:
    """All cases, one after another, from inside an empty folder."""
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryDirectory() as made:
        os.chdir(empty)
        for path, say in (*hostile_files(), *hostile_places(Path(made) / "places")):
            yield {**look(path, say), "left": os.listdir(empty)}
        os.chdir("/")


def problems(row: dict[str, Any]) -> list[str]:
    """What is wrong with how a case went; nothing if all is well."""
    found = []
    text = row["text"] + row["text_err"] + row["json_err"]
    if row["left"]:
        found.append(f"a payload ran: {row['left']}")
    if row["text_code"] != 0 or row["json_code"] != 0:
        found.append(f"exit {row['text_code']} and {row['json_code']}: {row['text_err'].strip()}")
    if any(_controls(ord(c)) for c in text):
        found.append("control characters reach the terminal")
    if "Traceback" in text or "fault of its own" in text:
        found.append("a fault of ours")
    if max(row["text_seconds"], row["json_seconds"]) > 2:
        found.append(f"took {max(row['text_seconds'], row['json_seconds'])} s")
    if row["peak_bytes"] > 200 << 20:
        found.append(f"took {row['peak_bytes'] >> 20} MiB")
    if not any(line.rstrip().endswith(".") for line in row["text"].splitlines()):
        found.append("says no sentence")
    try:
        json.loads(row["json"])
    except ValueError:
        found.append("the JSON is not valid")
    return found


def _controls(code: int) -> bool:
    """Whether a character could move a terminal's cursor, hide text or turn its direction."""
    return (code < 32 and code != 10) or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000 or 0x202A <= code < 0x202F


def table() -> int:
    """Print what is said of each, and how many went well."""
    well = total = 0
    for row in rows():
        total += 1
        wrong = problems(row)
        well += not wrong
        print(f"{row['path'].rpartition('/hostile/')[2]}  {row['text_seconds']:.2f} s")
        print(f"    wanted: {row['say']}")
        print("    " + row["text"].strip().replace("\n", "\n    "))
        for problem in wrong:
            print(f"    WRONG: {problem}")
    print(f"{well} of {total} hostile files and places are described without harm.")
    return int(well != total)


if __name__ == "__main__":
    if "--rows" in sys.argv:
        for each in rows():
            print(json.dumps(each))
    else:
        sys.exit(table())
