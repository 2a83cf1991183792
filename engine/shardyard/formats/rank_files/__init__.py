"""Folders with one torch file a rank, each with its share of every tensor."""
