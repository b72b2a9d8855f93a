"""Sentence pairs to planned, padded and shuffled batches of ids."""
