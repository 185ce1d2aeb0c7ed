"""Operator calls: `infer` and `compute` with their errors converted to the package's own.

A spec that `infer` returns is checked to be of a tensor that can exist. All calls of `infer`, and of `compute` while
planning, go through here: an operator may be a user's own, and may fail on inputs it was not written for.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import DeviceError, GpuexecError, InputError, OutOfMemoryError
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import OPTIONAL, TensorSpec, check_size, is_container
from gpuexec.system.mapped import read_content
from gpuexec.system.threads import computing_here

Array = np.ndarray[Any, Any]


def infer_specs(operator: Operator, inputs: Sequence[TensorSpec | None]) -> tuple[TensorSpec, ...]:
    """Return the specs of an operator's outputs.

    Raises:
        InputError: The inputs don't fit the operator, or an output could not exist; the caller adds the node.
        NeedsHostValue: A shape depends on content that is not known.
    """
    if not operator.takes_containers:
        _refuse_containers(operator, inputs)
    try:
        specs = operator.infer(*inputs)
    except GpuexecError:
        raise
    except Exception as error:
        names = _find_parameters(operator, inputs)
        if names is not None:
            raise InputError(f"{operator.name} expects inputs {', '.join(names)}, got {len(inputs)}.") from None
        raise InputError(f"{operator.name} can't infer its outputs: {type(error).__name__}: {error}.") from error
    for spec in specs:
        check_size(spec.shape, spec.dtype)
    return specs


def _refuse_containers(operator: Operator, inputs: Sequence[TensorSpec | None]) -> None:
    for index, spec in enumerate(inputs):
        if spec is not None and is_container(spec.dtype):
            got = f"{'an' if spec.dtype == OPTIONAL else 'a'} {spec}"
            raise InputError(f"{operator.name} expects tensors, got {got} as input {index}.")


def _find_parameters(operator: Operator, inputs: Sequence[TensorSpec | None]) -> list[str] | None:
    """Return the names of the inputs that `infer` takes, optional ones in brackets, unless these fit in number."""
    signature = inspect.signature(operator.infer)
    try:
        signature.bind(*inputs)
    except TypeError:
        return [key if each.default is each.empty else f"[{key}]" for key, each in signature.parameters.items()]
    return None


def compute_arrays(operator: Operator, inputs: Sequence[Array | None]) -> tuple[Array | None, ...]:
    """Return an operator's outputs as fresh arrays, or views of its inputs.

    Content that lies in files is read first, unless the operator makes views, which stay views of the file.

    Raises:
        AccessError: The file of an input changed, or can't be read.
        GpuexecError: The exception it raised, converted; the caller adds the node.
    """
    first = inputs[0] if inputs else None
    viewed = int(operator.makes_views and first is not None and bool(first.flags.c_contiguous))
    given = [None if array is None else read_content(array) for array in inputs[viewed:]]
    try:
        with computing_here():
            return operator.compute(*inputs[:viewed], *given)
    except GpuexecError:
        raise
    except Exception as error:
        raise host_failure(operator.name, error) from error


def host_failure(where: str, error: Exception) -> GpuexecError:
    """Return the package's error for an exception raised by a function on the host; the caller chains the two."""
    text = f"{where} failed on the host: {type(error).__name__}: {error}."
    return OutOfMemoryError(text) if isinstance(error, MemoryError) else DeviceError(text)
