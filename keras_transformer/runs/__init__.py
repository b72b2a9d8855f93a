"""A training's directory: what is kept, resumed, averaged and loaded."""
