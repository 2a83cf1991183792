"""Weights as model hubs lay them out: one file, or shards with an index."""
