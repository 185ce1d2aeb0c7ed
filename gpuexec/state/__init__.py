"""What outlives a run: the content of memories."""
