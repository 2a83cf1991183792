"""The app on a made-up engine, for tests that need a real terminal: `python -m support.app_in_terminal [--rows N] …`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys

from support.fake_engine import ROOT, FakeEngine, checkpoints, large_table


def main() -> None:
    """Open the app; `SUPPORT_MODULES` names a file to write the loaded modules to at the end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=0, help="one checkpoint with this many tensors")
    parser.add_argument("--job", action="store_true", help="with a job that runs")
    parser.add_argument("--ascii", action="store_true", default=None)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--theme")
    args = parser.parse_args()

    from shardyard_tui import app as app_module
    from shardyard_tui.facts import Document, Opened

    found = checkpoints()
    if args.rows:
        path = f"{ROOT}/large"
        first = next(o for o in found.values() if isinstance(o, Opened))
        found = {path: dataclasses.replace(first, path=path, table=large_table(args.rows))}
    engine = FakeEngine(found)
    if os.environ.get("SUPPORT_FAULT"):

        async def fault() -> Document:
            raise ZeroDivisionError("made up for a test")

        engine.doctor = fault  # type: ignore[method-assign]
    if args.job:
        engine.begin_endless_job()
    app_module.RealEngine = lambda: engine  # type: ignore[assignment, misc, return-value]
    code = app_module.run(ROOT, ascii=args.ascii, slow=args.slow, theme=args.theme)
    modules = os.environ.get("SUPPORT_MODULES")
    if modules:
        with open(modules, "w") as file:
            file.write("\n".join(sorted(sys.modules)))
    sys.exit(code)


if __name__ == "__main__":
    main()
