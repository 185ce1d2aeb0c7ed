"""Lists as inputs: several inputs in order, or one array, as NumPy takes nested lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.containers import check_no_objects
from gpuexec.ir.spec import DeclaredSpec, convert_numbers, is_container, name_dtype
from gpuexec.model.ports import ModelPort

Array = np.ndarray[Any, Any]
_LISTS = (list, tuple, range)


def split_inputs(ports: Sequence[ModelPort], inputs: object) -> Sequence[object]:
    """Return what is given without names as a sequence of inputs in the model's order.

    What is no list or tuple is the first input. A list is the inputs in order, except where the model has a single
    input of numbers or strings and no element of the list is an array: then the list is that input, ``[[1, 2], [3,
    4]]``. A list of one element that is nested one level deeper than the input has axes holds the input still. An
    empty list gives none. The elements of a list in a list, in turn, are one input's.

    Args:
        ports: The model's inputs.
        inputs: What a caller gave that is no mapping.
    """
    if not isinstance(inputs, (list, tuple)):
        return [inputs]
    if len(ports) != 1 or not inputs or is_container(ports[0].spec.dtype):
        return inputs
    if any(map(_is_array, inputs)) or (len(inputs) == 1 and inputs[0] is None):
        return inputs
    dims = ports[0].spec.dims
    is_around = len(inputs) == 1 and dims is not None and _count_levels(inputs) == len(dims) + 1
    return inputs if is_around else [inputs]


def check_count(ports: Sequence[ModelPort], items: Sequence[object]) -> None:
    """Check that there are no more inputs given than a model has.

    Raises:
        InputError: There are.
    """
    if len(items) > len(ports):
        cure = "; where the arrays of the list are one input, stack them: np.stack(arrays)" if len(ports) == 1 else ""
        raise InputError(f"The model has {len(ports)} input{'s'[: len(ports) != 1]}, got {len(items)}{cure}.")


def to_array(item: object, declared: DeclaredSpec) -> Array:
    """Return what is no array yet as one: a nested list of Python numbers in the declared dtype, as a number would be.

    Arrays and NumPy's scalars in the list keep their dtype.

    Raises:
        InputError: The list is ragged, holds what is no number, or a number that the dtype does not hold.
    """
    if not isinstance(item, _LISTS):
        array = np.asarray(item)
        check_no_objects(item, array, declared)
        return array
    _check_even(item)
    array = np.asarray(item)
    if _has_dtype(item):
        check_no_objects(item, array, declared)
        return array
    if declared.dtype.kind in "iu" and array.dtype.kind in "fO":
        array = _read_integers(item, array, declared.dtype)
    check_no_objects(item, array, declared)
    array = convert_numbers(array, declared.dtype)
    if array.dtype != declared.dtype:
        wanted, got = name_dtype(declared.dtype), name_dtype(array.dtype)
        raise InputError(f"a list of {got} is no {wanted}; give np.array(..., np.{wanted}).")
    return array


def _is_array(item: object) -> bool:
    """Return whether an element of a list is an array of any package or a Tensor; a scalar of NumPy is a number."""
    is_array = hasattr(item, "dtype") or hasattr(item, "__dlpack__") or hasattr(item, "__cuda_array_interface__")
    return is_array and not isinstance(item, np.generic)


def _count_levels(item: Any) -> int:
    """Return the number of axes of a nested list, by its first elements."""
    levels = 0
    while isinstance(item, _LISTS):
        levels += 1
        item = item[0] if item else None
    return levels + int(getattr(item, "ndim", 0))


def _has_dtype(item: Any) -> bool:
    return any(map(_has_dtype, item)) if isinstance(item, _LISTS) else hasattr(item, "dtype")


def _read_integers(item: object, array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a list of integers, of which NumPy makes floats or objects where no one type of its holds them all."""
    numbers = np.asarray(item, object)
    if not all(isinstance(number, int) for number in numbers.flat):
        return array
    info = np.iinfo(dtype)
    for number in numbers.flat:
        if not info.min <= number <= info.max:
            raise InputError(f"expected {dtype.name}, got {number}, which is beyond that.")
    return numbers.astype(dtype)


def _check_even(item: Any) -> None:
    """Check that the lists of each level are of one length.

    Raises:
        InputError: Two are not; names both by their indices.
    """
    shapes: list[tuple[str, int | None]] = []  # by level: the first list there, and its length, None for a number
    stack: list[tuple[Any, int, tuple[int, ...]]] = [(item, 0, ())]
    while stack:
        each, level, index = stack.pop()
        is_list = isinstance(each, _LISTS)
        if not is_list and hasattr(each, "shape"):
            continue  # NumPy says what does not fit
        here, length = "".join(f"[{place}]" for place in index), len(each) if is_list else None
        if level == len(shapes):
            shapes.append((here, length))
        first, expected = shapes[level]
        if length != expected:
            one, other = (f"{'a number' if n is None else f'{n} long'}" for n in (expected, length))
            raise InputError(f"the nested list is ragged: element {first} is {one}, {here} is {other}.")
        if is_list:
            stack.extend((inner, level + 1, (*index, place)) for place, inner in reversed(list(enumerate(each))))
