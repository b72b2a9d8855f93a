"""Text to text: tokenizers, a model and decoding joined; and what a model says of given pairs."""
