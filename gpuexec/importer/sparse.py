"""Conversion of a SparseTensorProto to a dense NumPy array."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx

from gpuexec.errors import InputError, ModelError
from gpuexec.importer.origin import Origin
from gpuexec.importer.tensors import UnsupportedFormError, to_array
from gpuexec.ir.spec import check_size, is_host_object
from gpuexec.system.mapped import read_content

Array = np.ndarray[Any, Any]
# Size limit of a dense tensor in a file of its own, which bounds the shape that a file may claim.
_MAX_NBYTES = 2**31


def to_dense(sparse: onnx.SparseTensorProto, origin: Origin, what: str) -> Array:
    """Return the content of a sparse tensor, read-only.

    Args:
        sparse: Its values, and where they stand: ``[n]`` places of the flat tensor, or ``[n, rank]`` of each axis.
        origin: Where content lies that is elsewhere.
        what: The tensor in words, for messages.

    Raises:
        ModelError: Values, places and shape do not fit together.
        UnsupportedFormError: The element type is not supported, or the dense tensor would be too large.
    """
    name = sparse.values.name
    values = read_content(to_array(sparse.values, origin, f"{what} (its values)"))
    indices = read_content(to_array(sparse.indices, origin, f"{what} (its indices)"))
    shape = tuple(sparse.dims)
    try:
        check_size(shape, values.dtype)
    except InputError as error:
        raise ModelError(f"{what}: {error}", value=name) from None
    if is_host_object(values.dtype):
        raise UnsupportedFormError("sparse tensor of strings")
    if prod(shape) * values.dtype.itemsize > _MAX_NBYTES:
        raise UnsupportedFormError(f"sparse tensor of {prod(shape)} elements when dense")
    places = _find_places(indices, values, shape, what, name)
    if len(np.unique(places)) != len(places):
        raise ModelError(f"{what}: two of its values stand in the same place.", value=name)
    dense = np.zeros(prod(shape), values.dtype)
    dense[places] = values
    dense = dense.reshape(shape)
    dense.flags.writeable = False
    return dense


def _find_places(indices: Array, values: Array, shape: tuple[int, ...], what: str, name: str) -> Array:
    """Return the place of each value in the flat tensor."""
    count = values.size
    if values.ndim != 1 or indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{what}: expected values [n] and int64 indices [n] or [n,{len(shape)}], got {values.dtype.name}"
            f"{list(values.shape)} and {indices.dtype.name}{list(indices.shape)}.",
            value=name,
        )
    ends = np.array(shape if indices.ndim == 2 else [prod(shape)], np.int64)
    if ((indices < 0) | (indices >= ends)).any():
        raise ModelError(f"{what}: an index lies outside of the shape {list(shape)}.", value=name)
    if indices.ndim == 1:
        return indices
    return np.ravel_multi_index(tuple(indices.T), shape) if count and shape else np.zeros(count, np.int64)
