"""Comparing: are two checkpoints the same weights, and if not, how do they differ."""
