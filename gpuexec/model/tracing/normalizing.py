"""Normalization layers, channels first."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import as_float, as_symbolic
from gpuexec.model.tracing.shaping import extent, find_axis
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "local_response_norm", "rms_norm"]


def batch_norm(x: Any, scale: Any, bias: Any, mean: Any, variance: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize each channel by a mean and a variance that are given."""
    array = as_float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias, mean, variance)]
    return array._tracer.apply("BatchNormalization", [array, *rows], attributes={"epsilon": float(epsilon)})[0]


def instance_norm(x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize each channel of each item by its own mean and variance."""
    array = as_float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    return array._tracer.apply("InstanceNormalization", [array, *rows], attributes={"epsilon": float(epsilon)})[0]


def group_norm(x: Any, num_groups: int, scale: Any, bias: Any, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize groups of channels of each item by their mean and variance."""
    array = as_float(x)
    rows = [as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    attributes = {"num_groups": num_groups, "epsilon": float(epsilon)}
    return array._tracer.apply("GroupNormalization", [array, *rows], attributes=attributes)[0]


def layer_norm(x: Any, scale: Any = None, bias: Any = None, axis: int = -1, epsilon: float = 1e-5) -> SymbolicArray:
    """Normalize the axes from ``axis`` on by their mean and variance."""
    array = as_float(x)
    axis = find_axis(array, axis)
    if scale is None:
        scale = np.ones([_fixed(array, i, "layer_norm") for i in range(axis, array.ndim)])
    rows = [None if each is None else as_symbolic(each, array.dtype, array._tracer) for each in (scale, bias)]
    attributes = {"axis": axis, "epsilon": float(epsilon)}
    return array._tracer.apply("LayerNormalization", [array, *rows], attributes=attributes)[0]


def rms_norm(x: Any, scale: Any = None, axis: int = -1, epsilon: float = 1e-5) -> SymbolicArray:
    """Divide the axes from ``axis`` on by the root of their mean square."""
    array = as_float(x)
    axis = find_axis(array, axis)
    if scale is None:
        scale = np.ones([_fixed(array, i, "rms_norm") for i in range(axis, array.ndim)])
    attributes = {"axis": axis, "epsilon": float(epsilon)}
    weight = as_symbolic(scale, array.dtype, array._tracer)
    return array._tracer.apply("RMSNormalization", [array, weight], attributes=attributes)[0]


def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> SymbolicArray:
    """Normalize each element by the squares of channels beside its own."""
    array = as_float(x)
    return add_node("LRN", array, size=size, alpha=float(alpha), beta=float(beta), bias=float(k))


def _fixed(array: SymbolicArray, axis: int, what: str) -> int:
    length = extent(array, axis)
    if not isinstance(length, int):
        raise InputError(f"{what} of {array!r} expects a scale, since its extent {axis} is free.")
    return length
