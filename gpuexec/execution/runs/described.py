"""Inputs described by arrays or by shapes, for planning before a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import GivenInput, HostArray, InputReader, check_shapes, name_inputs
from gpuexec.execution.runs.lists import check_count
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.ports import ModelPort


def is_shape(item: object) -> bool:
    """Return whether an input is given as a shape: a tuple of whole numbers."""
    return isinstance(item, tuple) and all(
        isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in item
    )


def describe_inputs(input_reader: InputReader, inputs: object) -> tuple[dict[str, GivenInput], dict[str, object]]:
    """Return the inputs of a model to plan for, and those among them that have content.

    Args:
        input_reader: Of the model.
        inputs: One, a list in the model's order, or a mapping by name, of arrays or shapes. Inputs of fixed shape need
            not be given, nor do memories.

    Raises:
        InputError: One is missing, misspelt, or of the wrong dtype or shape.
    """
    model = input_reader.model
    if isinstance(inputs, (list, tuple)):
        # A tuple of whole numbers is a shape here, and no array of one axis.
        inputs = [inputs] if is_shape(inputs) else inputs
        if any(map(is_shape, inputs)):
            check_count(model.inputs, inputs)
            inputs = {port.name: item for port, item in zip(model.inputs, inputs, strict=False)}
    named = name_inputs(model, inputs)
    unknown = sorted(set(named) - {port.name for port in model.ports})
    if unknown:
        raise InputError(
            f"The model has no input {unknown[0]!r}; it has {', '.join(port.name for port in model.ports)}.",
            value=unknown[0],
        )
    # What memories hold is the state's to tell, unless it is given.
    ports = [port for port in model.ports if port in model.inputs or port.name in named]
    described = {port.name: _describe(input_reader, port, named.get(port.name)) for port in ports}
    check_shapes(model, {name: item.spec for name, item in described.items()})
    return described, {name: item for name, item in named.items() if item is not None and not is_shape(item)}


def _describe(input_reader: InputReader, port: ModelPort, item: Any) -> GivenInput:
    if item is None:
        return HostArray(TensorSpec(_find_fixed(input_reader.model.dims, port), port.spec.dtype))
    if is_shape(item):
        if any(extent < 0 for extent in item):
            raise InputError(f"Input {port.name!r} expects {port.spec}, got the shape {item}.", value=port.name)
        return HostArray(TensorSpec(tuple([int(extent) for extent in item]), port.spec.dtype))
    if isinstance(item, Tensor) or hasattr(item, "__cuda_array_interface__"):
        # Its content is of no use to planning, and need not be there.
        return HostArray(TensorSpec(tuple(item.shape), port.spec.dtype))
    return input_reader.accept_one(port, item, copy=True)


def _find_fixed(dims: Mapping[str, object], port: ModelPort) -> tuple[int, ...]:
    extents = [dims.get(dim) if isinstance(dim, str) else dim for dim in port.spec.dims or ()]
    fixed = tuple(extent for extent in extents if isinstance(extent, int))
    if port.spec.dims is None or len(fixed) != len(extents):
        raise InputError(
            f"Input {port.name!r} ({port.spec}) has free dimensions; give an array or a shape.", value=port.name
        )
    return fixed
