"""Who owns which bytes: weights of a model on a device, and the arena of a Worker."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.model import Model
from gpuexec.plan import Buffer, Role
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import ByteArray, Event, Memory, Region, Stream

Array = np.ndarray[Any, Any]
# Returns device memory of at least so many bytes, or raises OutOfMemoryError.
Allocate = Callable[[int], Memory]
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
    """The constants of a model on one device, uploaded when a plan first needs them; shared by its Workers.

    They are freed when the last of those is closed. Bytes held: ``nbytes``.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # A weight is known by its array, which is kept, a small one or a table of a plan by its content.
        self._places: dict[int | bytes, tuple[Region, Event | None, Array]] = {}
        self._lock = threading.Lock()
        self._users = 0
        self.nbytes = 0

    def enter(self) -> None:
        """Count one more that uses them."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one less, who has waited for all its work; with the last of them they are freed."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            for region, uploaded, _ in self._places.values():
                if uploaded is not None:
                    # Who uploaded it may be gone without having waited.
                    with contextlib.suppress(GpuexecError):
                        uploaded.synchronize()
                region.memory.free()
            self._places.clear()
            self.nbytes = 0

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

    def measure(self, buffers: Sequence[Buffer], constants: Mapping[str, Array]) -> dict[int | bytes, int]:
        """Return the bytes of a plan's CONSTANT buffers, each content once; see `count_missing`."""
        arrays = [
            constants[buffer.name] if buffer.data is None else np.frombuffer(buffer.data, np.uint8)
            for buffer in buffers
            if buffer.role is Role.CONSTANT
        ]
        return {_key(array): array.nbytes for array in arrays}

    def count_missing(self, sizes: Mapping[int | bytes, int]) -> int:
        """Return how many of the bytes that `measure` gave are not there yet."""
        with self._lock:
            return sum(nbytes for key, nbytes in sizes.items() if key not in self._places)

    def place_array(self, array: Array, stream: Stream) -> Region:
        """Return the region of one constant, ready for what is issued on ``stream`` from now on."""
        key = _key(array)
        with self._lock:
            if key not in self._places:
                self._places[key] = self._upload(array, stream)
                self.nbytes += self._places[key][0].nbytes
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


def _key(array: Array) -> int | bytes:
    return array.tobytes() if array.nbytes <= _SMALL_NBYTES else id(array)


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
    """The one block an engine's temporaries lie in. Grows to the largest plan; ``generation`` changes when it moves.

    Args:
        backend: Where.
        allocate: What gives it memory; None: the device.
        memory: What it starts with, of the user's; used as long as no plan needs more.
    """

    def __init__(self, backend: Backend, allocate: Allocate | None = None, memory: Memory | None = None) -> None:
        self._allocate = allocate or backend.device.allocate
        self._memory = self._given = memory
        self._retired: list[Memory] = []
        self.generation = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now, outgrown blocks included."""
        return sum(memory.nbytes for memory in self._blocks())

    def reserve(self, nbytes: int) -> Memory:
        """Return a block of at least ``nbytes``. An outgrown one stays for now: work on a stream may use it."""
        if self._memory is None or self._memory.nbytes < nbytes:
            grown = self._allocate(max(nbytes, 1))
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

    def give_back(self) -> None:
        """Free everything but memory of the user's; plans are recorded anew. The caller has waited."""
        if self._memory is not self._given:
            self.free()

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
