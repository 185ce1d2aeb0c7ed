"""State of a model between runs: the content of its memories."""
