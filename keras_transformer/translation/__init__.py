"""Text to text: tokenizers, model and decoding together; scores, alignments and attention maps."""
