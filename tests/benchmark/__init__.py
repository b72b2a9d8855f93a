"""Side-by-side measurements: `make bench`, or `python -m tests.benchmark --help`."""
