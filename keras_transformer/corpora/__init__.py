"""Sources of sentence pairs."""
