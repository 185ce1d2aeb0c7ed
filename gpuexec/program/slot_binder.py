"""Input binding of a Method: the values its inputs are set to, run after run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpuexec.devices.device import MemoryBlock, Region, begin_host_write
from gpuexec.errors import StaleError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.memory import BorrowedMemory
from gpuexec.execution.results.arenas import view_region
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.runs.binding import bind_device, bind_object, count_copied_bytes
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.program.method_inputs import MethodInputs

_Put = Callable[[], None]


class SlotBinder:
    """Binds ``inputs``, each of which has a place of its own.

    A run brings what was set from the host to its place on the device, once; later runs find it there. Device arrays
    are used where they lie, but for a Method's own outputs in memory of the user's, which the run is about to write:
    they are copied, as are arrays that start where kernels can't read.
    """

    def __init__(self, inputs: MethodInputs) -> None:
        self.inputs, self.kept = inputs, inputs.kept
        self._backend, self._stream = inputs.backend, inputs.stream
        self._syncs, self._places = inputs.syncs, inputs.places
        self._has_kernels = inputs.backend.device.target.has_kernels
        # The arrays uploaded, and the memory they were uploaded to.
        self._there: dict[str, tuple[HostArray, MemoryBlock]] = {}

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on the device for inputs from the host, and for those copied for where they start."""
        if self._has_kernels:
            for name, item in given.items():
                is_brought = isinstance(item, HostArray) and not is_host_object(item.spec.dtype)
                if is_brought or count_copied_bytes(self._backend.device.target, {name: item}):
                    self._places.reserve(name, item.spec.nbytes)

    def bind(self, prepared: PreparedRun, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run.

        Raises:
            StaleError: An input lay in memory that another Method has used since.
        """
        self.inputs.enter()
        prepared.room = self._places.reserve
        puts: list[_Put] = []
        for value in inputs:
            item = given[value.name]
            if isinstance(item, DeviceArray):
                puts += self._bind_device(prepared, value, item)
            elif is_host_object(item.spec.dtype):
                bind_object(prepared, value, item)
            else:
                puts += self._bind_host(prepared, value, item)
        self.inputs.use((value.name for value in inputs), prepared.reading)

        def upload() -> None:
            for put in puts:
                put()

        prepared.upload = upload if puts else None

    def unpin(self) -> None:
        """Keep pinned memory: what is set stays where it is."""

    def give_back(self) -> None:
        """Free room that other sizes took; the caller has waited."""
        self._places.give_back()

    @property
    def nbytes(self) -> int:
        """Bytes on the device that inputs take; without kernels they are used where they lie on the host."""
        return self._places.nbytes if self._has_kernels else 0

    def release(self) -> None:
        """Give back what is held; the caller has waited for all runs."""
        self.inputs.clear()
        self._there.clear()

    def _bind_device(self, prepared: PreparedRun, value: Value, item: DeviceArray) -> list[_Put]:
        self._there.pop(value.name, None)
        is_own = item.readers is prepared.frame.readers
        if is_own and not item.place.is_known:
            self._syncs.note_wait(f"input {value.name!r}", "an output whose shape is not known yet")
            item.fence.wait_issued()
        source = item.place.region if item.place.is_known else None
        if source is not None and (prepared.frame.holds(source) or (is_own and prepared.frame.is_shared)):
            return self._bind_copy(prepared, value, source, item)
        bind_device(prepared, value, item)
        if is_own and source is not None:
            self.inputs.keep(value.name, source, item.spec, item.fence)
        return []

    def _bind_copy(self, prepared: PreparedRun, value: Value, source: Region, item: DeviceArray) -> list[_Put]:
        """Bind bytes that this run or another will write: copied to the input's place."""
        name, spec, copied = value.name, item.spec, Fence()
        region = self._places.reserve(name, spec.nbytes)
        prepared.sources.append(item.fence)
        prepared.keep += [item.source, source.memory, region.memory]
        prepared.values[value] = ValueLocation(spec, region)
        self.inputs.keep(name, region, spec, copied)

        def put() -> None:
            if spec.nbytes:
                self._stream.copy(region.address, source.address, spec.nbytes)
            copied.issue(())

        lost = StaleError(f"Input {name!r} was an output that a run given up did not get to copy; set it.", value=name)
        prepared.finish.append(lambda _: _give_up(copied, lost))
        return [put]

    def _bind_host(self, prepared: PreparedRun, value: Value, item: HostArray) -> list[_Put]:
        if item.request is not None:
            return self._bind_late(prepared, value, item.spec, item.request)
        assert item.array is not None
        raw = item.array.reshape(-1).view(np.uint8)
        prepared.keep.append(item.array)
        if not self._has_kernels:
            region = Region(BorrowedMemory.of(raw), 0, raw.nbytes)
            if prepared.frame.holds(region):
                region = Region(BorrowedMemory.of(raw.copy()), 0, raw.nbytes)
            prepared.values[value] = ValueLocation(item.spec, region, item.array)
            return []
        region = self._places.reserve(value.name, raw.nbytes)
        prepared.keep.append(region.memory)
        prepared.values[value] = ValueLocation(item.spec, region, item.array)
        there, memory = self._there.get(value.name, (None, None))
        if there is item and memory is region.memory and not item.is_borrowed:
            return []

        def put() -> None:
            if raw.nbytes:
                self._stream.copy_to_device(region.address, raw)
            self._there[value.name] = (item, region.memory)

        return [put]

    def _bind_late(self, prepared: PreparedRun, value: Value, spec: TensorSpec, request: ReadbackRequest) -> list[_Put]:
        """Bind content that is on its way from another device."""
        staging, nbytes = self._backend.staging, spec.nbytes
        block = staging.take(max(nbytes, 1))
        begin_host_write(block, nbytes)
        prepared.finish.append(lambda event: staging.give_back(block, event))
        prepared.requests.append(request)
        window = view_region(Region(block, 0, nbytes)).view(spec.dtype).reshape(spec.shape)
        region = self._places.reserve(value.name, nbytes) if self._has_kernels else Region(block, 0, nbytes)
        prepared.keep.append(region.memory)
        location = prepared.values[value] = ValueLocation(spec, region)
        self._there.pop(value.name, None)

        def put() -> None:
            np.copyto(window, request.view())
            location.array = window
            if self._has_kernels and nbytes:
                self._stream.copy_to_device(region.address, window.reshape(-1).view(np.uint8))

        return [put]


def _give_up(fence: Fence, failure: StaleError) -> None:
    """Fail a fence whose work will never run, unless it is on its stream."""
    fence.issue((), failure)
