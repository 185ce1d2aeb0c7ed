"""Who owns which bytes: weights of a model on a device, the arena of a Worker, and the frames its runs rotate through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import StaleError
from gpuexec.model import Model
from gpuexec.plan import Buffer, Role
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import ByteArray, Event, Memory, Region, Stream

Array = np.ndarray[Any, Any]
_ALIGNMENT = 256


class BorrowedMemory:
    """Somebody else's bytes, kept alive by a reference to their owner."""

    __slots__ = ("address", "array", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: Any, array: ByteArray | None = None) -> None:
        self.address, self.nbytes, self.owner, self.array = address, nbytes, owner, array

    @staticmethod
    def of(array: Array) -> BorrowedMemory:
        """Wrap a contiguous NumPy array."""
        raw = array.reshape(-1).view(np.uint8)
        return BorrowedMemory(raw.ctypes.data, raw.nbytes, array, raw)

    def free(self) -> None:
        """Let go of the owner."""
        self.owner = self.array = None


class Weights:
    """The constants of a model on one device, uploaded when a plan first needs them; shared by its Workers."""

    def __init__(self, model: Model, backend: Backend) -> None:
        self._constants = {value.name: array for value, array in model.graph.constants.items()}
        self._backend = backend
        self._regions: dict[str, Region] = {}
        self._tables: dict[bytes, Region] = {}
        self.nbytes = 0

    def place(self, buffers: Sequence[Buffer], stream: Stream) -> dict[int, Region]:
        """Return the regions of a plan's CONSTANT buffers, uploading those that are not there yet."""
        places = {}
        for buffer in buffers:
            if buffer.role is not Role.CONSTANT:
                continue
            if buffer.data is not None:
                if buffer.data not in self._tables:
                    self._tables[buffer.data] = self._upload(np.frombuffer(buffer.data, np.uint8), stream)
                places[buffer.id] = self._tables[buffer.data]
            else:
                if buffer.name not in self._regions:
                    self._regions[buffer.name] = self._upload(self._constants[buffer.name], stream)
                places[buffer.id] = self._regions[buffer.name]
        return places

    def _upload(self, array: Array, stream: Stream) -> Region:
        dense = np.ascontiguousarray(array)
        nbytes = dense.nbytes
        if not self._backend.device.target.has_kernels:
            return Region(BorrowedMemory.of(dense), 0, nbytes)
        memory = self._backend.device.allocate(nbytes)
        self.nbytes += nbytes
        if nbytes:
            stream.copy_to_device(memory.address, dense.reshape(-1).view(np.uint8))
        return Region(memory, 0, nbytes)


def weights_of(model: Model, backend: Backend) -> Weights:
    """Return the model's weights on a backend, the same object for every Worker."""
    with model.lock:
        found = model.slabs.get(id(backend))
        if found is None:
            found = model.slabs[id(backend)] = Weights(model, backend)
        assert isinstance(found, Weights)
        return found


class Arena:
    """The one block a Worker's temporaries lie in. Grows to the largest plan; ``generation`` changes when it moves."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._memory: Memory | None = None
        self._retired: list[Memory] = []
        self.generation = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return 0 if self._memory is None else self._memory.nbytes

    def reserve(self, nbytes: int) -> Memory:
        """Return a block of at least ``nbytes``. An outgrown block stays until `release`: work on a stream may still use it."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = self._backend.device.allocate(nbytes)
            if self._memory is not None:
                self._retired.append(self._memory)
            self._memory = grown
            self.generation += 1
        return self._memory

    def release_retired(self) -> None:
        """Free outgrown blocks; the caller has waited for the work that used them."""
        for memory in self._retired:
            memory.free()
        self._retired.clear()

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.release_retired()
        if self._memory is not None:
            self._memory.free()
            self._memory = None
            self.generation += 1


class Frame:
    """The outputs and uploaded inputs of one run in flight; used again ``frames`` runs later.

    ``guards`` are events of whoever still reads the outputs; the stream waits for them before the frame is written again.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._outputs: dict[str, Memory] = {}
        self._input: Memory | None = None
        self._dropped: list[Memory] = []
        self.generation = 0
        self.guards: list[Event] = []

    @property
    def nbytes(self) -> int:
        """Device bytes held now."""
        return sum(m.nbytes for m in self._outputs.values()) + (self._input.nbytes if self._input is not None else 0)

    def begin(self, stream: Stream) -> Lease:
        """Take the frame for a new run: outputs of the run before become stale."""
        self.generation += 1
        for event in self.guards:
            if not event.is_done():
                stream.wait(event)
        self.guards.clear()
        return Lease(self, self.generation)

    def output(self, name: str, nbytes: int) -> Region:
        """Return the bytes of an output, grown to at least ``nbytes``."""
        memory = self._outputs.get(name)
        if memory is None or memory.nbytes < nbytes:
            if memory is not None:
                self._dropped.append(memory)
            memory = self._outputs[name] = self._backend.device.allocate(nbytes)
        return Region(memory, 0, nbytes)

    def input(self, nbytes: int) -> Memory:
        """Return the block all inputs of the run are uploaded to."""
        if self._input is None or self._input.nbytes < nbytes:
            if self._input is not None:
                self._dropped.append(self._input)
            self._input = self._backend.device.allocate(nbytes)
        return self._input

    def export(self, name: str) -> None:
        """Take an output's bytes out of the ring: they now belong to whoever holds the tensor."""
        self._outputs.pop(name, None)

    def free(self) -> None:
        """Free everything; the caller has waited."""
        self.generation += 1
        for memory in (*self._outputs.values(), *self._dropped, *([self._input] if self._input is not None else [])):
            memory.free()
        self._outputs.clear()
        self._dropped.clear()
        self._input = None


class Lease:
    """A run's claim on a frame, good until the frame is taken by a later run."""

    __slots__ = ("_exported", "_frame", "_generation")

    def __init__(self, frame: Frame, generation: int) -> None:
        self._frame, self._generation = frame, generation
        self._exported: set[str] = set()

    def check(self, name: str) -> None:
        """Check that the output's bytes are still this run's.

        Raises:
            StaleError: A later run has taken the frame.
        """
        if self._generation != self._frame.generation and name not in self._exported:
            raise StaleError(
                f"Output {name!r}: a later run has taken its memory. Read it back, or copy_output(), before as many runs as the Worker has frames.",
                value=name,
            )

    def guard(self, event: Event) -> None:
        """Have the frame wait for a reader before it is written again."""
        if self._generation == self._frame.generation:
            guards = self._frame.guards
            guards[:] = [each for each in guards if not each.is_done()]
            guards.append(event)

    def export(self, name: str) -> None:
        """Make the output's bytes the caller's for good."""
        self.check(name)
        if name not in self._exported:
            self._exported.add(name)
            self._frame.export(name)


def align(nbytes: int) -> int:
    """Round up to what every region starts at."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
