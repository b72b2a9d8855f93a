"""A local web page that shows how a model translates."""
