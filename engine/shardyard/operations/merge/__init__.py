"""Merging: planned to the byte, moved in units that can be killed and gone on with, published at once."""
