"""The frames a Worker's runs rotate through, and how long what a run made speaks for its data."""

from __future__ import annotations

import threading

from gpuexec.errors import ClosedError, StaleError
from gpuexec.fence import Fence
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Memory, Region, Stream
from gpuexec.runtime.transfers import Transfers
from gpuexec.syncs import SyncLog


class Readers:
    """Who still reads some bytes: fences that a stream waits for before the bytes are written again.

    A write waits for the readers added before it was announced; those that come later read what it writes.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._fences: list[tuple[int, Fence]] = []
        self._writes = 0
        self._lock = threading.Lock()

    def add(self, fence: Fence) -> None:
        """Add a reader, done when the fence is."""
        with self._lock:
            self._fences = [row for row in self._fences if not row[1].is_done()]
            self._fences.append((self._writes, fence))

    def announce_write(self) -> int:
        """Return the number of a write to come."""
        with self._lock:
            self._writes += 1
            return self._writes

    def list_unissued(self, write: int) -> list[Fence]:
        """Return the readers before a write that are on no stream yet, so that no stream can wait for them."""
        with self._lock:
            return [fence for writes, fence in self._fences if writes < write and not fence.is_issued()]

    def hold_back(self, stream: Stream, write: int) -> None:
        """Have a stream wait for the readers before a write, all of them issued; the caller does not wait."""
        with self._lock:
            before = [fence for writes, fence in self._fences if writes < write]
            self._fences = [row for row in self._fences if row[0] >= write]
        waiting = [event for fence in before for event in fence.events if not event.is_done()]
        for event in waiting:
            stream.wait(event)
        if waiting:
            # NOTE: a record ends what these waits were for: an error of the readers is none of the work that comes.
            stream.record(self._backend.device.create_event())

    def settle(self) -> None:
        """Wait for the readers, however they end."""
        with self._lock:
            fences, self._fences = self._fences, []
        for _, fence in fences:
            fence.settle()


class Turns:
    """Counts the runs of a Worker: what a run made speaks for its data until the next one begins.

    Who checks that, and then puts a reader on a stream, holds ``lock`` meanwhile, so that no run begins in between.
    """

    def __init__(self, backend: Backend, syncs: SyncLog | None = None) -> None:
        self.lock = threading.RLock()
        self.number = 0
        self.is_closed = False
        self.syncs = syncs or SyncLog()
        self.transfers = Transfers(backend.device)

    def advance(self) -> int:
        """Begin a run; return its number, from 1."""
        with self.lock:
            self.number += 1
            return self.number

    def close(self) -> None:
        """End all turns. The caller has waited for the readers."""
        with self.lock:
            self.is_closed = True
        self.transfers.close()


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
        """Let go of outgrown blocks; the caller has waited. One that a tensor still holds lives on with it."""
        self._dropped.clear()

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.release_dropped()
        for memory in (*self._outputs.values(), *([self._input] if self._input is not None else [])):
            memory.free()
        self._outputs.clear()
        self._input = None


class Lease:
    """A tensor's claim on its bytes: for one turn of a Worker, or for good where it is no Worker's."""

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
    def transfers(self) -> Transfers:
        """The stream that copies of the bytes go on: the Worker's own, or the device's where there is none."""
        is_live = self._turns is not None and not self._turns.is_closed
        return self._turns.transfers if self._turns is not None and is_live else self._backend.transfers

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
                f"Output {name!r}: its Worker is closed. Call readback_request() or copy_output() before closing it.",
                value=name,
            )
        if self._number != self._turns.number:
            raise StaleError(
                f"Output {name!r} belongs to an earlier run. Call readback_request() or copy_output()"
                " before the next run.",
                value=name,
            )

    def note_sync(self, name: str, why: str) -> None:
        """Count a wait of the host that nobody asked for by name."""
        if self._turns is not None:
            self._turns.syncs.note_wait(name, why)

    def export(self, name: str, memory: Memory) -> None:
        """Make the bytes the tensor's for good."""
        with self.lock:
            self.check(name)
            if self._frame is not None and not self._is_exported:
                self._frame.take_out(memory)
                self._is_exported = True
