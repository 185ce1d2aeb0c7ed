"""A result that may not exist yet, on whatever device it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuexec.errors import InputError, PendingError, StateError
from gpuexec.memory import Lease
from gpuexec.readback import Fence, ReadbackRequest, wait_in_loop
from gpuexec.runtime.backend import Backend, BackendType
from gpuexec.runtime.device import Event, Region
from gpuexec.spec import TensorSpec

Array = np.ndarray[Any, Any]


class Tensor:
    """A dense tensor on a device: shape and dtype at once, content when its run is done.

    Reading is explicit: `readback_request` (poll or await), `readback_and_clone` (block), or `readback_and_clone_async`. A tensor
    that a Worker made is good until its memory is taken by a run that comes ``frames`` runs later; use after that raises
    StaleError. `Worker.copy_output` makes one that lasts.
    """

    def __init__(self, name: str, spec: TensorSpec, backend: Backend, region: Region, fence: Fence, lease: Lease | None) -> None:
        self.name, self.spec = name, spec
        self._backend, self._region, self._fence, self._lease = backend, region, fence, lease
        self._request: ReadbackRequest | None = None
        self._closed = False

    # ---- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.spec.shape

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The largest extents the shape can have once it is known; the shape itself where it is."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.spec.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.spec.size

    @property
    def nbytes(self) -> int:
        """Bytes of the content."""
        return self.spec.nbytes

    @property
    def backend_type(self) -> BackendType:
        """Where the content lies."""
        return self._backend.type

    @property
    def data_on_backend(self) -> DeviceData:
        """The device side of the tensor."""
        return DeviceData(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "done" if self._fence.is_done() else "pending"
        return f"Tensor({self.name!r}, {self.spec}, {self._backend.device.name}, {state})"

    # ---- waiting for the run that makes it

    def is_done(self) -> bool:
        """Return whether the run that makes the content is done; never waits."""
        return self._fence.is_done()

    async def ready(self) -> Tensor:
        """Wait for the content (not for a copy of it) without blocking the loop."""
        await wait_in_loop(self._notify)
        self._fence.synchronize()
        return self

    def _notify(self, callback: Callable[[Any], None]) -> None:
        def watch() -> None:
            if self._fence.events:
                self._backend.completion.call(self._fence.events[0], callback)
            else:
                callback(None)

        self._fence.when_issued(watch)

    # ---- reading back

    def readback_request(self) -> ReadbackRequest:
        """Start a copy to the host; return at once. A second call returns the same request."""
        if self._request is None or self._request.is_cancelled():
            self._check()
            guard = self._guard
            self._request = ReadbackRequest(self._backend, self.spec, self._region.address, self._fence, guard, self._region.memory)
        return self._request

    def is_readback_request_done(self) -> bool:
        """Return whether a readback was requested and is done; False where none was requested."""
        return self._request is not None and not self._request.is_cancelled() and self._request.is_done()

    def readback_and_clone(self) -> Array:
        """Return the content as an array of the caller's own. Blocks, unless a request is done already."""
        return self.readback_request().result()

    async def readback_and_clone_async(self) -> Array:
        """Return the content as an array of the caller's own, without blocking the loop."""
        return await self.readback_request()

    def download_to_array(self, out: Array | None = None) -> Array:
        """Return the content, written into ``out`` if given (same shape and dtype). Blocks like `readback_and_clone`."""
        if out is None:
            return self.readback_and_clone()
        if out.shape != self.shape or out.dtype != self.dtype:
            raise InputError(f"Tensor {self.name!r} is {self.spec}, `out` is {TensorSpec(out.shape, out.dtype)}.", value=self.name)
        np.copyto(out, self.readback_request().view())
        return out

    def download_to_native_array(self) -> Array:
        """Return the content as a read-only view of the pinned bytes it was read back to. Blocks like `readback_and_clone`."""
        return self.readback_request().view()

    # ---- arrays of other packages

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The tensor for packages that read GPU memory. Waits for the run: the interface has no way to pass an event."""
        if self._backend.type is BackendType.CPU:
            raise AttributeError("a tensor on the CPU has no __cuda_array_interface__")
        self._export()
        self._fence.synchronize()
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._region.address if self.nbytes else 0, False),
            "strides": None,
            "version": 3,
        }

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        view = self._host_view()
        return np.array(view, dtype=dtype, copy=True if copy is None else copy)

    def __getitem__(self, key: Any) -> Any:
        return self._host_view()[key]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __float__(self) -> float:
        return float(self._host_view().item())

    def __int__(self) -> int:
        return int(self._host_view().item())

    def __bool__(self) -> bool:
        return bool(self._host_view().item())

    def _host_view(self) -> Array:
        """Return the content where it is on the host and done; else refuse, and name the call to make."""
        self._check()
        array = self._region.memory.array
        if self._backend.type is not BackendType.CPU or array is None or not self._fence.is_done():
            what = "lies on a device" if self._backend.type is not BackendType.CPU else "is not computed yet"
            raise PendingError(
                f"Tensor {self.name!r} {what}: call readback_and_clone() to block for it, or await readback_and_clone_async().", value=self.name
            )
        self._fence.synchronize()
        start = self._region.offset
        return array[start : start + self.nbytes].view(self.dtype).reshape(self.shape)

    # ---- life

    def close(self) -> None:
        """Let go of the content; a readback under way goes on."""
        self._closed = True
        if self._lease is None:
            # The caller's own copy: freed once the memory object has no other holder.
            self._region = Region(_Nothing(), 0, 0)

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise StateError(f"Tensor {self.name!r} is closed.", value=self.name)
        self._backend.check_process()
        if self._lease is not None:
            self._lease.check(self.name)

    def _guard(self, event: Event) -> None:
        if self._lease is not None:
            self._lease.guard(event)

    def _export(self) -> None:
        self._check()
        if self._lease is not None:
            self._lease.export(self.name)


class _Nothing:
    """Memory of no bytes."""

    address = 0
    nbytes = 0
    array = None

    def free(self) -> None:
        """Do nothing."""


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
        return self._tensor._region.nbytes // self._tensor.dtype.itemsize

    def download(self) -> Array:
        """Block for the content as an array of the caller's own."""
        return self._tensor.readback_and_clone()

    async def download_async(self) -> Array:
        """Return the content without blocking the loop."""
        return await self._tensor.readback_and_clone_async()

    def upload(self, array: Array) -> None:
        """Replace the first elements by those of an array of the same dtype, in order; waits for the run that makes the tensor.

        Raises:
            InputError: The dtype differs, or there are more elements than `max_capacity`.
        """
        tensor = self._tensor
        tensor._check()
        source = np.ascontiguousarray(array)
        if source.dtype != tensor.dtype or source.size > self.max_capacity:
            raise InputError(
                f"Tensor {tensor.name!r} takes up to {self.max_capacity} elements of {tensor.dtype.name}, got {source.size} of {source.dtype.name}.",
                value=tensor.name,
            )
        stream = tensor._backend.readback_stream
        tensor._fence.synchronize()
        if source.nbytes:
            stream.copy_to_device(tensor._region.address, source.reshape(-1).view(np.uint8))
        event = tensor._backend.device.create_event()
        stream.record(event)
        tensor._guard(event)
        fence = Fence()
        fence.issue((event, *tensor._fence.events))
        tensor._fence, tensor._request = fence, None

    def readback_request(self) -> ReadbackRequest:
        """Start a copy to the host."""
        return self._tensor.readback_request()

    def is_readback_request_done(self) -> bool:
        """Return whether a readback was requested and is done."""
        return self._tensor.is_readback_request_done()

    def complete_all_pending_operations(self) -> None:
        """Wait for the work that makes or uploads the content; copies nothing."""
        self._tensor._fence.synchronize()
