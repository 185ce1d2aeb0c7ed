"""Weights of a model on a device: uploaded once, shared by its Workers, freed with their last user."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Event, Region, Stream
from gpuexec.errors import GpuexecError
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.resources.upload import Parcel, read_parcel, upload
from gpuexec.ir.graphs import Graph, walk
from gpuexec.ir.plan import Buffer, Role
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.model.model import Model
from gpuexec.system.mapped import read_content
from gpuexec.system.progress import ProgressCallback

Array = np.ndarray[Any, Any]
# A weight is known by its array, which is kept, a small one or a table of a plan by its content; and by its form.
_Content = int | bytes
Key = _Content | tuple[_Content, PackedForm]
_Place = tuple[Region, Event | None, Array]
_Keyed = tuple[Key, Parcel]
_SMALL_NBYTES = 1024


class Weights:
    """The constants of a model on one device, uploaded when a plan first needs them.

    Whoever uses them does so by a `Share`. What no share needs any more is let go of.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._places: dict[Key, _Place] = {}
        self._nbytes = 0
        # What each share needs, by its number; and the numbers of shares that ended since this was looked at.
        self._needed: dict[int, set[Key]] = {}
        self._ended: deque[int] = deque()
        self._numbers = count()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        if len(self._needed) > 1:
            self._backend.deferred_free.prune()  # shares of runs that are over
        self._settle()
        return self._nbytes

    def enter(self) -> Share:
        """Return a share, which needs nothing yet."""
        with self._lock:
            number = next(self._numbers)
            self._needed[number] = set()
        return Share(self, number)

    def measure(self, buffers: Sequence[Buffer], constants: Mapping[str, Array]) -> dict[Key, int]:
        """Return the bytes of a plan's CONSTANT buffers, each content once; see `count_missing`."""
        return {key: parcel.nbytes for key, parcel in _list_parcels(buffers, constants).values()}

    def count_missing(self, sizes: Mapping[Key, int]) -> int:
        """Return how many of the bytes that `measure` gave are not there yet."""
        with self._lock:
            return sum(nbytes for key, nbytes in sizes.items() if key not in self._places)

    def place(
        self, number: int, parcels: Sequence[_Keyed], stream: Stream, report: ProgressCallback | None
    ) -> list[Region]:
        """Return regions that a share needs from now on; what is not there yet is uploaded, all of it or nothing."""
        self._settle()
        keys = [key for key, _ in parcels]
        with self._lock:
            missing = {key: parcel for key, parcel in parcels if key not in self._places}
            if missing:
                found = self._upload(list(missing.values()), stream, report)
                self._places.update(zip(missing, found, strict=True))
                self._nbytes += sum(region.nbytes for region, _, _ in found)
                self._backend.memory_revision.number += 1
            self._needed[number].update(keys)
            uploads = {id(event): event for _, event, _ in map(self._places.__getitem__, keys) if event is not None}
            for event in uploads.values():
                if not event.is_done():
                    stream.wait(event)
            return [self._places[key][0] for key in keys]

    def find_placed(self, number: int, graph: Graph) -> set[Key]:
        """Return which constants of a graph a share needs, in each form."""
        contents = {_key(array) for each in walk(graph) for array in each.constants.values()}
        with self._lock:
            return {key for key in self._needed[number] if _split(key)[0] in contents}

    def need(self, number: int, keys: set[Key]) -> None:
        """Count a share as a user of weights that are there."""
        with self._lock:
            self._needed[number] |= keys

    def end(self, number: int, *, has_waited: bool = False) -> None:
        """Free weights that only this share needed; ``has_waited``: the caller did, for all work that uses them."""
        self._ended.append(number)
        self._backend.memory_revision.number += 1
        self._settle(has_waited=has_waited)

    def _settle(self, *, has_waited: bool = False) -> None:
        """Free weights of shares that ended; during an upload that is left to the next call."""
        # Shares end wherever Python collects them, be it in a thread that is in here.
        while self._ended:
            held: list[bool] = []
            try:
                held.extend(map(self._lock.acquire, (False,)))  # see `gpuexec.devices.latch`
                if not held[0]:
                    return
                while self._ended:
                    self._needed.pop(self._ended.popleft(), None)
                kept = set[Key]().union(*self._needed.values())
                dropped = [self._places.pop(key) for key in self._places.keys() - kept]
                self._nbytes -= sum(region.nbytes for region, _, _ in dropped)
            finally:
                if held and held[0]:
                    self._lock.release()
            for place in dropped:
                region, uploaded, _ = place
                if has_waited:
                    if uploaded is not None:
                        # Who uploaded it may be gone without having waited.
                        with contextlib.suppress(GpuexecError):
                            uploaded.synchronize()
                    region.memory.free()
                elif uploaded is not None and not uploaded.is_done():
                    self._backend.deferred_free.hold(uploaded, place)

    def _upload(self, parcels: Sequence[Parcel], stream: Stream, report: ProgressCallback | None) -> list[_Place]:
        if not self._backend.device.target.has_kernels:
            return [(_borrow(parcel), None, parcel.array) for parcel in parcels]
        regions, event = upload(self._backend, parcels, stream, report)
        return [(region, event, parcel.array) for region, parcel in zip(regions, parcels, strict=True)]


