"""Frames of runs in flight, their readers, and the run counter that tells stale outputs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream
from gpuexec.devices.transfers import Transfers
from gpuexec.errors import ClosedError, OutOfMemoryError, StaleError, locate
from gpuexec.execution.profiling.log import RunProfile
from gpuexec.execution.resources.aligned_copy import find_alignment, is_aligned
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.memory import Allocate
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.ir.graphs import Value
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.spec import TensorSpec

# Plans whose outputs stay reserved in a frame.
_PLANS_KEPT = 16


class Readers:
    """Readers of some bytes: fences that a stream waits for before the bytes are written again.

    A write waits for the readers added before it was announced; those that come later read what it writes.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._fences: list[tuple[int, Fence]] = []
        self._writes = 0
        # How many there are when those that are done are next dropped.
        self._prune_at = 16
        self._lock = threading.Lock()

    def add(self, fence: Fence) -> None:
        """Add a reader, done when the fence is."""
        with self._lock:
            if len(self._fences) >= self._prune_at:
                self._fences = [row for row in self._fences if not row[1].is_done()]
                # Twice as many as are left, so that asking them all costs each reader added a constant number of calls.
                self._prune_at = max(16, 2 * len(self._fences))
            self._fences.append((self._writes, fence))

    def announce_write(self, use: Fence | None = None) -> int:
        """Return the number of a write to come; later ones wait for ``use``, too."""
        with self._lock:
            self._writes += 1
            if use is not None:
                self._fences.append((self._writes, use))
            return self._writes

    def list_unissued(self, write: int) -> list[Fence]:
        """Return the readers before a write that are on no stream yet, so that no stream can wait for them."""
        found: list[Fence] = []
        with self._lock:
            for writes, fence in self._fences:
                if writes < write and not fence.is_issued():
                    found.append(fence)
        return found

    def hold_back(self, stream: Stream, write: int) -> None:
        """Make a stream wait for the readers before a write, all of them issued; the caller does not wait."""
        before: list[Fence] = []
        later: list[tuple[int, Fence]] = []
        with self._lock:
            for row in self._fences:
                if row[0] < write:
                    before.append(row[1])
                else:
                    later.append(row)
            self._fences = later
        has_waited = False
        for fence in before:
            for event in fence.events:
                if not event.is_done():
                    stream.wait(event)
                    has_waited = True
        if has_waited:
            # NOTE: a record ends what these waits were for: an error of the readers is none of the work that comes.
            stream.record(self._backend.device.create_event())

    def settle(self, *, only_issued: bool = False) -> None:
        """Wait for the readers, however they end; ``only_issued``: not for those that are on no stream yet."""
        with self._lock:
            rows = [row for row in self._fences if row[1].is_issued() or not only_issued]
        for _, fence in rows:
            fence.settle()
        # Until they are through, others that write wait for them too.
        with self._lock:
            self._fences = [row for row in self._fences if row not in rows]


