"""The Transformer's layers: Keras 3 only, for any backend."""
