"""Input binding of a run: device arrays in place, host arrays staged for one upload."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import ByteArray, MemoryBlock, Region, Stream, align, begin_host_write
from gpuexec.errors import GpuexecError
from gpuexec.execution.resources.aligned_copy import find_alignment, is_aligned
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import is_host_object
from gpuexec.ir.target import Target

Array = np.ndarray[Any, Any]


class InputBinder:
    """Binds inputs run after run: device arrays where they are, host arrays through one pinned block and one upload.

    ``kept`` are the inputs of the last run; those from the host are views of its pinned block.
    """

    def __init__(self, backend: Backend, stream: Stream) -> None:
        self._backend, self._stream = backend, stream
        self._has_kernels = backend.device.target.has_kernels
        self._block: MemoryBlock | None = None
        self.kept: dict[str, GivenInput] = {}

    def bind(self, prepared: PreparedRun, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run, and copy host arrays that are not borrowed."""
        staged: list[tuple[Value, HostArray, int]] = []
        borrowed: list[tuple[Value, HostArray, ByteArray]] = []
        kept = dict(given)
        for value in inputs:
            item = given[value.name]
            if isinstance(item, DeviceArray):
                bind_device(prepared, value, item)
            elif is_host_object(item.spec.dtype):
                bind_object(prepared, value, item)
            elif item.is_borrowed and (raw := _find_bytes(item)) is not None:
                borrowed.append((value, item, raw))
                prepared.keep.append(item.array)
                if not item.is_kept:
                    kept[value.name] = item.returned()
            else:
                staged.append((value, item, item.spec.nbytes))
        kept.update(self._bind_host(prepared, staged, borrowed))
        self.kept = kept

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on the device for inputs from the host."""
        frame.input(count_host_bytes(given))

    def unpin(self) -> None:
        """Keep inputs that stay set in ordinary memory, and give the pinned block back; the caller has waited."""
        for name, item in self.kept.items():
            if isinstance(item, HostArray) and item.request is not None and item.request.is_done():
                # A readback that failed is reported by the run that takes it.
                with contextlib.suppress(GpuexecError):
                    self.kept[name] = HostArray(item.spec, item.request.view().copy())
            elif isinstance(item, HostArray) and item.array is not None and not item.is_borrowed:
                self.kept[name] = HostArray(item.spec, item.array.copy())
        if self._block is not None:
            self._backend.staging.give_back(self._block)
        self._block = None

    def give_back(self) -> None:
        """Keep what there is: inputs lie in the frames."""

    def release(self) -> None:
        """Return the pinned block; the caller has waited for all runs."""
        if self._block is not None:
            self._backend.staging.give_back(self._block)
        self._block = None
        self.kept = {}

    def _bind_host(
        self,
        prepared: PreparedRun,
        staged: Sequence[tuple[Value, HostArray, int]],
        borrowed: Sequence[tuple[Value, HostArray, ByteArray]],
    ) -> dict[str, GivenInput]:
        """Lay staged arrays one after the other into a pinned block, borrowed ones behind them; return what to keep."""
        has_kernels = self._has_kernels
        total = 0
        for _, _, nbytes in staged:
            total += align(nbytes)
        staged_bytes = total
        for _, _, raw in borrowed:
            total += align(raw.nbytes)
        if self._block is not None:
            # Once this run has begun, arrays that stay set have been copied from the last run's block.
            prepared.begin.append(partial(self._backend.staging.give_back, self._block))
        block = self._block = self._backend.staging.take(max(staged_bytes, 1)) if staged else None
        if block is not None and has_kernels:
            begin_host_write(block, staged_bytes)
        home = prepared.frame.input(total) if has_kernels else block
        kept: dict[str, GivenInput] = {}
        late: list[tuple[ValueLocation, Array, ReadbackRequest]] = []
        direct: list[tuple[int, ByteArray]] = []
        offset = 0
        for value, item, nbytes in staged:
            assert block is not None and block.array is not None and home is not None
            window = block.array[offset : offset + nbytes].view(item.spec.dtype).reshape(item.spec.shape)
            location = prepared.values[value] = ValueLocation(item.spec, Region(home, offset, nbytes))
            if item.request is not None:
                prepared.requests.append(item.request)
                late.append((location, window, item.request))
                kept[value.name] = HostArray(item.spec, request=item.request)
            else:
                assert item.array is not None
                np.copyto(window, item.array)
                location.array = window
                kept[value.name] = HostArray(item.spec, window)
            offset += align(nbytes)
        for value, item, raw in borrowed:
            if has_kernels:
                assert home is not None
                region = Region(home, offset, raw.nbytes)
                direct.append((region.address, raw))
                offset += align(raw.nbytes)
            else:
                region = Region(BorrowedMemory.of(raw), 0, raw.nbytes)
            prepared.values[value] = ValueLocation(item.spec, region, item.array)
        source = block.array[:staged_bytes] if block is not None and block.array is not None else None
        if late or (has_kernels and total):
            prepared.upload = self._make_upload(home if has_kernels else None, source, late, direct)
        return kept

    def _make_upload(
        self,
        home: MemoryBlock | None,
        source: ByteArray | None,
        late: Sequence[tuple[ValueLocation, Array, ReadbackRequest]],
        direct: Sequence[tuple[int, ByteArray]],
    ) -> Callable[[], None]:
        stream = self._stream

        def upload() -> None:
            for location, window, request in late:
                np.copyto(window, request.view())
                location.array = window
            if home is not None and source is not None and source.nbytes:
                stream.copy_to_device(home.address, source)
            for address, raw in direct:
                if raw.nbytes:
                    stream.copy_to_device(address, raw)

        return upload


def bind_device(prepared: PreparedRun, value: Value, item: DeviceArray) -> ValueLocation:
    """Bind an input where it lies on the device."""
    prepared.sources.append(item.fence)
    prepared.keep.append(item.source)
    if item.readers is not None and item.readers is not prepared.frame.readers:
        item.readers.add(prepared.reading)
    location = prepared.values[value] = ValueLocation(item.spec)
    prepared.borrowed.append((value.name, location, item.place))
    if item.place.is_known:
        prepared.locate(location, item.place)
    return location


def bind_object(prepared: PreparedRun, value: Value, item: HostArray) -> None:
    """Bind strings or a container, which stay on the host; what another run makes comes when it is done."""
    location = prepared.values[value] = ValueLocation(item.spec, array=item.array)
    if item.request is not None:
        prepared.requests.append(item.request)
        prepared.objects.append((location, item.request))


def _find_bytes(item: HostArray) -> ByteArray | None:
    """Return the bytes of a borrowed array where they can be used as they lie."""
    array = item.array
    if array is None or not (array.flags.c_contiguous and array.flags.aligned):
        return None
    return array.reshape(-1).view(np.uint8)


def count_copied_bytes(target: Target, given: Mapping[str, GivenInput]) -> int:
    """Return how many bytes inputs take that are copied on the device for where they start, as far as that is known."""
    placed = [item.place for item in given.values() if isinstance(item, DeviceArray) and item.place.is_known]
    return sum(
        align(place.spec.nbytes)
        for place in placed
        if not place.is_object and not is_aligned(place.region, find_alignment(target, place.spec.dtype))
    )


def count_host_bytes(given: Mapping[str, GivenInput]) -> int:
    """Return how many bytes inputs from the host take on a device."""
    total = 0
    for item in given.values():
        if isinstance(item, HostArray) and not is_host_object(item.spec.dtype):
            total += align(item.spec.nbytes)
    return total
