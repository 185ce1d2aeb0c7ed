"""Mutations of models, registered in the table of `tests.system.bad_models.mutant` when imported."""

from tests.system.bad_models.mutations import attributes, contents, files, graphs, sizes, types

__all__ = ["attributes", "contents", "files", "graphs", "sizes", "types"]
