"""Who owns which bytes: weights of a model on a device, and the arena of a Worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.graph import Value
from gpuexec.model import Model
from gpuexec.plan import Buffer, Role
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import ByteArray, Event, Memory, Region, Stream

Array = np.ndarray[Any, Any]


class BorrowedMemory:
    """Somebody else's bytes, kept alive by a reference to their owner."""

    __slots__ = ("address", "array", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: object, array: ByteArray | None = None) -> None:
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
        # A weight is known by its name, a table of a plan by its content.
        self._places: dict[str | bytes, tuple[Region, Event | None]] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of what is there now."""
        with self._lock:
            return sum(region.nbytes for region, _ in self._places.values())

    def include(self, constants: Mapping[Value, Array]) -> None:
        """Add the constants of a planned graph: those of the model, and what passes made of its shapes.

        Passes fold shapes only where no extent is free, so a name stands for the same content in every plan.
        """
        with self._lock:
            for value, array in constants.items():
                self._constants.setdefault(value.name, array)

    def place(self, buffers: Sequence[Buffer], stream: Stream) -> dict[int, Region]:
        """Return the regions of a plan's CONSTANT buffers, ready for what is issued on ``stream`` from now on.

        What is not there yet is uploaded on it; what another Worker is uploading on a stream of its own is waited for
        there.
        """
        places = {}
        with self._lock:
            for buffer in buffers:
                if buffer.role is not Role.CONSTANT:
                    continue
                key = buffer.name if buffer.data is None else buffer.data
                if key not in self._places:
                    self._places[key] = self._upload(self._content(buffer), stream)
                region, uploaded = self._places[key]
                if uploaded is not None and not uploaded.is_done():
                    stream.wait(uploaded)
                places[buffer.id] = region
        return places

    def _content(self, buffer: Buffer) -> Array:
        return self._constants[buffer.name] if buffer.data is None else np.frombuffer(buffer.data, np.uint8)

    def _upload(self, array: Array, stream: Stream) -> tuple[Region, Event | None]:
        dense = np.ascontiguousarray(array)
        device = self._backend.device
        if not device.target.has_kernels:
            return Region(BorrowedMemory.of(dense), 0, dense.nbytes), None
        region = Region(device.allocate(max(dense.nbytes, 1)), 0, dense.nbytes)
        if dense.nbytes:
            stream.copy_to_device(region.address, dense.reshape(-1).view(np.uint8))
        event = device.create_event()
        stream.record(event)
        return region, event


def weights_of(model: Model, backend: Backend) -> Weights:
    """Return the model's weights on a backend, the same object for every Worker."""
    with model.lock:
        # The weights hold the device, so that no other can have its id.
        key = id(backend.device)
        found = model.slabs.get(key)
        if found is None:
            found = model.slabs[key] = Weights(model, backend)
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
        """Bytes held now, outgrown blocks included."""
        return sum(memory.nbytes for memory in self._blocks())

    def reserve(self, nbytes: int) -> Memory:
        """Return a block of at least ``nbytes``. An outgrown one stays for now: work on a stream may use it."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = self._backend.device.allocate(max(nbytes, 1))
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

    def _blocks(self) -> Iterator[Memory]:
        yield from self._retired
        if self._memory is not None:
            yield self._memory
