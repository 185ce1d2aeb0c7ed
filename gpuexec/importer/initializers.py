"""Initializers of an ONNX file by name, read without its nodes."""

from __future__ import annotations

from pathlib import Path

from gpuexec.errors import ModelError
from gpuexec.importer.read import open_model
from gpuexec.importer.tensors import UnsupportedFormError, to_array
from gpuexec.ir.graphs import Array


def read_initializers(path: Path) -> dict[str, Array]:
    """Return the initializers of a model's graph by name; those of types that have no NumPy form here are left out.

    Raises:
        ModelError: The file can't be read, or a name comes twice.
    """
    model, origin, where = open_model(path)
    arrays: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.name in arrays:
            raise ModelError(f"{where}: two initializers are called {tensor.name!r}.", value=tensor.name)
        try:
            arrays[tensor.name] = to_array(tensor, origin, f"Initializer %{tensor.name}")
        except UnsupportedFormError:
            continue
    return arrays
