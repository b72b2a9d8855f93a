"""The command line, `keras-transformer`."""