class SharedRunCount:
    """Number of runs begun over the same bytes; shared by engines that share arenas."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.number = 0


class RunCounter:
    """Counts the runs of an engine; outputs of a run are stale once the next one begins.

    A check followed by a read on a stream holds ``lock`` throughout, so that no run begins in between.
    """

    def __init__(
        self,
        backend: Backend,
        syncs: SyncLog | None = None,
        count: SharedRunCount | None = None,
        owner: str = "Worker",
    ) -> None:
        self.owner = owner
        self._count = count or SharedRunCount()
        self.lock = self._count.lock
        self.is_closed = False
        self.syncs = syncs or SyncLog()
        self.transfers = Transfers(backend.device)

    @property
    def number(self) -> int:
        """The number of the last run."""
        return self._count.number

    def advance(self) -> int:
        """Begin a run; return its number, from 1."""
        with self.lock:
            self._count.number += 1
            return self._count.number

    def close(self) -> None:
        """Close: outputs of every run are stale. The caller has waited for the readers."""
        with self.lock:
            self.is_closed = True
        self.transfers.close()


@dataclass(frozen=True, slots=True, eq=False)
class ReservedOutput:
    """Bytes of an output in a frame.

    Attributes:
        bound: What the plan's buffer is bound to: room for every size of the plan's class.
        written: As many of them as the plan writes at its present size.
        final: Where the output is when the run is done.
        is_aside: Whether that is elsewhere: in bytes of the user's that kernels can't write.
    """

    bound: Region
    written: Region
    final: Region
    is_aside: bool


class Frame:
    """The outputs and uploaded inputs of a run; used again ``frames`` runs later, once nobody reads the outputs.

    Args:
        backend: Where.
        allocate: What gives it memory; None: the device.
        readers: Who uses its bytes, where they are shared with other engines.
    """

    def __init__(self, backend: Backend, allocate: Allocate | None = None, readers: Readers | None = None) -> None:
        self._allocate, self._revision = allocate or backend.device.allocate, backend.memory_revision
        self._outputs: dict[str, MemoryBlock] = {}
        self._given: dict[str, Region] = {}
        # Where outputs are written whose bytes of the user's start where kernels can't write.
        self._aside: dict[str, MemoryBlock] = {}
        self._input: MemoryBlock | None = None
        self._dropped: list[MemoryBlock] = []
        # Changes of the memory above, and the outputs that were reserved since the last, by plan.
        self._generation = 0
        self._reserved: dict[object, tuple[int, dict[Value, ReservedOutput]]] = {}
        self._placed: dict[int, tuple[Plan, list[tuple[int, Value, int]]]] = {}
        self._target = backend.device.target
        self.is_shared = readers is not None
        self.readers = readers or Readers(backend)

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        held = sum(memory.nbytes for memory in (*self._blocks(), *self._dropped))
        return held + sum(region.nbytes for region in self._given.values())

    def announce(self, use: Fence) -> int:
        """Return the number of a write to come; those of other engines that share the bytes wait for ``use``."""
        return self.readers.announce_write(use if self.is_shared else None)

    def give(self, name: str, region: Region | None) -> None:
        """Set where an output lies: in bytes of the user's, which never leave the frame, or in its own."""
        self._note_change()
        if region is not None:
            self._given[name] = region
        else:
            self._given.pop(name, None)

    def given(self, name: str) -> Region | None:
        """Return the bytes of the user's that an output lies in, if it does."""
        return self._given.get(name)

    def is_given(self, name: str) -> bool:
        """Return whether an output lies in bytes of the user's."""
        return name in self._given

    def output(self, name: str, nbytes: int) -> Region:
        """Return the bytes of an output, grown to at least ``nbytes``.

        Raises:
            OutOfMemoryError: There is no room, or bytes of the user's are too few.
        """
        given = self._given.get(name)
        if given is not None:
            if given.nbytes < nbytes:
                raise OutOfMemoryError(
                    f"Output {name!r} needs {nbytes} bytes, and the memory given for it has {given.nbytes}.", value=name
                )
            return Region(given.memory, given.offset, nbytes)
        memory = self._outputs.get(name)
        if memory is None or memory.nbytes < nbytes:
            try:
                grown = self._allocate(max(nbytes, 1))
            except OutOfMemoryError as error:
                error.value = error.value or name
                raise locate(error, f"Output {name!r}") from None
            self._note_change()
            if memory is not None:
                self._dropped.append(memory)
            memory = self._outputs[name] = grown
        return Region(memory, 0, nbytes)

    def writable(self, name: str, nbytes: int, alignment: int) -> Region:
        """Return where a plan writes an output: its bytes, or aligned ones beside them where the user's are not.

        Args:
            name: The output's.
            nbytes: How many it needs.
            alignment: What they must start at a multiple of. What is written beside is copied to `output` behind the
                run (`is_aside`).

        Raises:
            OutOfMemoryError: As `output`, or there is no room for the bytes beside.
        """
        region = self.output(name, nbytes)
        if is_aligned(region, alignment):
            return region
        memory = self._aside.get(name)
        if memory is None or memory.nbytes < nbytes:
            grown = self._allocate(max(nbytes, 1))
            self._note_change()
            if memory is not None:
                self._dropped.append(memory)
            memory = self._aside[name] = grown
        return Region(memory, 0, nbytes)

    def reserve_outputs(
        self, plan: Plan, outputs: Sequence[Value], specs: Sequence[TensorSpec], own: Collection[Value]
    ) -> dict[Value, ReservedOutput]:
        """Return the bytes of those outputs of a plan that lie here: the same until memory of the frame changes.

        Args:
            plan: At the upper end of its size class.
            outputs: Its outputs, as values.
            specs: Of the outputs, at that size.
            own: Values that lie in frames; others are passed between plans, or are memories.

        Raises:
            OutOfMemoryError: There is no room, or bytes of the user's are too few.
        """
        placed = self._list_placed(plan, outputs, own)
        shapes = tuple([specs[place].shape for place, _, _ in placed])
        known = self._reserved.get((id(plan), shapes))
        if known is not None and known[0] == self._generation:
            return known[1]
        generation, rows = self._generation, dict[Value, ReservedOutput]()
        for place, value, needed in placed:
            spec = specs[place]
            bound = self.writable(value.name, needed, find_alignment(self._target, spec.dtype))
            final = self.output(value.name, needed)
            rows[value] = ReservedOutput(
                bound,
                Region(bound.memory, bound.offset, spec.nbytes),
                Region(final.memory, final.offset, spec.nbytes),
                is_aside=bound.memory is not final.memory,
            )
        if len(self._reserved) >= _PLANS_KEPT:
            self._reserved.clear()
        # An output that another thread exported meanwhile has changed the frame: the next call finds new bytes.
        self._reserved[id(plan), shapes] = generation, rows
        return rows

    def _list_placed(
        self, plan: Plan, outputs: Sequence[Value], own: Collection[Value]
    ) -> list[tuple[int, Value, int]]:
        """Return the outputs of a plan that lie here: their places among all, values, and bytes at the upper end."""
        known = self._placed.get(id(plan))
        if known is None or known[0] is not plan:
            placed = []
            for place, (value, port) in enumerate(zip(outputs, plan.outputs, strict=True)):
                assert port.buffer is not None
                if value in own and plan.buffers[port.buffer].role is not Role.STATE:
                    placed.append((place, value, plan.buffers[port.buffer].nbytes))
            if len(self._placed) >= _PLANS_KEPT:
                self._placed.clear()
                self._reserved.clear()  # its plans are known by their addresses
            known = self._placed[id(plan)] = plan, placed
        return known[1]

    def is_aside(self, name: str, region: Region) -> bool:
        """Return whether bytes are those that an output is written to beside the user's."""
        return self._aside.get(name) is region.memory

    def input(self, nbytes: int) -> MemoryBlock:
        """Return the block all inputs of the run are uploaded to."""
        if self._input is None or self._input.nbytes < nbytes:
            grown = self._allocate(max(nbytes, 1))
            if self._input is not None:
                self._dropped.append(self._input)
            self._input = grown
            self._revision.number += 1
        return self._input

    def holds(self, region: Region) -> bool:
        """Return whether bytes are among those of the user's that hold outputs."""
        first, last = region.address, region.address + region.nbytes
        return any(first < each.address + each.nbytes and each.address < last for each in self._given.values())

    def owns(self, name: str, memory: MemoryBlock) -> bool:
        """Return whether a memory is the frame's own for an output."""
        return self._outputs.get(name) is memory

    def take_out(self, memory: MemoryBlock) -> None:
        """Take an output's bytes out of the ring: they now belong to whoever holds them; the user's stay."""
        for name in [name for name, held in self._outputs.items() if held is memory]:
            del self._outputs[name]
            self._note_change()

    def settle(self) -> None:
        """Wait for all users of the bytes, however they end; of other engines only for what is on a stream."""
        self.readers.settle(only_issued=self.is_shared)

    def release_dropped(self) -> None:
        """Free outgrown blocks; the caller has waited. One that a tensor still holds lives on with it."""
        self._dropped.clear()
        self._revision.number += 1

    def give_back(self) -> None:
        """Free all blocks that are not the user's, as `release_dropped` does outgrown ones."""
        self._forget_blocks()
        self.release_dropped()

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.release_dropped()
        for memory in self._blocks():
            memory.free()
        self._forget_blocks()
        self._given.clear()

    def _note_change(self) -> None:
        self._generation += 1
        self._revision.number += 1
        self._reserved.clear()

    def _forget_blocks(self) -> None:
        self._note_change()
        self._outputs.clear()
        self._aside.clear()
        self._input = None

    def _blocks(self) -> list[MemoryBlock]:
        """Return the blocks in use that are its own."""
        held = [*self._outputs.values(), *self._aside.values()]
        return held if self._input is None else [*held, self._input]


