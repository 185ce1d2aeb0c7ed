"""Values of loops on a device: slices where they lie, rows of scan outputs stacked in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuexec.devices.device import ALIGNMENT, Region, Stream
from gpuexec.execution.resources.exchange_pool import ExchangePool, Lent
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.spec import TensorSpec, is_host_object

Array = np.ndarray[Any, Any]
_FIRST_ROWS = 4


class LocatedValues:
    """Values of loops as locations, as `gpuexec.ops.control.trips.LoopValues` wants them.

    Args:
        stream: Where bytes are copied.
        pool: Lends the memory.
        locate: Returns the bytes of a value on the device, uploaded if need be.
    """

    def __init__(self, stream: Stream, pool: ExchangePool, locate: Callable[[ValueLocation], Region]) -> None:
        self.stream, self.pool, self.locate = stream, pool, locate

    def find_spec(self, value: ValueLocation) -> TensorSpec:
        """Return the shape and type of a value."""
        return value.spec

    def find_content(self, value: ValueLocation) -> Array | None:
        """Return the content of a value where the host has it."""
        return value.array

    def make(self, array: Array) -> ValueLocation:
        """Return a value that the host computed."""
        return ValueLocation(TensorSpec(array.shape, array.dtype), array=array, is_computed=True)

    def make_empty(self, spec: TensorSpec) -> ValueLocation:
        """Return a value without elements."""
        if is_host_object(spec.dtype):
            return self.make(np.empty(spec.shape, spec.dtype))
        lent = self.pool.lend(spec.nbytes)
        return ValueLocation(spec, Region(lent.memory, 0, spec.nbytes), owner=lent)

    def take_slice(self, value: ValueLocation, place: int) -> ValueLocation:
        """Return one slice along the first axis: the bytes where they lie, or a copy where they start at odd places."""
        spec = value.spec.with_shape(value.spec.shape[1:])
        content = None if value.array is None else value.array[place]
        if is_host_object(spec.dtype):
            return self.make(np.asarray(content, spec.dtype))
        region = self.locate(value)
        start = region.offset + place * spec.nbytes
        if start % ALIGNMENT == 0:
            part = Region(region.memory, start, spec.nbytes)
            return ValueLocation(spec, part, content, is_computed=True, owner=value.owner)
        lent = self.pool.lend(spec.nbytes)
        if spec.nbytes:
            self.stream.copy(lent.region.address, region.address + place * spec.nbytes, spec.nbytes)
        return ValueLocation(spec, lent.region, content, is_computed=True, owner=lent)

    def open_rows(self, max_rows: int | None) -> LocatedRows:
        """Return the rows of a scan output, none yet."""
        return LocatedRows(self, max_rows)


class LocatedRows:
    """Rows of a scan output, one behind the other in memory that doubles when it is full; strings on the host.

    Args:
        values: Stream and pool.
        max_rows: How many rows there will be at most, where that is known.
    """

    def __init__(self, values: LocatedValues, max_rows: int | None) -> None:
        self._values, self._max_rows = values, max_rows
        self._row: TensorSpec | None = None
        self._length = self._capacity = 0
        self._arrays: list[Array] = []
        self._lent: Lent | None = None

    def add(self, row: ValueLocation) -> None:
        """Copy a row behind those there are."""
        self._row = row.spec
        if is_host_object(row.spec.dtype):
            assert row.array is not None
            self._arrays.append(row.array)
        else:
            self._copy(row.spec.nbytes, self._values.locate(row))
        self._length += 1

    def stack(self, *, is_reversed: bool) -> ValueLocation:
        """Return the rows stacked along a new first axis."""
        assert self._row is not None
        if self._arrays:
            return self._values.make(np.stack(self._arrays[::-1] if is_reversed else self._arrays))
        assert self._lent is not None
        spec, row_nbytes = self._row.with_shape((self._length, *self._row.shape)), self._row.nbytes
        if not is_reversed or not row_nbytes:
            return ValueLocation(spec, Region(self._lent.memory, 0, spec.nbytes), owner=self._lent)
        turned = self._values.pool.lend(spec.nbytes)
        start, end = self._lent.region.address, turned.region.address + spec.nbytes
        for place in range(self._length):
            self._values.stream.copy(end - (place + 1) * row_nbytes, start + place * row_nbytes, row_nbytes)
        return ValueLocation(spec, Region(turned.memory, 0, spec.nbytes), owner=turned)

    def _copy(self, nbytes: int, region: Region) -> None:
        if self._length == self._capacity:
            self._grow(nbytes)
        assert self._lent is not None
        if nbytes:
            self._values.stream.copy(self._lent.region.address + self._length * nbytes, region.address, nbytes)

    def _grow(self, nbytes: int) -> None:
        before, filled = self._lent, self._capacity * nbytes
        wanted = 2 * self._capacity or _FIRST_ROWS
        self._capacity = wanted if self._max_rows is None else max(1, min(wanted, self._max_rows))
        self._lent = self._values.pool.lend(self._capacity * nbytes)
        if before is not None and filled:
            self._values.stream.copy(self._lent.region.address, before.region.address, filled)
