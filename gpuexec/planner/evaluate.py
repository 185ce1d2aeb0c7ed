"""Evaluation of nodes on the host, from known content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, NeedsHostValue, PlanError, locate
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.graphs import Node
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.planner.symbolic_content import compute_symbols, has_symbols
from gpuexec.system.mapped import read_small_content

Array = np.ndarray[Any, Any]


def compute_node(node: Node, specs: Sequence[TensorSpec | None]) -> tuple[Array | None, ...]:
    """Compute a node from known content."""
    if has_symbols(specs):
        symbols = compute_symbols(node, specs)
        if symbols is not None:
            return symbols
    arrays = [None if spec is None or spec.value is None else spec.value.array for spec in specs]
    try:
        return compute_arrays(node.operator, arrays)
    except GpuexecError as error:
        raise locate(error, node, node.name) from None


def evaluate_node(node: Node, specs: Sequence[TensorSpec | None]) -> list[TensorSpec | None]:
    """Return the outputs of a node with their content, from shapes alone or from `compute`.

    Raises:
        GpuexecError: The operator's error, with the node's name.
    """
    arrays = [None if spec is None or spec.value is None else spec.value.array for spec in specs]
    try:
        outputs = _infer(node.operator, specs)
        if outputs is not None and all(spec.value is not None for spec in outputs):
            return list(outputs)
        computed = compute_arrays(node.operator, arrays)
        _check_types(outputs or (), computed)
    except GpuexecError as error:
        raise locate(error, node, node.name) from None
    return [None if array is None else TensorSpec.of(frozen(array)) for array in computed]


def _infer(operator: Operator, specs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...] | None:
    """Return the specs of an operator's outputs; None where only the result of `compute` has them.

    One that the host alone computes is asked without content: else it would, for the shape, do all of its work twice.
    """
    if operator.lower is not None or not operator.host_reason:
        return infer_specs(operator, specs)
    try:
        return infer_specs(operator, [None if spec is None else TensorSpec(spec.shape, spec.dtype) for spec in specs])
    except NeedsHostValue:
        return None


def _check_types(specs: Sequence[TensorSpec], arrays: Sequence[Array | None]) -> None:
    """Check that results of `compute` have the inferred types."""
    for spec, array in zip(specs, arrays, strict=False):
        if array is not None and array.dtype != spec.dtype:
            raise PlanError(f"expected {spec} to be computed, got {array.dtype}{list(array.shape)}.")


def frozen(array: Array) -> Array:
    """Return the array, closed to writing."""
    if array.dtype == STRING:
        return array  # symbolic numbers, which a trace alone holds, or strings
    array = read_small_content(np.asarray(array))
    if array.flags.writeable:
        array = array.copy() if array.base is not None else array
        array.flags.writeable = False
    return array
