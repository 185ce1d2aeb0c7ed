"""Content of a tensor: bytes on a device, the fence of the work that makes them, and their lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ByteArray, Region, Stream, begin_host_write
from gpuexec.errors import ClosedError, as_failure
from gpuexec.execution.resources.caller_stream import CallerStream
from gpuexec.execution.resources.fence import Fence, when_all_issued
from gpuexec.execution.resources.frames import Lease
from gpuexec.execution.results.place import Place
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]
# From how many bytes on an output is handed over in place of a copy: what replaces it costs some ten microseconds.
HANDED_NBYTES = 1 << 20


@dataclass(slots=True, eq=False)
class Content:
    """Bytes that hold a dense tensor once ``fence`` is done; ``stream`` is the one whose work makes them.

    Writing them anew (`upload`, `copy_from`) waits on a stream for what made and what reads them, never in the caller.
    """

    name: str
    backend: Backend
    place: Place
    fence: Fence
    lease: Lease
    stream: Stream | None
    request: ReadbackRequest | None = None
    is_closed: bool = False

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype; raises what the run raised, or PendingError, where they are not known."""
        self._check_known()
        return self.place.spec

    @property
    def region(self) -> Region:
        """The bytes; raises what the run raised, or PendingError, where they are not known."""
        self._check_known()
        return self.place.region

    def _check_known(self) -> None:
        if not self.place.is_known and self.fence.failure is not None:
            raise self.fence.failure

    def wait_known(self, why: str) -> None:
        """Wait until spec and bytes are known; counted where that takes a wait."""
        if not self.place.is_known:
            self.lease.note_sync(self.name, why)
            self.fence.wait_issued()

    def check(self) -> None:
        """Check that the content can be used.

        Raises:
            ClosedError: The tensor, or the Worker that made it, is closed.
            StaleError: A later run has begun.
            StateError: The process was forked.
        """
        self.backend.check_process()
        if self.is_closed:
            raise ClosedError(f"Tensor {self.name!r} is closed.", value=self.name)
        self.lease.check(self.name)

    def request_readback(self, caller: CallerStream | None = None) -> ReadbackRequest:
        """Return the readback under way or done, or start one. One made before the tensor went stale still answers.

        In the order of a caller's stream it is always a new one: work there may have changed the bytes.
        """
        if caller is not None:
            self._reach_stream(self.fence, "read back in the order of a stream of the caller's")
        with self.lease.lock:
            self.backend.check_process()
            if caller is not None or self.request is None or self.request.is_cancelled():
                self.request = self._start_readback(caller)
            return self.request

    def read_privately(self) -> ReadbackRequest:
        """Return a readback that nobody else cancels: the one that is done, or a new one."""
        with self.lease.lock:
            self.check()
            return self.request if self.request is not None and self.is_read_back() else self._start_readback()

    def is_read_back(self) -> bool:
        """Return whether a readback was requested and is done."""
        return self.request is not None and not self.request.is_cancelled() and self.request.is_done()

    def export(self) -> None:
        """Make the bytes the tensor's for good, and see to it that they outlive the work that makes them."""
        self.check()
        self._reach_stream(self.fence, "exported before its run was on the stream")
        self.lease.export(self.name, self.region.memory)
        for event in self.fence.events:
            self.backend.deferred_free.hold(event, self.region.memory)

    def is_large(self) -> bool:
        """Return whether it is known to be so large, in memory of the host, that `hand_over` may give it."""
        has_kernels, place = self.backend.device.target.has_kernels, self.place
        return not has_kernels and place.is_known and not place.is_object and place.spec.nbytes >= HANDED_NBYTES

    def hand_over(self) -> Array | None:
        """Return what is done as an array over its own bytes, which no later run writes.

        None where they are not all of a block that a Worker made for it.
        """
        spec, region = self.place.spec, self.place.region
        memory, array = region.memory, region.memory.array
        is_whole = region.offset == 0 and memory.nbytes <= spec.nbytes + spec.nbytes // 4
        if array is None or not is_whole or not self.lease.hand_over(self.name, memory):
            return None
        return array[: spec.nbytes].view(spec.dtype).reshape(spec.shape)

    def upload(self, raw: ByteArray, caller: CallerStream | None = None) -> None:
        """Replace the first bytes by host bytes, which are copied before this returns."""
        if caller is not None:
            self._reach_stream(self.fence, "uploaded to in the order of a stream of the caller's")
        block = self.backend.staging.take(max(raw.nbytes, 1))
        assert block.array is not None
        source, address = block.array[: raw.nbytes], self.region.address
        begin_host_write(block, raw.nbytes)
        source[...] = raw

        def put(stream: Stream) -> None:
            if source.nbytes:
                stream.copy_to_device(address, source)

        with self.lease.lock:
            self.check()
            is_whole = raw.nbytes == self.spec.nbytes
            written = self._rewrite([] if is_whole else [self.fence], put, caller)
        written.when_issued(lambda: self.backend.staging.give_back(block, *written.events[:1]))
        if caller is not None:
            self._reach_stream(written, "written in the order of a stream of the caller's")

    def copy_from(self, source: Content, caller: CallerStream | None = None) -> None:
        """Replace the bytes by those of a tensor on the same device."""
        if caller is not None:
            source._reach_stream(source.fence, "copied in the order of a stream of the caller's")
        taken, region, deferred_free = source.region, self.region, self.backend.deferred_free
        reading = Fence()

        def put(stream: Stream) -> None:
            if taken.nbytes:
                stream.copy(region.address, taken.address, taken.nbytes)

        with source.lease.lock:
            source.check()
            try:
                source.lease.readers.add(reading)
                written = self._rewrite([source.fence], put, caller)
            except BaseException:
                # Who writes the bytes next must not wait for a reader that never comes.
                reading.issue(self.fence.events[:1])
                raise

        def release() -> None:
            for event in written.events[:1]:
                deferred_free.hold(event, taken.memory)
            reading.issue(written.events[:1])

        written.when_issued(release)
        if caller is not None:
            self._reach_stream(written, "written in the order of a stream of the caller's")

    def close(self) -> None:
        """Release the bytes where they are the tensor's own: freed once nothing on a stream uses them."""
        self.is_closed = True
        if self.lease.is_own:
            self.place = Place(self.name, self.place.largest, Region(_EmptyMemory(), 0, 0))

    def _reach_stream(self, work: Fence, why: str) -> None:
        """Wait until work is on its stream; counted where that takes a wait.

        Raises:
            GpuexecError: It will never be, or is to be put there by this thread.
        """
        if not work.is_issued():
            self.lease.note_sync(self.name, why)
        work.wait_issued()

    def _start_readback(self, caller: CallerStream | None = None) -> ReadbackRequest:
        self.check()
        return ReadbackRequest(self.backend, self.place, self.fence, self.lease, caller)

    def _rewrite(
        self, sources: list[Fence], put: Callable[[Stream], None], caller: CallerStream | None = None
    ) -> Fence:
        """Call ``put`` to issue work that writes the bytes, behind its sources and all present uses of the bytes.

        Returns:
            The fence of what is written; it becomes the content's.
        """
        backend, region, lease, written = self.backend, self.region, self.lease, Fence()
        # What made the bytes until now is one more that must be through with them.
        lease.readers.add(self.fence)
        if caller is not None:
            lease.readers.add(Fence.of(caller.reached))
        write = lease.readers.announce_write()
        written.stepper = next((fence.stepper for fence in [self.fence, *sources] if fence.stepper is not None), None)
        self.fence, self.request = written, None

        def issue() -> None:
            failure = next((fence.failure for fence in sources if fence.failure is not None), None)
            if failure is not None:
                written.issue((), failure)
                return
            try:
                with lease.transfers.lock:
                    stream = lease.transfers.open()
                    self.stream = stream
                    lease.readers.hold_back(stream, write)
                    events = [event for fence in sources for event in fence.events]
                    for each in events:
                        stream.wait(each)
                    put(stream)
                    event = backend.device.create_event()
                    stream.record(event)
                if caller is not None:
                    caller.order_after(event)
                backend.deferred_free.hold(event, region.memory)
                written.issue((event,))
            except BaseException as error:
                written.issue((), as_failure(error, f"The write of {self.name!r}"))
                if not isinstance(error, Exception):
                    lease.transfers.hold(backend.deferred_free, region.memory, put)
                    raise

        try:
            # A run that takes the frame writes the bytes too.
            lease.readers.add(written)
            when_all_issued([*sources, *lease.readers.list_unissued(write)], issue)
        except BaseException as error:
            written.issue((), as_failure(error, f"The write of {self.name!r}"))
            raise
        return written


class _EmptyMemory:
    """Memory of no bytes."""

    address = 0
    nbytes = 0
    array = None

    def free(self) -> None:
        """Do nothing."""
