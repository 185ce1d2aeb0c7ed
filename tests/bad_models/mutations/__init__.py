"""Ways to spoil a model; importing them enters each in the table of `tests.bad_models.mutant`."""

from tests.bad_models.mutations import attributes, contents, files, graphs, sizes, types

__all__ = ["attributes", "contents", "files", "graphs", "sizes", "types"]
