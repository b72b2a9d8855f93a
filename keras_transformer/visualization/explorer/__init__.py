"""A local page on which a model's translations are taken apart."""
