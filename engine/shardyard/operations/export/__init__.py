"""Exporting: a merge into a folder that a model loader opens as it is."""
