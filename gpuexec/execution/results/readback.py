"""Readback without blocking: a copy into pinned memory, and an event for its end."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Event, MemoryBlock, Region, begin_host_read
from gpuexec.errors import CancelledError, PendingError, as_failure
from gpuexec.execution.profiling.log import timing
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.fence import Fence, wait_in_loop
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.results.place import Place
from gpuexec.ir.containers import unpack
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.pickling import not_picklable

Array = np.ndarray[Any, Any]
_log = logging.getLogger("gpuexec")


@not_picklable("Send the array: result().")
class ReadbackRequest:
    """A copy to the host in flight. Poll `is_done`, await it, or wait in `result`: as often as wanted, from any thread.

    Made by `Tensor.readback_request`. The device data stays where it is; the request keeps what was read, whatever
    becomes of the tensor and its Worker.

    Args:
        source: Of the work that makes the data.
        caller: The stream in whose order the data is read.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     request = worker.schedule(x).peek_output("logits").readback_request()
        ...     request.add_done_callback(lambda done: None)
        ...     logits = request.result() if request.is_done() or request.wait() else None
        >>> logits.shape
        (8, 10)
    """

    def __init__(
        self, backend: Backend, place: Place, source: Fence, lease: Lease, caller: CallerStream | None = None
    ) -> None:
        self._backend, self._source, self._lease = backend, source, lease
        self._caller = caller
        self._place = place
        self._fence = Fence()
        self._fence.stepper = source.stepper
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._block: MemoryBlock | None = None
        self._callbacks: list[Callable[[ReadbackRequest], None]] = []
        self._is_watched = False
        # Whether whoever waited for it last was interrupted, and nobody asked since.
        self._was_left = False
        try:
            lease.readers.add(self._fence)
            source.when_issued(self._start, self._is_wanted)
        except BaseException as error:
            # Who writes the bytes next must not wait for a reader that never comes.
            self._fence.issue((), as_failure(error, f"The readback of {place.name!r}"))
            raise

    def __repr__(self) -> str:
        state = "cancelled" if self._is_cancelled else "done" if self._fence.is_done() else "pending"
        return f"ReadbackRequest({self._place.name!r}, {state})"

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype of the data.

        Raises:
            PendingError: The shape depends on data that is not computed yet.
        """
        return self._place.spec

    def is_done(self) -> bool:
        """Return whether the data is on the host, or never will be; never waits."""
        self._backend.check_process()
        return self._is_cancelled or self._fence.is_done()

    def is_cancelled(self) -> bool:
        """Return whether `cancel` came before the data."""
        return self._is_cancelled

    def cancel(self) -> bool:
        """Cancel the request; False if it is done already. A copy under way ends unseen."""
        self._backend.check_process()
        with self._lock:
            if self._is_cancelled or self._fence.is_done():
                return False
            self._is_cancelled = True
        self._resolve()
        return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until done; False when the time ran out.

        Raises:
            CancelledError: The request was cancelled.
            GpuexecError: What the run raised.
        """
        self._backend.check_process()
        if self._is_cancelled:
            raise CancelledError("The readback was cancelled.")
        self._was_left = True
        is_done = self._fence.synchronize(timeout_s)
        self._was_left = False
        return is_done

    def result(self, timeout_s: float | None = None) -> Array:
        """Return the data as an array of the caller's own, waiting for it if need be.

        Strings come as an array of str, a sequence as a list, an optional as what it holds or None, a map as a dict.

        Raises:
            PendingError: The time ran out.
            CancelledError: The request was cancelled.
            GpuexecError: What the run raised.
        """
        view = self.view(timeout_s)
        if self._place.is_object:
            unpacked: Array = unpack(view)
            return unpacked
        return view.copy()

    def view(self, timeout_s: float | None = None) -> Array:
        """Return the data as a read-only view of the pinned bytes, waiting for it if need be; the view keeps them.

        Of strings it is the array of str itself, of a container the array that stands for it (`gpuexec.ir.containers`).
        """
        if not self.wait(timeout_s):
            raise PendingError(f"The readback is not done after {timeout_s} s.")
        if self._place.array is not None:
            return self._place.array
        if self._block is not None:
            begin_host_read(self._block, self.spec.nbytes)
        return np.asarray(_Pinned(self)).view(self.spec.dtype).reshape(self.spec.shape)

    def add_done_callback(self, callback: Callable[[ReadbackRequest], None]) -> None:
        """Call back once done or cancelled, from the completion thread; at once if that is so now. Keep it short."""
        with self._lock:
            is_over = self._is_cancelled or self._fence.is_done()
            if not is_over:
                self._callbacks.append(callback)
            is_first, self._is_watched = not (is_over or self._is_watched), self._is_watched or not is_over
        if is_over:
            callback(self)
        elif is_first:
            self._fence.when_done(self._backend.completion, self._resolve)

    def __await__(self) -> Generator[Any, None, Array]:
        if not self.is_done():
            yield from wait_in_loop(lambda notify: self.add_done_callback(lambda _: notify())).__await__()
        return self.result()

    def _is_wanted(self) -> bool:
        """Return whether somebody waits for it, or may yet: it was asked for, and no wait for it was given up."""
        return not self._is_cancelled and (not self._was_left or self._fence.is_wanted())

    def _start(self) -> None:
        """Put the copy on the readback stream, behind the work that makes the data."""
        if self._source.failure is not None or self._is_cancelled:
            self._fence.issue((), self._source.failure)
            return
        if self._place.is_object:
            place, self._place = self._place, Place(self._place.name, self._place.spec)
            self._place.array = place.array
            self._fence.issue(self._source.events)
            return
        try:
            region = self._place.region
            # What is read stays the request's own, whatever becomes of the tensor.
            self._place = Place(self._place.name, self._place.spec)
            self._copy(region)
        except BaseException as error:
            self._fence.issue((), as_failure(error, f"The readback of {self._place.name!r}"))
            if not isinstance(error, Exception):
                raise

    def _copy(self, region: Region) -> None:
        backend, nbytes = self._backend, self.spec.nbytes
        block = self._block = backend.staging.take(max(nbytes, 1))
        event = backend.device.create_event()
        caller, self._caller = self._caller, None
        try:
            self._put(region, block, event, caller)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._lease.transfers.hold(backend.deferred_free, region.memory, block)
            raise
        # The block is used again when nobody holds this request or a view of it, and the copy is over.
        weakref.finalize(self, backend.staging.give_back, block, event).atexit = False
        self._fence.issue((event,))

    def _put(self, region: Region, block: MemoryBlock, event: Event, caller: CallerStream | None) -> None:
        assert block.array is not None
        nbytes = self.spec.nbytes
        with self._lease.transfers.lock:
            stream = self._lease.transfers.open()
            if caller is not None:
                caller.order_before(stream)
            for each in self._source.events:
                stream.wait(each)
            if nbytes:
                with timing(self._lease.profile, stream, "readback", self._place.name, nbytes):
                    stream.copy_to_host(block.array[:nbytes], region.address)
            stream.record(event)
        if caller is not None:
            caller.order_after(event)
        self._backend.deferred_free.hold(event, region.memory)

    def _resolve(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                _log.exception("A callback of %r failed.", self)


class _Pinned:
    """The pinned bytes of a request as NumPy sees them; an array made of it keeps the request."""

    def __init__(self, request: ReadbackRequest) -> None:
        assert request._block is not None
        self.request = request
        self.__array_interface__ = {
            "shape": (request.spec.nbytes,),
            "typestr": "|u1",
            "data": (request._block.address, True),
            "version": 3,
        }
