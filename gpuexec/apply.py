"""Applying operators: what their methods raise is an error of ours, and what `infer` gives can exist.

Everybody who calls `infer`, or `compute` while planning, does it here: an operator may be a user's own, and a model
may give it what nobody thought of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import DeviceError, GpuexecError, InputError, OutOfMemoryError
from gpuexec.operator import Operator
from gpuexec.spec import TensorSpec, check_size

Array = np.ndarray[Any, Any]


def infer_specs(operator: Operator, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    """Return the specs of an operator's outputs.

    Raises:
        InputError: The inputs don't fit the operator, or an output could not exist; the caller adds the node.
        NeedsHostValue: A shape depends on content that is not known.
    """
    try:
        specs = operator.infer(*inputs)
    except GpuexecError:
        raise
    except Exception as error:
        raise InputError(f"{operator.name} can't infer its outputs: {type(error).__name__}: {error}.") from error
    for spec in specs:
        check_size(spec.shape, spec.dtype)
    return specs


def compute_arrays(operator: Operator, inputs: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Return an operator's outputs as fresh arrays.

    Raises:
        GpuexecError: What it raised; the caller adds the node.
    """
    try:
        return operator.compute(*inputs)
    except GpuexecError:
        raise
    except Exception as error:
        raise host_failure(operator.name, error) from error


def host_failure(where: str, error: Exception) -> GpuexecError:
    """Return an error of ours for what a function on the host raised; the caller chains the two."""
    text = f"{where} failed on the host: {type(error).__name__}: {error}."
    return OutOfMemoryError(text) if isinstance(error, MemoryError) else DeviceError(text)
