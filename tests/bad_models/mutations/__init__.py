"""Mutations of models, registered in the table of `tests.bad_models.mutant` when imported."""

from tests.bad_models.mutations import attributes, contents, files, graphs, sizes, types

__all__ = ["attributes", "contents", "files", "graphs", "sizes", "types"]
