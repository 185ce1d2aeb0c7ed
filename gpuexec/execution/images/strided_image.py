"""Strided images on the host or on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices import dlpack
from gpuexec.devices.backend import Backend
from gpuexec.errors import InputError
from gpuexec.execution.results.arenas import is_on_host
from gpuexec.execution.results.tensor import Tensor
from gpuexec.ir.spec import TensorSpec, dtype_row, is_host_object

_LEGACY_STREAM = 1


@dataclass(frozen=True, slots=True)
class StridedImage:
    """An array and how it lies.

    Attributes:
        spec: Spec by its owner's metadata.
        source: A Worker's input: the array, or all memory it spans.
        taken: Shape of ``source``.
        strides: The array's, in elements of ``source``; None: the two are the same.
        start: Element of ``source`` that is the array's first.
    """

    spec: TensorSpec
    source: object
    taken: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    start: int = 0

    def as_single(self) -> StridedImage:
        """Return the only one of a batch."""
        strides = dlpack.dense_strides(self.spec.shape) if self.strides is None else self.strides
        spec = self.spec.with_shape(self.spec.shape[1:])
        return StridedImage(spec, self.source, self.taken, strides[1:], self.start)


class Span:
    """All memory between the first and the last element of an array on a device, as one dense axis."""

    def __init__(self, address: int, count: int, dtype: np.dtype[Any], stream: int | None, owner: object) -> None:
        self._owner = owner
        self.__cuda_array_interface__ = {
            "shape": (count,),
            "typestr": dtype.str,
            "data": (address, True),
            "strides": None,
            "stream": stream,
            "version": 3,
        }
        if hasattr(owner, "__cuda_stream__"):
            self.__cuda_stream__ = owner.__cuda_stream__


def look_at(item: Any, backend: Backend) -> StridedImage:
    """Return how an array lies: a Tensor, one of another package's on a device, or whatever NumPy reads.

    Raises:
        InputError: It can't be read as an array, or has strides that are no whole elements.
    """
    if isinstance(item, Tensor):
        return StridedImage(item.spec, item, item.shape)
    if is_on_host(item) or not backend.device.target.has_kernels:
        if not is_on_host(item):
            raise InputError(
                f"a {type(item).__name__} lies on a GPU, expected on the host: the work is done on the CPU."
            )
        array = _read_host(item)
        return StridedImage(TensorSpec(array.shape, array.dtype), array, array.shape)
    if hasattr(item, "__cuda_array_interface__"):
        given = item.__cuda_array_interface__
        spec = TensorSpec(tuple(given["shape"]), np.dtype(given["typestr"]))
        steps, size = given.get("strides"), spec.dtype.itemsize
        if steps is None:
            return StridedImage(spec, item, spec.shape)
        if any(step % size for step in steps):
            raise InputError(f"an image expects strides of whole elements, got {steps} bytes for {spec}.")
        strides, address, stream, owner = tuple(s // size for s in steps), given["data"][0], given.get("stream"), item
    else:
        taken = dlpack.take(item, _LEGACY_STREAM)
        spec, strides, address, stream, owner = taken.spec, taken.strides, taken.address, _LEGACY_STREAM, taken.owner
    dense = dlpack.dense_strides(spec.shape)
    if not spec.size or all(a == b for a, b, extent in zip(strides, dense, spec.shape, strict=True) if extent > 1):
        return StridedImage(spec, item, spec.shape)
    strides = tuple([stride if extent > 1 else 0 for stride, extent in zip(strides, spec.shape, strict=True)])
    reach = [(extent - 1) * stride for extent, stride in zip(spec.shape, strides, strict=True)]
    start, count = -sum(min(each, 0) for each in reach), sum(map(abs, reach)) + 1
    span = Span(address - start * spec.dtype.itemsize, count, spec.dtype, stream, owner)
    return StridedImage(spec, span, (count,), strides, start)


def _read_host(item: Any) -> np.ndarray[Any, Any]:
    try:
        if not isinstance(item, np.ndarray) and hasattr(item, "__dlpack_device__"):
            array = dlpack.view_host(dlpack.take(item))
        else:
            array = np.asarray(item)
        # Files often hold their numbers in the other order of bytes.
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if is_host_object(dtype_row(array.dtype).numpy):
            raise InputError("it has no numbers")
    except (TypeError, ValueError, BufferError, InputError) as error:
        raise InputError(f"a {type(item).__name__} can't be read as an image: {str(error).rstrip('.')}.") from error
    return array
