"""Merging: what is written where is planned to the byte, moved in units that can be killed and gone on with, and published at once."""
