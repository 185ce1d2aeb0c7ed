"""Replay: recorded runs, put on streams again and again."""
