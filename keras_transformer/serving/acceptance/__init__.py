"""Checks of an exported version: what a server would do with it, before it is published."""
