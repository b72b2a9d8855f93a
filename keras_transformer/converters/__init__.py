"""Weights in the formats of other systems."""
