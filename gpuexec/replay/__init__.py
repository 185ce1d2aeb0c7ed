"""Runs recorded to be put on streams again and again."""