class Share:
    """The weights that one user needs of a model on a device: kept as long as this is held.

    Workers have one, and so does the work they put on streams: until that is done it holds the share it was issued
    with. A Worker that goes on with other weights has another one from then on.
    """

    __slots__ = ("__weakref__", "_finalizer", "_number", "weights")

    def __init__(self, weights: Weights, number: int) -> None:
        self.weights, self._number = weights, number
        self._finalizer = weakref.finalize(self, weights.end, number)
        self._finalizer.atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes that are held of the weights, whoever needs them."""
        return self.weights.nbytes

    def place(
        self,
        buffers: Sequence[Buffer],
        constants: Mapping[str, Array],
        stream: Stream,
        report: ProgressCallback | None = None,
    ) -> dict[int, Region]:
        """Return the regions of a plan's CONSTANT buffers, ready for what is issued on ``stream`` from now on.

        What is not there yet is uploaded, all of it or nothing.

        Args:
            buffers: The plan's.
            constants: Content by name, of those that are weights.
            stream: What is uploaded is waited for there, be it on its way for another Worker.
            report: Called with the progress of the upload.

        Raises:
            OutOfMemoryError: The device has no room.
            AccessError: The file of a weight changed since it was opened, or can't be read.
        """
        parcels = _list_parcels(buffers, constants)
        return dict(zip(parcels, self.weights.place(self._number, list(parcels.values()), stream, report), strict=True))

    def place_array(self, array: Array, stream: Stream) -> Region:
        """Return the region of one constant, ready for what is issued on ``stream`` from now on."""
        return self.weights.place(self._number, [_make_keyed("", array)], stream, None)[0]

    def replace(self, old: Graph, new: Graph, stream: Stream, admit: Callable[[int], None] | None = None) -> Share:
        """Return a share of what this one needs for a graph, with other content; what differs is uploaded.

        Args:
            old: A graph whose plans use this share.
            new: One with other content under the same names.
            stream: What waits for the uploads.
            admit: Refuses bytes that there may not be on the device beside those there are.

        Raises:
            OutOfMemoryError: The device has no room for the new ones beside the old; nothing was done.
            AccessError: A file that they are in changed.
        """
        forms: dict[_Content, list[PackedForm | None]] = {}
        for content, form in map(_split, self.weights.find_placed(self._number, old)):
            forms.setdefault(content, []).append(form)
        named = {value.name: array for each in walk(new) for value, array in each.constants.items()}
        parcels = [
            _make_keyed(value.name, named[value.name], form)
            for each in walk(old)
            for value, array in each.constants.items()
            if named.get(value.name, array) is not array
            for form in forms.get(_key(array), ())
        ]
        if admit is not None:
            admit(sum(parcel.nbytes for _, parcel in parcels))
        share = self.weights.enter()
        self.weights.place(share._number, parcels, stream, None)
        self.weights.need(share._number, self.weights.find_placed(self._number, new))
        return share

    def leave(self) -> None:
        """Free weights that nobody else needs; the caller has waited for all work that uses them."""
        if self._finalizer.detach() is not None:
            self.weights.end(self._number, has_waited=True)


def weights_of(model: Model, backend: Backend) -> Weights:
    """Return the model's weights on a backend, the same object for every Worker."""
    with model._lock:
        # The weights hold the device, so that no other can have its id.
        key = id(backend.device)
        found = model._slabs.get(key)
        if found is None:
            found = model._slabs[key] = Weights(backend)
        assert isinstance(found, Weights)
        return found


def _list_parcels(buffers: Sequence[Buffer], constants: Mapping[str, Array]) -> dict[int, _Keyed]:
    """Return the content of a plan's CONSTANT buffers, by their ids."""
    rows: dict[int, _Keyed] = {}
    for buffer in buffers:
        if buffer.role is Role.CONSTANT:
            if buffer.data is None:
                rows[buffer.id] = _make_keyed(buffer.name, constants[buffer.name], buffer.form)
            else:
                rows[buffer.id] = buffer.data, Parcel(buffer.name, np.frombuffer(buffer.data, np.uint8))
    return rows


def _make_keyed(name: str, array: Array, form: PackedForm | None = None) -> _Keyed:
    content = _key(array)
    return content if form is None else (content, form), Parcel(name, array, form)


def _borrow(parcel: Parcel) -> Region:
    """Return the bytes of an array where they lie; a copy where they are not dense, or lie in a file."""
    dense = np.require(read_parcel(parcel), requirements=("C", "A"))
    return Region(BorrowedMemory.of(dense), 0, dense.nbytes)


def _key(array: Array) -> _Content:
    return read_content(array).tobytes() if array.nbytes <= _SMALL_NBYTES else id(array)


def _split(key: Key) -> tuple[_Content, PackedForm | None]:
    return key if isinstance(key, tuple) else (key, None)
