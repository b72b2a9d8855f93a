"""Malicious and broken files, and what users see of them: `docs/loading-trials.md`."""
