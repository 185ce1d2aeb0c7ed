"""The release this is, as programs are marked with it."""

VERSION = "0.1.0"
