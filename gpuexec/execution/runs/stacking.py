"""Stack of the rows of a scan output in one tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpuexec.devices.device import Region, Stream
from gpuexec.errors import InputError
from gpuexec.execution.resources.pool import ExchangePool, Lent
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.spec import TensorSpec, is_container, is_host_object

Array = np.ndarray[Any, Any]
_FIRST_ROWS = 4


class Stack:
    """Rows of a scan output, one behind the other in memory that doubles when it is full; strings on the host.

    Args:
        stream: Where rows are copied.
        pool: Lends the memory.
        locate: Returns the bytes of a row on the device.
        expected: How many rows there will be at most, where that is known.
    """

    def __init__(
        self, stream: Stream, pool: ExchangePool, locate: Callable[[ValueLocation], Region], expected: int | None
    ) -> None:
        self._stream, self._pool, self._locate = stream, pool, locate
        self._expected = expected
        self._rows: list[TensorSpec] = []
        self._arrays: list[Array] = []
        self._lent: Lent | None = None
        self._capacity = 0

    def add(self, row: ValueLocation, index: int) -> None:
        """Copy a row behind those there are.

        Args:
            row: Where it is.
            index: Which scan output it belongs to, for messages.

        Raises:
            InputError: It is not like them, or no tensor.
        """
        spec = row.spec
        if is_container(spec.dtype):
            raise InputError(f"rows of scan output {index} must be tensors, got {spec}.")
        if self._rows and spec != self._rows[0]:
            raise InputError(
                f"rows of scan output {index} must be alike, got {self._rows[0]}, then {spec} in trip"
                f" {len(self._rows)}."
            )
        if is_host_object(spec.dtype):
            assert row.array is not None
            self._arrays.append(row.array)
        else:
            self._copy(spec, self._locate(row))
        self._rows.append(spec)

    def finish(self, *, is_reversed: bool = False) -> ValueLocation:
        """Return the rows stacked along a new first axis."""
        row, length = self._rows[0], len(self._rows)
        spec = row.with_shape((length, *row.shape))
        if self._arrays:
            return ValueLocation(
                spec, array=np.stack(self._arrays[::-1] if is_reversed else self._arrays), is_computed=True
            )
        assert self._lent is not None
        if not is_reversed or not row.nbytes:
            return ValueLocation(spec, Region(self._lent.memory, 0, spec.nbytes), owner=self._lent)
        turned = self._pool.lend(spec.nbytes)
        start, end = self._lent.region.address, turned.region.address + spec.nbytes
        for place in range(length):
            self._stream.copy(end - (place + 1) * row.nbytes, start + place * row.nbytes, row.nbytes)
        return ValueLocation(spec, Region(turned.memory, 0, spec.nbytes), owner=turned)

    def _copy(self, spec: TensorSpec, region: Region) -> None:
        if len(self._rows) == self._capacity:
            self._grow(spec.nbytes)
        assert self._lent is not None
        if spec.nbytes:
            self._stream.copy(self._lent.region.address + len(self._rows) * spec.nbytes, region.address, spec.nbytes)

    def _grow(self, nbytes: int) -> None:
        before, location = self._lent, self._capacity * nbytes
        wanted = 2 * self._capacity or _FIRST_ROWS
        self._capacity = wanted if self._expected is None else max(1, min(wanted, self._expected))
        self._lent = self._pool.lend(self._capacity * nbytes)
        if before is not None and location:
            self._stream.copy(self._lent.region.address, before.region.address, location)
