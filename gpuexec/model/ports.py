"""Inputs and outputs of a model, as it declares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuexec.errors import ModelError
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import UNKNOWN, DeclaredSpec, name_dtype
from gpuexec.system.records import Record


@dataclass(frozen=True, slots=True)
class ModelPort(Record):
    """An input or output of a model: name, dtype, and dims that may be free.

    An output whose type neither the model declares nor inference finds has the dtype ``gpuexec.ir.spec.UNKNOWN``: the
    first run shows it.
    """

    name: str
    spec: DeclaredSpec

    def __str__(self) -> str:
        return f"{self.name}: {self.spec}"

    def to_dict(self) -> dict[str, Any]:
        """Return name, type and shape as JSON data; a free extent is its name or None, an unknown shape None."""
        dims = self.spec.dims
        shape = None if dims is None else list(dims)
        return {"name": self.name, "type": str(self.spec), "dtype": name_dtype(self.spec.dtype), "shape": shape}


def make_input(value: Value) -> ModelPort:
    """Return an input of a graph as callers see it.

    Raises:
        ModelError: The model does not declare its type.
    """
    if value.declared is None:
        raise ModelError(f"{value} is an input whose type the model does not declare.", value=value.name)
    return ModelPort(value.name, value.declared)


def make_output(value: Value) -> ModelPort:
    """Return an output of a graph as callers see it."""
    return ModelPort(value.name, value.declared or DeclaredSpec(UNKNOWN, None))
