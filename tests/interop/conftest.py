"""At the end of a run: a table of what was tried with which framework, and whether it came out equal."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

_FRAMEWORKS = {
    "zero": "deepspeed",
    "consolidating_the_live_engine": "deepspeed",
    "consolidating_straight": "deepspeed",
    "fsdp": "accelerate",
    "merge_weights": "accelerate",
    "adapter": "peft",
    "folded": "peft",
    "alpha": "peft",
    "split": "peft",
    "torch_outputs": "torch",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table, from the reports of this folder's tests."""
    rows = [
        (_framework(report.nodeid), _case(report.nodeid), equal)
        for outcome, equal in (("passed", "equal"), ("failed", "NOT EQUAL"), ("skipped", "skipped"))
        for report in terminalreporter.stats.get(outcome, [])
        if "tests/interop/" in report.nodeid and (report.when == "call" or outcome == "skipped")
    ]
    if not rows:
        return
    terminalreporter.section("interop")
    for framework, case, equal in sorted(rows):
        terminalreporter.write_line(f"{framework:<14}{_version(framework):<10}{equal:<10}{case}")


def _framework(node: str) -> str:
    name = node.rpartition("::")[2]
    return next((framework for mark, framework in _FRAMEWORKS.items() if mark in name), "transformers")


def _case(node: str) -> str:
    return node.rpartition("::")[2].removeprefix("test_").replace("_", " ")


def _version(framework: str) -> str:
    try:
        return version(framework).partition("+")[0]
    except PackageNotFoundError:
        return "-"
