"""Shardyard: read, check, merge, shrink and compare training checkpoints without the training stack."""

__version__ = "0.1.0"
