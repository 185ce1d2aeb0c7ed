"""Tensor: a result on a device, which may still be pending."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.devices.backend import BackendType
from gpuexec.devices.working_here import waking_deferred, working_here
from gpuexec.errors import InputError, PendingError
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.results import exchange
from gpuexec.execution.results.content import Content
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.ir.spec import TensorSpec, is_container
from gpuexec.system.pickling import not_picklable

Array = np.ndarray[Any, Any]


@not_picklable("Send an array: readback_and_clone(); Worker.copy_output copies on the device.")
class Tensor:
    """A dense tensor on a device: shape and dtype at once, content when its run is done.

    Strings, sequences, optionals and maps are Tensors too; they lie on the host, and reading one back gives an array of
    str, a list, what the optional holds or None, a dict.

    Reading is explicit: `readback_request` (poll or await), `readback_and_clone` (block), or
    `readback_and_clone_async`. A tensor that a Worker made speaks for its data until the Worker's next run; use after
    that raises StaleError, while requests made before keep what they read. `Worker.copy_output` makes a tensor that
    lasts.

    To know: `name`, `spec`, `shape`, `max_shape`, `dtype`, `nbytes`, `backend_type`. To wait: `is_done`, `wait`,
    `wait_async`. To write: `upload`. Arrays of other packages on the device: ``__dlpack__``,
    ``__cuda_array_interface__``. Elements (``tensor[i]``, ``np.asarray``) only where the content is on the host
    already. At the end: `close`.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     logits = worker.schedule(x).peek_output("logits")
        ...     logits.shape, str(logits.dtype), logits.readback_and_clone().argmax(axis=1).shape
        ((8, 10), 'float32', (8,))
    """

    def __init__(self, content: Content) -> None:
        self._content = content

    @property
    def name(self) -> str:
        """The output it is or was copied from."""
        return self._content.name

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype.

        Raises:
            PendingError: The shape depends on data that is not computed yet; `wait` and `wait_async` wait for it.
        """
        return self._content.spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.spec.shape

    @property
    def max_shape(self) -> tuple[int, ...]:
        """The largest extents the shape can have; the shape itself once it is known.

        Raises:
            PendingError: No bound is known.
        """
        return self._content.place.largest.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type; known before a shape that depends on data, if that has a bound."""
        return self._content.place.largest.dtype

    @property
    def ndim(self) -> int:
        """Number of axes; known as `dtype` is."""
        return self._content.place.largest.rank

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
        """Type of the backend that holds the content."""
        return self._content.backend.type

    def __repr__(self) -> str:
        state = "closed" if self._content.is_closed else "done" if self._content.fence.is_done() else "pending"
        place = self._content.place
        spec = place.spec if place.is_known else "shape not known yet"
        return f"Tensor({self.name!r}, {spec}, {self._content.backend.device.name}, {state})"

    def is_done(self) -> bool:
        """Return whether the run that makes the content is done; never waits."""
        self._content.backend.check_process()
        return self._content.fence.is_done()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the work that makes or uploads the content (not for a copy of it); False when the time ran out.

        Raises:
            GpuexecError: What the run raised.
        """
        self._content.check()
        return self._content.fence.synchronize(timeout_s)

    async def wait_async(self) -> Tensor:
        """Wait for the content (not for a copy of it) without blocking the loop; return this tensor."""
        self._content.check()
        await self._content.fence.wait(self._content.backend.completion)
        return self

    def readback_request(self, *, stream: object = None) -> ReadbackRequest:
        """Start a copy to the host; return at once. Until the content changes, further calls return the same one.

        Args:
            stream: A stream of the caller's: what is on it now may still change the bytes before they are read (so
                this is always a new request), and what is put on it afterwards comes after the copy.
        """
        return self._content.request_readback(self._open_caller(stream))

    def readback_and_clone(self, out: Array | None = None, *, stream: object = None) -> Array:
        """Block for the content as an array of the caller's own; see `ReadbackRequest.result` for strings, containers.

        Nothing is waited for where a request is done already.

        Args:
            out: An array to write to and return, of the same shape and dtype; None: a new one.
            stream: As for `readback_request`.

        Raises:
            InputError: ``out`` does not fit.
        """
        with working_here(), waking_deferred():
            return self._readback(out, self.readback_request(stream=stream))

    def _readback(self, out: Array | None, request: ReadbackRequest) -> Array:
        if out is None:
            return request.result()
        self._content.fence.wait_issued()
        if out.shape != self.shape or out.dtype != self.dtype:
            raise InputError(
                f"Tensor {self.name!r} is {self.spec}, `out` is {TensorSpec(out.shape, out.dtype)}.", value=self.name
            )
        np.copyto(out, request.view())
        return out

    async def readback_and_clone_async(self, *, stream: object = None) -> Array:
        """Wait for the content as an array of the caller's own, without blocking the loop."""
        return await self.readback_request(stream=stream)

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
        if self._content.place.is_object:
            raise InputError(f"Tensor {self.name!r} is {self.spec}; there is nothing to upload to.", value=self.name)
        source = np.ascontiguousarray(array)
        if source.dtype != self.dtype or source.size > self.size:
            raise InputError(
                f"Tensor {self.name!r} takes up to {self.size} elements of {self.dtype.name}, got"
                f" {source.size} of {source.dtype.name}.",
                value=self.name,
            )
        self._content.upload(source.reshape(-1).view(np.uint8), self._open_caller(stream))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The tensor for packages that read GPU memory: they wait for its ``stream``, and keep the bytes."""
        if self.backend_type is BackendType.CPU or self._content.place.is_object:
            raise AttributeError("a tensor on the CPU has no __cuda_array_interface__")
        if self._content.backend.device.target.has_textures:
            raise AttributeError("a tensor in a texture has no __cuda_array_interface__")
        self._content.export()
        return exchange.export_cuda(self._content)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return where the bytes are, as DLPack counts."""
        return exchange.dlpack_device(self._content.backend)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return the tensor as a DLPack capsule. The bytes are the consumer's, and its stream waits for the content.

        Raises:
            BufferError: A copy, or another device, is asked for, the tensor lies in a texture, or it is strings or a
                container.
            PendingError: A tensor on the CPU is not computed yet.
        """
        where = self.__dlpack_device__()
        if self._content.place.is_object:
            raise BufferError(f"Tensor {self.name!r} is {self.spec}, which DLPack does not know; read it back.")
        if copy or (dl_device is not None and tuple(dl_device) != where):
            raise BufferError(
                f"Tensor {self.name!r} is given where it lies and without a copy; use copy_output() for one."
            )
        if self.backend_type is BackendType.CPU:
            self._require_done()
        self._content.export()
        return exchange.export_dlpack(self._content, stream=stream, max_version=max_version)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        view = self._view_host()
        if copy is False and dtype is not None and np.dtype(dtype) != view.dtype:
            raise ValueError(f"Tensor {self.name!r} is {self.spec}; {np.dtype(dtype).name} needs a copy.")
        return view if copy is False else np.array(view, dtype=dtype)

    def __getitem__(self, key: Any) -> Any:
        return np.array(self._view_host()[key])[()]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __float__(self) -> float:
        return float(self._view_host().item())

    def __int__(self) -> int:
        return int(self._view_host().item())

    def __bool__(self) -> bool:
        return bool(self._view_host().item())

    def _open_caller(self, stream: object) -> CallerStream | None:
        return None if stream is None else CallerStream.of(self._content.backend, stream)

    def _view_host(self) -> Array:
        """Return the content where it is on the host and done; else refuse, and name the call to make."""
        self._require_done()
        if self._content.place.array is not None:
            if is_container(self.dtype):
                raise InputError(f"Tensor {self.name!r} is no array but a {self.spec}: call readback_and_clone().")
            return self._content.place.array
        array = self._content.region.memory.array
        assert array is not None
        start = self._content.region.offset
        return array[start : start + self.nbytes].view(self.dtype).reshape(self.shape)

    def _require_done(self) -> None:
        self._content.check()
        is_far = self.backend_type is not BackendType.CPU and not self._content.place.is_object
        if is_far or not self._content.fence.is_done():
            raise PendingError(
                f"Tensor {self.name!r} {'lies on a device' if is_far else 'is not computed yet'}: call"
                " readback_and_clone() to block for it, or await readback_and_clone_async().",
                value=self.name,
            )
        self._content.fence.synchronize()

    def close(self) -> None:
        """Release the content; a readback under way goes on. Twice is harmless."""
        self._content.close()

    def __enter__(self) -> Tensor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
