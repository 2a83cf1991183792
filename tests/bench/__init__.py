"""Measuring: ours beside what people use, in the same run, on the same bytes."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"
"""The results that are kept, with the machine that they were taken on."""
