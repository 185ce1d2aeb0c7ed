"""The frames a Worker's runs rotate through, and how long what a run made speaks for its data."""

from __future__ import annotations

import threading

from gpuexec.errors import ClosedError, StaleError
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Event, Memory, Region, Stream


class Readers:
    """Who still reads some bytes: events that a stream waits for before the bytes are written again."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        """Add a reader, done when the event is."""
        with self._lock:
            self._events = [each for each in self._events if not each.is_done()]
            self._events.append(event)

    def hold_back(self, stream: Stream) -> None:
        """Have a stream wait for the readers; the caller does not."""
        with self._lock:
            events, self._events = self._events, []
        waiting = [event for event in events if not event.is_done()]
        for event in waiting:
            stream.wait(event)
        if waiting:
            # NOTE: a record ends what these waits were for: an error of the readers is none of the work that comes.
            stream.record(self._backend.device.create_event())

    def synchronize(self) -> None:
        """Wait for the readers."""
        with self._lock:
            events, self._events = self._events, []
        for event in events:
            event.synchronize()


class Turns:
    """Counts the runs of a Worker: what a run made speaks for its data until the next one begins.

    Who checks that, and then puts a reader on a stream, holds ``lock`` meanwhile, so that no run begins in between.
    """

    def __init__(self, backend: Backend) -> None:
        self.lock = threading.RLock()
        self.number = 0
        self.is_closed = False
        self._backend = backend
        self._stream: Stream | None = None

    @property
    def readback_stream(self) -> Stream:
        """The stream of the Worker's copies to the host, which waits for no other Worker; the device's once it is closed."""
        with self.lock:
            if self.is_closed:
                return self._backend.readback_stream
            if self._stream is None:
                self._stream = self._backend.device.create_stream()
            return self._stream

    def advance(self) -> int:
        """Begin a run; return its number, from 1."""
        with self.lock:
            self.number += 1
            return self.number

    def close(self) -> None:
        """End all turns. The caller has waited for the readers."""
        with self.lock:
            self.is_closed = True
            stream, self._stream = self._stream, None
        close_stream(stream)


class Frame:
    """The outputs and uploaded inputs of a run; used again ``frames`` runs later, once nobody reads the outputs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._outputs: dict[str, Memory] = {}
        self._input: Memory | None = None
        self._dropped: list[Memory] = []
        self.readers = Readers(backend)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        held = [*self._outputs.values(), *self._dropped, *([self._input] if self._input is not None else [])]
        return sum(memory.nbytes for memory in held)

    def output(self, name: str, nbytes: int) -> Region:
        """Return the bytes of an output, grown to at least ``nbytes``."""
        memory = self._outputs.get(name)
        if memory is None or memory.nbytes < nbytes:
            grown = self._backend.device.allocate(max(nbytes, 1))
            if memory is not None:
                self._dropped.append(memory)
            memory = self._outputs[name] = grown
        return Region(memory, 0, nbytes)

    def input(self, nbytes: int) -> Memory:
        """Return the block all inputs of the run are uploaded to."""
        if self._input is None or self._input.nbytes < nbytes:
            grown = self._backend.device.allocate(max(nbytes, 1))
            if self._input is not None:
                self._dropped.append(self._input)
            self._input = grown
        return self._input

    def take_out(self, memory: Memory) -> None:
        """Take an output's bytes out of the ring: they now belong to whoever holds them."""
        for name in [name for name, held in self._outputs.items() if held is memory]:
            del self._outputs[name]

    def release_dropped(self) -> None:
        """Free outgrown blocks; the caller has waited for the work and the readers."""
        for memory in self._dropped:
            memory.free()
        self._dropped.clear()

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.release_dropped()
        for memory in (*self._outputs.values(), *([self._input] if self._input is not None else [])):
            memory.free()
        self._outputs.clear()
        self._input = None


class Lease:
    """A tensor's claim on its bytes: for one turn of a Worker, or, without a Worker, for as long as the tensor lives."""

    def __init__(self, backend: Backend, frame: Frame | None = None, turns: Turns | None = None) -> None:
        self._backend, self._frame, self._turns = backend, frame, turns
        self._number = turns.number if turns is not None else 0
        self._is_exported = False
        self.readers = frame.readers if frame is not None else Readers(backend)
        self.lock = turns.lock if turns is not None else threading.RLock()

    @property
    def is_own(self) -> bool:
        """Whether the bytes are no Worker's."""
        return self._turns is None or self._is_exported

    @property
    def readback_stream(self) -> Stream:
        """The stream that copies to and from the host go on."""
        return self._backend.readback_stream if self._turns is None else self._turns.readback_stream

    def check(self, name: str) -> None:
        """Check that the bytes still hold what the tensor stands for.

        Raises:
            StaleError: A later run has begun.
            ClosedError: The Worker is closed.
        """
        if self._turns is None or self._is_exported:
            return
        if self._turns.is_closed:
            raise ClosedError(
                f"Output {name!r}: its Worker is closed. Call readback_request() or copy_output() before closing it.", value=name
            )
        if self._number != self._turns.number:
            raise StaleError(
                f"Output {name!r} belongs to an earlier run. Call readback_request() or copy_output() before the next run.", value=name
            )

    def export(self, name: str, memory: Memory) -> None:
        """Make the bytes the tensor's for good."""
        with self.lock:
            self.check(name)
            if self._frame is not None and not self._is_exported:
                self._frame.take_out(memory)
                self._is_exported = True


def close_stream(stream: Stream | None) -> None:
    """Close a stream of one's own where the device has something to close."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
