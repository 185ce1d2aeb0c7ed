"""The device side of a tensor, by the names Sentis uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.results.readback import ReadbackRequest
from gpuexec.runtime.backend import BackendType

if TYPE_CHECKING:
    from gpuexec.results.tensor import Tensor

Array = np.ndarray[Any, Any]


class DeviceData:
    """A tensor's bytes on its device, by the names Sentis uses."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def backend_type(self) -> BackendType:
        """Where the bytes lie."""
        return self._tensor.backend_type

    @property
    def max_capacity(self) -> int:
        """Elements the memory has room for."""
        return self._tensor._content.region.nbytes // self._tensor.dtype.itemsize

    def download(self, *, stream: object = None) -> Array:
        """Block for the content as an array of the caller's own."""
        return self._tensor.readback_and_clone(stream=stream)

    async def download_async(self, *, stream: object = None) -> Array:
        """Return the content without blocking the loop."""
        return await self._tensor.readback_and_clone_async(stream=stream)

    def upload(self, array: Array, *, stream: object = None) -> None:
        """Replace the first elements by those of an array of the same dtype, behind all that reads or makes them.

        The array is copied before this returns; nothing is waited for.

        Args:
            array: Of the tensor's dtype.
            stream: A stream of the caller's: the upload comes after what is on it now, and what is put on it
                afterwards comes after the upload.

        Raises:
            InputError: The dtype differs, or there are more elements than the tensor has.
        """
        tensor = self._tensor
        if tensor._content.place.is_object:
            raise InputError(
                f"Tensor {tensor.name!r} is {tensor.spec}; there is nothing to upload to.", value=tensor.name
            )
        source = np.ascontiguousarray(array)
        if source.dtype != tensor.dtype or source.size > tensor.size:
            raise InputError(
                f"Tensor {tensor.name!r} takes up to {tensor.size} elements of {tensor.dtype.name}, got"
                f" {source.size} of {source.dtype.name}.",
                value=tensor.name,
            )
        tensor._content.upload(source.reshape(-1).view(np.uint8), tensor._open_caller(stream))

    def readback_request(self, *, stream: object = None) -> ReadbackRequest:
        """Start a copy to the host."""
        return self._tensor.readback_request(stream=stream)

    def is_readback_request_done(self) -> bool:
        """Return whether a readback was requested and is done."""
        return self._tensor.is_readback_request_done()

    def complete_all_pending_operations(self) -> None:
        """Wait for the work that makes or uploads the content; copies nothing."""
        self._tensor._content.check()
        self._tensor._content.fence.synchronize()