class Lease:
    """A tensor's claim on its bytes: until the next run of a Worker, or for good where it is no Worker's.

    Args:
        backend: Where they lie.
        frame: Whose they are.
        run_counter: Counts the runs that write them.
        number: Of the tensor's run; None: the last that has begun.
    """

    def __init__(
        self,
        backend: Backend,
        frame: Frame | None = None,
        run_counter: RunCounter | None = None,
        number: int | None = None,
    ) -> None:
        self._backend, self._frame, self._run_counter, self._number = backend, frame, run_counter, number
        if number is None and run_counter is not None:
            self._number = run_counter.number
        self._is_exported = False
        # Who is notified of readbacks; mostly nobody.
        self.profile: RunProfile | None = None
        self.readers = frame.readers if frame is not None else Readers(backend)
        self.lock = run_counter.lock if run_counter is not None else threading.RLock()

    @property
    def is_own(self) -> bool:
        """True where the bytes are the tensor's own, no Worker's."""
        return self._run_counter is None or self._is_exported

    @property
    def transfers(self) -> Transfers:
        """The stream that copies of the bytes go on: the Worker's own, or the device's where there is none."""
        is_live = self._run_counter is not None and not self._run_counter.is_closed
        return self._run_counter.transfers if self._run_counter is not None and is_live else self._backend.transfers

    def check(self, name: str) -> None:
        """Check that the bytes still hold what the tensor stands for.

        Raises:
            StaleError: A later run has begun.
            ClosedError: The Worker is closed.
        """
        if self._run_counter is None or self._is_exported:
            return
        if self._run_counter.is_closed:
            raise ClosedError(
                f"Output {name!r}: its {self._run_counter.owner} is closed. Call readback_request() or copy_output()"
                " before closing it.",
                value=name,
            )
        if self._number != self._run_counter.number:
            raise StaleError(
                f"Output {name!r} belongs to an earlier run. Call readback_request() or copy_output()"
                " before the next run.",
                value=name,
            )

    def note_sync(self, name: str, why: str) -> None:
        """Count a wait of the host that nobody asked for by name."""
        if self._run_counter is not None:
            self._run_counter.syncs.note_wait(name, why)

    def hand_over(self, name: str, memory: MemoryBlock) -> bool:
        """Leave an output's bytes to the caller, so that no later run writes them; the tensor becomes stale as ever.

        Returns:
            False where they are not a block of the frame's own; then nothing was done.
        """
        with self.lock:
            self.check(name)
            if self._frame is None or not self._frame.owns(name, memory):
                return False
            self._frame.take_out(memory)
            return True

    def export(self, name: str, memory: MemoryBlock) -> None:
        """Make the bytes the tensor's for good, but for those of the user's: the next run writes them."""
        with self.lock:
            self.check(name)
            if self._frame is not None and not self._is_exported:
                self._is_exported = not self._frame.is_given(name)
                self._frame.take_out(memory)
