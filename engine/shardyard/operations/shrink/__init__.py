"""Shrinking: files written anew without the bytes that no tensor uses."""
