"""Nodes computed on the host, from content that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.apply import compute_arrays, infer_specs
from gpuexec.errors import GpuexecError, locate
from gpuexec.graphs import Node
from gpuexec.spec import TensorSpec

Array = np.ndarray[Any, Any]


def compute_node(node: Node, specs: Sequence[TensorSpec | None]) -> tuple[Array | None, ...]:
    """Compute a node from content that is known."""
    arrays = [None if spec is None or spec.value is None else spec.value.array for spec in specs]
    try:
        return compute_arrays(node.operator, arrays)
    except GpuexecError as error:
        raise locate(error, node, node.name) from None


def evaluate_node(node: Node, specs: Sequence[TensorSpec | None]) -> list[TensorSpec | None]:
    """Return the outputs of a node with their content: what follows from shapes alone, or what `compute` gives.

    Raises:
        GpuexecError: What the operator raised; names the node.
    """
    arrays = [None if spec is None or spec.value is None else spec.value.array for spec in specs]
    try:
        outputs = infer_specs(node.operator, specs)
        if all(spec.value is not None for spec in outputs):
            return list(outputs)
        computed = compute_arrays(node.operator, arrays)
    except GpuexecError as error:
        raise locate(error, node, node.name) from None
    return [None if array is None else TensorSpec.of(frozen(array)) for array in computed]


def frozen(array: Array) -> Array:
    """Return the array, closed to writing."""
    array = np.asarray(array)
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array
