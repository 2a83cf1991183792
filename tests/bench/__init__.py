"""Measuring: ours beside what people use, in the same run, on the same bytes."""
