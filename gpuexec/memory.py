"""Who owns which bytes: weights of a model on a device, and the arena of a Worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.model import Model
from gpuexec.plan import Buffer, Role
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import ByteArray, Event, Memory, Region, Stream

Array = np.ndarray[Any, Any]
_SMALL_NBYTES = 1024


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

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # A weight is known by its array, which is kept, a small one or a table of a plan by its content.
        self._places: dict[int | bytes, tuple[Region, Event | None, Array]] = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of what is there now."""
        with self._lock:
            return sum(region.nbytes for region, _, _ in self._places.values())

    def place(self, buffers: Sequence[Buffer], constants: Mapping[str, Array], stream: Stream) -> dict[int, Region]:
        """Return the regions of a plan's CONSTANT buffers, ready for what is issued on ``stream`` from now on.

        Args:
            buffers: The plan's.
            constants: Content by name, of those that are weights.
            stream: What is not there yet is uploaded on it; what another Worker is uploading on a stream of its own is
                waited for there.
        """
        places = {}
        for buffer in buffers:
            if buffer.role is Role.CONSTANT:
                array = constants[buffer.name] if buffer.data is None else np.frombuffer(buffer.data, np.uint8)
                places[buffer.id] = self.place_array(array, stream)
        return places

    def place_array(self, array: Array, stream: Stream) -> Region:
        """Return the region of one constant, ready for what is issued on ``stream`` from now on."""
        key = array.tobytes() if array.nbytes <= _SMALL_NBYTES else id(array)
        with self._lock:
            if key not in self._places:
                self._places[key] = self._upload(array, stream)
            region, uploaded, _ = self._places[key]
            if uploaded is not None and not uploaded.is_done():
                stream.wait(uploaded)
            return region

    def _upload(self, array: Array, stream: Stream) -> tuple[Region, Event | None, Array]:
        dense = np.ascontiguousarray(array)
        device = self._backend.device
        if not device.target.has_kernels:
            return Region(BorrowedMemory.of(dense), 0, dense.nbytes), None, array
        region = Region(device.allocate(max(dense.nbytes, 1)), 0, dense.nbytes)
        if dense.nbytes:
            stream.copy_to_device(region.address, dense.reshape(-1).view(np.uint8))
        event = device.create_event()
        stream.record(event)
        return region, event, array


def weights_of(model: Model, backend: Backend) -> Weights:
    """Return the model's weights on a backend, the same object for every Worker."""
    with model.lock:
        # The weights hold the device, so that no other can have its id.
        key = id(backend.device)
        found = model.slabs.get(key)
        if found is None:
            found = model.slabs[key] = Weights(backend)
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
