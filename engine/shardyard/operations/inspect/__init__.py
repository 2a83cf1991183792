"""Inspecting: what is in a path, whether it is whole and, on request, whether all its bytes are as they should be."""
