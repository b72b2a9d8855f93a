"""Untrusted files, inspected before anything of them is loaded: nothing is executed."""
