"""Recorder device: commands are written down in place of being run."""
