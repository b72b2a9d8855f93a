"""Text to ids and back, as operations of a graph."""
