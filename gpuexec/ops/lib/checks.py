"""Checks of operator inputs: presence, element type, host values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import SymbolicValue, TensorSpec, dtype_row


def check_dtype(name: str, spec: TensorSpec | None, dtypes: Sequence[np.dtype[Any]], role: str = "input") -> TensorSpec:
    """Return the spec, which is there and of one of the types.

    Raises:
        InputError: It is absent, or of another type.
    """
    if spec is None:
        raise InputError(f"{name} lacks its {role}.")
    if spec.dtype not in dtypes:
        raise InputError(f"{name} expects {role} of type {', '.join(dtype_row(d).name for d in dtypes)}, got {spec}.")
    return spec


def check_computed(name: str, spec: TensorSpec, role: str = "input") -> None:
    """Check that elements of an input can be computed with, and not moved and converted alone.

    Raises:
        InputError: They can't: the type is narrow.
    """
    if dtype_row(spec.dtype).is_narrow:
        raise InputError(f"{name} computes with elements of its {role}, got {spec}; put a Cast to float32 before it.")


def require_ints(spec: TensorSpec | None, role: str, index: int) -> tuple[int, ...]:
    """Return the content of an integer input (axes, starts, a shape) that shapes depend on, as plain ints.

    Raises:
        InputError: The input is not a list of integers.
        NeedsHostValue: The content is not known on the host.
    """
    if spec is not None and (spec.rank > 1 or spec.dtype.kind not in "iu"):
        raise InputError(f"input {index} ({role}) must be a one-dimensional integer tensor, got {spec}.")
    if spec is not None and isinstance(spec.value, SymbolicValue):
        return tuple(spec.value.symbols.reshape(-1).tolist())
    return tuple(require_const(spec, role, index).reshape(-1).tolist())


def require_floats(spec: TensorSpec | None, role: str, index: int) -> tuple[float, ...]:
    """Return the content of a floating-point input (scales, a region) that shapes depend on, as plain floats.

    Raises:
        InputError: The input is not a list of finite floats.
        NeedsHostValue: The content is not known on the host.
    """
    if spec is not None and (spec.rank > 1 or dtype_row(spec.dtype).kind != "float"):
        raise InputError(f"input {index} ({role}) must be a one-dimensional tensor of floats, got {spec}.")
    numbers = tuple(map(float, require_const(spec, role, index).reshape(-1)))
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"input {index} ({role}) must hold finite numbers, got {list(numbers)}.")
    return numbers


def require_scalar(spec: TensorSpec | None, role: str, index: int) -> Array:
    """Return the content of an input of one element that shapes or launches depend on, as an array of rank 0.

    Raises:
        InputError: The input holds another number of elements.
        NeedsHostValue: The content is not known on the host.
    """
    if spec is not None and spec.size != 1:
        raise InputError(f"input {index} ({role}) must hold one element, got {spec}.")
    return require_const(spec, role, index).reshape(())
