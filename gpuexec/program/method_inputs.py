"""Inputs of a Method: each has its own place, is copied when it is set, and stays set until it is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Event, MemoryBlock, Region, Stream, begin_host_write
from gpuexec.errors import InputError, StaleError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.memory import Allocate, BorrowedMemory
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.arenas import view_region, wrap_region
from gpuexec.execution.results.readback import ReadbackRequest
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.input_binding import bind_device, bind_object, count_copied_bytes
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.ir.graphs import Value
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.program.memory_manager import SharedUse

Array = np.ndarray[Any, Any]
_Put = Callable[[], None]


@dataclass(frozen=True, slots=True)
class InputSlot:
    """Planned memory of an input: on the device, and on the host, where it is copied first (the same on a CPU)."""

    place: Region
    window: Region


class MethodInputs:
    """The values that inputs are set to and their memory, bound to run after run. ``kept`` are the values.

    What is set from the host is copied at once: into its window, or into pinned memory lent by the device where nothing
    is planned. A run brings it to its place on the device, once; later runs find it there. Device arrays are used where
    they lie, but for a Method's own outputs in memory of the user's, which the run is about to write: they are copied,
    as are arrays that start where kernels can't read.

    Args:
        backend: Where.
        stream: Of the runs.
        syncs: Where waits are counted.
        allocate: Gives places to inputs that have no slot, each as large as its largest content so far.
        slots: Planned memory by input.
        shared_use: What is shared with other Methods whose slots are in the same memory; None: nothing.
    """

    def __init__(
        self,
        backend: Backend,
        stream: Stream,
        syncs: SyncLog,
        allocate: Allocate,
        slots: Mapping[str, InputSlot],
        shared_use: SharedUse | None,
    ) -> None:
        self._backend, self._stream, self._syncs = backend, stream, syncs
        self._has_kernels = backend.device.target.has_kernels
        self._allocate, self._slots, self._shared_use = allocate, dict(slots), shared_use
        self.kept: dict[str, GivenInput] = {}
        # Places on the device that are not planned, and pinned memory with what was set from the host.
        self._places: dict[str, MemoryBlock] = {}
        self._staged: dict[str, MemoryBlock] = {}
        # The arrays uploaded, and the memory they were uploaded to.
        self._uploaded: dict[str, tuple[HostArray, MemoryBlock]] = {}
        # The last run that uses what an input was set to.
        self._uses: dict[str, Fence] = {}
        # How often the slots had changed hands when each was written: another count now, and its content is lost.
        self._marks: dict[str, int] = {}

    def set(self, name: str, item: GivenInput) -> None:
        """Set an input for the runs to come. Host arrays are copied, unless they are borrowed and dense."""
        if isinstance(item, HostArray) and item.array is not None and not is_host_object(item.spec.dtype):
            is_dense = item.array.flags.c_contiguous and item.array.flags.aligned
            if not (item.is_borrowed and is_dense):
                self._copy(name, item.spec, item.array)
                return
        self._let_go(name)
        self.kept[name] = item

    def lend(self, name: str, spec: TensorSpec) -> Tensor:
        """Return the place of an input as a tensor to write to, and set the input to it."""
        use = self._uses.get(name)
        if not self._has_kernels:
            self._wait_for_window(name)
        self._let_go(name)
        tensor = self._keep(name, self._reserve_place(name, spec.nbytes), spec)
        if use is not None:
            tensor._content.lease.readers.add(use)
        return tensor

    def check_apart(self, region: Region, what: str) -> None:
        """Check that bytes are not those of a place that an allocator gave: what is set stays there from run to run.

        Raises:
            InputError: They are.
        """
        first, last = region.address, region.address + region.nbytes
        if any(first < each.address + each.nbytes and each.address < last for each in self._places.values()):
            raise InputError(f"{what} overlaps the memory of an input that stays set; give each bytes of its own.")

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on the device for inputs from the host, and for those copied for where they start."""
        if self._has_kernels:
            for name, item in given.items():
                is_brought = isinstance(item, HostArray) and not is_host_object(item.spec.dtype)
                if is_brought or count_copied_bytes(self._backend.device.target, {name: item}):
                    self._reserve_place(name, item.spec.nbytes)

    def bind(self, prepared: PreparedRun, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run.

        Raises:
            StaleError: Another Method has used slots since they were written; those inputs are no longer set.
        """
        self._drop_lost()
        prepared.room = self._reserve_place
        puts: list[_Put] = []
        for value in inputs:
            item = given[value.name]
            if isinstance(item, DeviceArray):
                puts += self._bind_device(prepared, value, item)
            elif is_host_object(item.spec.dtype):
                bind_object(prepared, value, item)
            else:
                puts += self._bind_host(prepared, value, item)
        for value in inputs:
            self._uses[value.name] = prepared.reading
        if self._shared_use is not None:
            self._shared_use.last_use = prepared.reading

        def upload() -> None:
            for put in puts:
                put()

        prepared.upload = upload if puts else None

    def unpin(self) -> None:
        """Keep pinned memory: what is set stays where it is."""

    def give_back(self) -> None:
        """Free places that are not planned; they are allocated anew as large as needed. The caller has waited."""
        self._places.clear()

    @property
    def nbytes(self) -> int:
        """Bytes on the device that inputs take; without kernels they are used where they lie on the host."""
        if not self._has_kernels:
            return 0
        planned = sum(slot.place.nbytes for slot in self._slots.values())
        return planned + sum(memory.nbytes for memory in self._places.values())

    def release(self) -> None:
        """Free all memory; the caller has waited for all runs."""
        for name in list(self._staged):
            self._backend.staging.give_back(self._staged.pop(name))
        for each in (self._places, self._slots, self.kept, self._uses, self._marks, self._uploaded):
            each.clear()

    def _copy(self, name: str, spec: TensorSpec, array: Array) -> None:
        """Set an input to a copy of a host array: in its window, or in pinned memory."""
        slot = self._slots.get(name)
        if slot is None:
            self._let_go(name)
            block = self._backend.staging.take(max(spec.nbytes, 1))
            begin_host_write(block, spec.nbytes)
            self._staged[name] = block
            region = Region(block, 0, spec.nbytes)
        else:
            region = Region(slot.window.memory, slot.window.offset, spec.nbytes)
            self._wait_for_window(name)
            self._let_go(name)
        window = view_region(region).view(spec.dtype).reshape(spec.shape)
        np.copyto(window, array)
        self.kept[name] = HostArray(spec, window)
        self._mark(name)

    def _keep(self, name: str, region: Region, spec: TensorSpec, written: Fence | None = None) -> Tensor:
        """Keep an input set to device bytes that no run will write, valid once ``written`` is done."""
        tensor = wrap_region(self._backend, region, spec, name, self._stream, written)
        content = tensor._content
        self.kept[name] = DeviceArray(content.place, tensor, content.fence, content.lease.readers)
        self._mark(name)
        return tensor

    def _wait_for_window(self, name: str) -> None:
        """Wait until no run reads the window: there is but one."""
        uses = (self._uses.get(name), None if self._shared_use is None else self._shared_use.last_use)
        for use in uses:
            if use is not None and not use.is_done():
                self._syncs.note_wait(f"input {name!r}", "a run in flight reads the memory planned for it")
                use.settle()

    def _let_go(self, name: str) -> None:
        """Forget what an input is set to; runs in flight may use it still."""
        self.kept.pop(name, None)
        self._marks.pop(name, None)
        block, use = self._staged.pop(name, None), self._uses.pop(name, None)
        if block is None:
            return
        staging = self._backend.staging
        if use is None:
            staging.give_back(block)
        else:
            use.when_issued(lambda: staging.give_back(block, *use.events[:1]))

    def _reserve_place(self, name: str, nbytes: int) -> Region:
        """Return the place of an input; what runs in flight use of one that it outgrew lives on with them.

        Raises:
            OutOfMemoryError: There is no room.
        """
        slot = self._slots.get(name)
        if slot is not None:
            return Region(slot.place.memory, slot.place.offset, nbytes)
        memory = self._places.get(name)
        if memory is None or memory.nbytes < nbytes:
            memory = self._places[name] = self._allocate(max(nbytes, 1))
        return Region(memory, 0, nbytes)

    def _mark(self, name: str) -> None:
        """Note that what an input is set to got into its slot now, if it has one."""
        if name in self._slots:
            self._marks[name] = self._enter_slots()

    def _enter_slots(self) -> int:
        """Note that this Method uses the slots now; return how often they have changed hands."""
        return 0 if self._shared_use is None else self._shared_use.enter(self)

    def _drop_lost(self) -> None:
        """Use the slots for a run; forget inputs whose slots another Method has used since they were written.

        Raises:
            StaleError: There are such; names the first.
        """
        now = self._enter_slots()
        lost = [name for name, mark in self._marks.items() if mark != now]
        for name in lost:
            self._let_go(name)
        if lost:
            raise StaleError(
                f"Input {lost[0]!r} lay in memory that another Method has used since; set it again.", value=lost[0]
            )

    def _bind_device(self, prepared: PreparedRun, value: Value, item: DeviceArray) -> list[_Put]:
        self._uploaded.pop(value.name, None)
        is_own = item.readers is prepared.frame.readers
        if is_own and not item.place.is_known:
            self._syncs.note_wait(f"input {value.name!r}", "an output whose shape is not known yet")
            item.fence.wait_issued()
        source = item.place.region if item.place.is_known else None
        if source is not None and (prepared.frame.holds(source) or (is_own and prepared.frame.is_shared)):
            return self._bind_copy(prepared, value, source, item)
        bind_device(prepared, value, item)
        if is_own and source is not None:
            self._keep(value.name, source, item.spec, item.fence)
        return []

    def _bind_copy(self, prepared: PreparedRun, value: Value, source: Region, item: DeviceArray) -> list[_Put]:
        """Bind bytes that this run or another will write: copied to the input's place."""
        name, spec, copied = value.name, item.spec, Fence()
        region = self._reserve_place(name, spec.nbytes)
        prepared.sources.append(item.fence)
        prepared.keep += [item.source, source.memory, region.memory]
        prepared.values[value] = ValueLocation(spec, region)
        self._keep(name, region, spec, copied)

        def put() -> None:
            if spec.nbytes:
                self._stream.copy(region.address, source.address, spec.nbytes)
            copied.issue(())

        lost = StaleError(f"Input {name!r} was an output that a run given up did not get to copy; set it.", value=name)

        def give_up(_: Event) -> None:
            copied.issue((), lost)  # nothing, where it was copied

        prepared.finish.append(give_up)
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
        region = self._reserve_place(value.name, raw.nbytes)
        prepared.keep.append(region.memory)
        prepared.values[value] = ValueLocation(item.spec, region, item.array)
        uploaded, memory = self._uploaded.get(value.name, (None, None))
        if uploaded is item and memory is region.memory and not item.is_borrowed:
            return []

        def put() -> None:
            if raw.nbytes:
                self._stream.copy_to_device(region.address, raw)
            self._uploaded[value.name] = (item, region.memory)

        return [put]

    def _bind_late(self, prepared: PreparedRun, value: Value, spec: TensorSpec, request: ReadbackRequest) -> list[_Put]:
        """Bind content that is on its way from another device."""
        staging, nbytes = self._backend.staging, spec.nbytes
        block = staging.take(max(nbytes, 1))
        begin_host_write(block, nbytes)
        prepared.finish.append(lambda event: staging.give_back(block, event))
        prepared.requests.append(request)
        window = view_region(Region(block, 0, nbytes)).view(spec.dtype).reshape(spec.shape)
        region = self._reserve_place(value.name, nbytes) if self._has_kernels else Region(block, 0, nbytes)
        prepared.keep.append(region.memory)
        location = prepared.values[value] = ValueLocation(spec, region)
        self._uploaded.pop(value.name, None)

        def put() -> None:
            np.copyto(window, request.view())
            location.array = window
            if self._has_kernels and nbytes:
                self._stream.copy_to_device(region.address, window.reshape(-1).view(np.uint8))

        return [put]
