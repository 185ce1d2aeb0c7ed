"""Version of this release, which program files are marked with."""

VERSION = "0.1.0"
