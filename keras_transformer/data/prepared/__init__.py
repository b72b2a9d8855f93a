"""Corpora of any size: prepared once, as memory-mapped ids in a directory."""
