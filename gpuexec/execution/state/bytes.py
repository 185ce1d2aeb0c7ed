"""Bytes of memories: dense, or of their whole capacity with room behind the rows."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream, begin_host_read
from gpuexec.execution.resources.fence import Fence
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]


class HasRegion(Protocol):
    """What keeps bytes as long as it is held."""

    @property
    def region(self) -> Region:
        """The bytes."""


class RowHolders:
    """Who holds rows in the bytes of memories that grow together; each is of interest while somebody else holds it.

    Memories that were apart and come to be appended to together have one from then on: what was noted of either counts
    for both.
    """

    __slots__ = ("_held", "_joined")

    def __init__(self) -> None:
        self._held: list[weakref.ref[Any]] = []
        self._joined: RowHolders | None = None

    def add(self, carried: Any) -> None:
        """Note who holds rows."""
        root = self._find_root()
        root._held = [each for each in root._held if each() is not None]
        root._held.append(weakref.ref(carried))

    def list_held(self) -> list[Any]:
        """Return who holds rows."""
        return [held for held in [each() for each in self._find_root()._held] if held is not None]

    def join(self, other: RowHolders) -> None:
        """Make both one."""
        root, joined = self._find_root(), other._find_root()
        if root is not joined:
            root._held += joined._held
            joined._held, joined._joined = [], root

    def _find_root(self) -> RowHolders:
        root = self
        while root._joined is not None:
            root = root._joined
        return root


@dataclass(slots=True, eq=False)
class CacheBytes:
    """Bytes of a memory's whole capacity, to which work of one stream appends.

    Attributes:
        owner: What has the bytes.
        whole: Their spec, the capacity along ``axis``.
        axis: The one that grows.
        stream: Whose work writes them; None: nobody's.
        holders: Who holds rows here, and in the bytes of memories that grow with this one.
    """

    owner: HasRegion
    whole: TensorSpec
    axis: int
    stream: Stream | None
    holders: RowHolders = field(default_factory=RowHolders)


def copy_rows(
    stream: Stream, spec: TensorSpec, axis: int, source: tuple[int, int], destination: tuple[int, int]
) -> None:
    """Copy a tensor between row-major bytes that have different extents along an axis.

    Args:
        stream: Where to.
        spec: What is copied.
        axis: The one along which both have room for more.
        source: Address and extent.
        destination: Address and extent.
    """
    for taken, put, nbytes in _list_pieces(spec, axis, source[1], destination[1]):
        stream.copy(destination[0] + put, source[0] + taken, nbytes)


def fetch(
    backend: Backend, spec: TensorSpec, region: Region, fence: Fence, cache: CacheBytes | None, owner: object
) -> Array:
    """Block for a tensor that lies on the device.

    Args:
        backend: Where.
        spec: Of the tensor.
        region: Its bytes.
        fence: Of the work that makes it, which is on its stream.
        cache: Where it lies with room behind its rows; None: densely.
        owner: What lends its bytes.

    Raises:
        GpuexecError: What that work raised.
    """
    if not spec.size:
        return np.empty(spec.shape, spec.dtype)
    pieces = [(0, 0, spec.nbytes)]
    if cache is not None:
        pieces = list(_list_pieces(spec, cache.axis, cache.whole.shape[cache.axis], spec.shape[cache.axis]))
    block = backend.staging.take(spec.nbytes)
    assert block.array is not None
    event = backend.device.create_event()
    try:
        with backend.transfers.lock:
            stream = backend.transfers.open()
            for each in fence.events:
                stream.wait(each)
            for taken, put, nbytes in pieces:
                stream.copy_to_host(block.array[put : put + nbytes], region.address + taken)
            stream.record(event)
        backend.deferred_free.hold(event, region.memory, owner)
        event.synchronize()
        begin_host_read(block, spec.nbytes)
        return block.array[: spec.nbytes].copy().view(spec.dtype).reshape(spec.shape)
    finally:
        backend.staging.give_back(block, event)


def _list_pieces(spec: TensorSpec, axis: int, source: int, destination: int) -> Iterator[tuple[int, int, int]]:
    """Yield dense pieces of a tensor: byte offsets in both, and bytes."""
    row = prod(spec.shape[axis + 1 :]) * spec.dtype.itemsize
    nbytes = spec.shape[axis] * row
    if not nbytes:
        return
    for index in range(prod(spec.shape[:axis])):
        yield index * source * row, index * destination * row, nbytes
