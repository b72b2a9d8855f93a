"""Where sentence pairs come from."""
