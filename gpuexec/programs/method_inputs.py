"""The inputs of a Method: each has a place of its own, stays set until it is replaced, and is taken at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError, StaleError
from gpuexec.graphs import Value
from gpuexec.programs.memory_manager import Sharing
from gpuexec.programs.method_places import Places
from gpuexec.programs.slot_marks import SlotMarks
from gpuexec.resources.fence import Fence
from gpuexec.resources.frames import Frame
from gpuexec.resources.memory import BorrowedMemory
from gpuexec.resources.syncs import SyncLog
from gpuexec.results.arenas import view_region, wrap_region
from gpuexec.results.readback import ReadbackRequest
from gpuexec.results.tensor import Tensor
from gpuexec.running.binding import bind_device, bind_object
from gpuexec.running.bound import Bound
from gpuexec.running.held import Held
from gpuexec.running.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Memory, Region, Stream, begin_host_write
from gpuexec.spec import TensorSpec, is_host_object

Array = np.ndarray[Any, Any]
_Put = Callable[[], None]


class SlotBinder:
    """Binds the inputs of a Method run after run.

    What is set from the host is copied at once: into its window, or into pinned memory lent by the device where nothing
    is planned. A run brings it to its place on the device, once; later runs find it there. Device arrays are used where
    they lie, but for a Method's own outputs in memory of the user's, which the run is about to write: they are copied.

    Args:
        backend: Where.
        stream: Of the runs.
        syncs: Where waits are counted.
        places: Where inputs lie on the device.
        sharing: What is shared with other Methods whose slots are in the same memory.
    """

    def __init__(
        self,
        backend: Backend,
        stream: Stream,
        syncs: SyncLog,
        places: Places,
        sharing: Sharing | None,
    ) -> None:
        self._backend, self._stream, self._syncs = backend, stream, syncs
        self._places, self._sharing = places, sharing
        self.kept: dict[str, GivenInput] = {}
        self._blocks: dict[str, Memory] = {}
        # The last run that uses what an input was set to.
        self._uses: dict[str, Fence] = {}
        # What was brought to the places, when (as the sharing counts), and to which memory.
        self._there: dict[str, tuple[GivenInput, int, Memory]] = {}
        self._marks = SlotMarks(places, sharing)

    def set(self, name: str, item: GivenInput) -> None:
        """Set an input for the runs to come. Host arrays are copied, unless they are borrowed and dense."""
        if isinstance(item, HostArray) and item.array is not None and not is_host_object(item.spec.dtype):
            is_dense = item.array.flags.c_contiguous and item.array.flags.aligned
            if not (item.is_borrowed and is_dense):
                self._set_host(name, item.spec, item.array)
                return
        self._let_go(name)
        self.kept[name] = item

    def buffer(self, name: str, spec: TensorSpec) -> Tensor:
        """Return the place of an input as a tensor to write to, and set the input to it."""
        use = self._uses.get(name)
        if not self._backend.device.target.has_kernels:
            self._wait_for_window(name)
        self._let_go(name)
        region = self._places.reserve(name, spec.nbytes)
        tensor = wrap_region(self._backend, region, spec, name, self._stream)
        if use is not None:
            tensor._content.lease.readers.add(use)
        self.kept[name] = DeviceArray(
            tensor._content.place, tensor, tensor._content.fence, tensor._content.lease.readers
        )
        self._marks.note(name)
        return tensor

    def check_apart(self, region: Region, what: str) -> None:
        """Check that bytes are not those of a place: what is set stays there from run to run.

        Raises:
            InputError: They are.
        """
        if self._places.holds(region):
            raise InputError(f"{what} overlaps the memory of an input that stays set; give each bytes of its own.")

    # ---- what an engine asks for

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on the device for inputs from the host."""
        if self._backend.device.target.has_kernels:
            for name, item in given.items():
                if isinstance(item, HostArray) and not is_host_object(item.spec.dtype):
                    self._places.reserve(name, item.spec.nbytes)

    def bind(self, bound: Bound, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run.

        Raises:
            StaleError: An input lay in memory that another Method has used since.
        """
        self._check_marks()
        puts: list[_Put] = []
        for value in inputs:
            item = given[value.name]
            if isinstance(item, DeviceArray):
                puts += self._bind_device(bound, value, item)
            elif is_host_object(item.spec.dtype):
                bind_object(bound, value, item)
            else:
                puts += self._bind_host(bound, value, item)
            self._uses[value.name] = bound.reading
        if self._sharing is not None:
            self._sharing.use = bound.reading

        def upload() -> None:
            for put in puts:
                put()

        bound.upload = upload if puts else None

    def unpin(self) -> None:
        """Keep pinned memory: what is set stays where it is."""

    def give_back(self) -> None:
        """Let go of room that other sizes took; the caller has waited."""
        self._places.give_back()

    @property
    def nbytes(self) -> int:
        """Bytes on the device that inputs take; without kernels they are used where they lie on the host."""
        return self._places.nbytes if self._backend.device.target.has_kernels else 0

    def release(self) -> None:
        """Give back what is held; the caller has waited for all runs."""
        for name in list(self._blocks):
            self._backend.staging.give_back(self._blocks.pop(name))
        self._places.clear()
        for each in (self.kept, self._uses, self._there):
            each.clear()
        self._marks.clear()

    # ---- setting

    def _set_host(self, name: str, spec: TensorSpec, array: Array) -> None:
        slot = self._places.find_slot(name)
        if slot is None:
            self._let_go(name)
            region = self._take_block(name, spec.nbytes)
        else:
            region = Region(slot.window.memory, slot.window.offset, spec.nbytes)
            self._wait_for_window(name)
            self._let_go(name)
        window = view_region(region).view(spec.dtype).reshape(spec.shape)
        np.copyto(window, array)
        self.kept[name] = HostArray(spec, window)
        self._marks.note(name)

    def _wait_for_window(self, name: str) -> None:
        """Wait until no run reads the window: there is but one."""
        uses = (self._uses.get(name), None if self._sharing is None else self._sharing.use)
        for use in uses:
            if use is not None and not use.is_done():
                self._syncs.note_wait(f"input {name!r}", "a run in flight reads the memory planned for it")
                use.settle()

    def _take_block(self, name: str, nbytes: int) -> Region:
        block = self._backend.staging.take(max(nbytes, 1))
        begin_host_write(block, nbytes)
        self._blocks[name] = block
        return Region(block, 0, nbytes)

    def _let_go(self, name: str) -> None:
        """Forget what an input is set to; runs in flight may use it still."""
        for each in (self.kept, self._there):
            each.pop(name, None)
        self._marks.forget(name)
        block, use = self._blocks.pop(name, None), self._uses.pop(name, None)
        if block is None:
            return
        staging = self._backend.staging
        if use is None:
            staging.give_back(block)
        else:
            use.when_issued(lambda: staging.give_back(block, *use.events[:1]))

    # ---- binding

    def _check_marks(self) -> None:
        """Check that nobody else has used the slots since they were written."""
        lost = self._marks.list_lost()
        for name in lost:
            self._let_go(name)
        if lost:
            raise StaleError(
                f"Input {lost[0]!r} lay in memory that another Method has used since; set it again.", value=lost[0]
            )

    def _bind_device(self, bound: Bound, value: Value, item: DeviceArray) -> list[_Put]:
        is_own = item.readers is bound.frame.readers
        if is_own and not item.place.is_known:
            self._syncs.note_wait(f"input {value.name!r}", "an output whose shape is not known yet")
            item.fence.wait_issued()
        source = item.place.region if item.place.is_known else None
        if source is not None and (bound.frame.holds(source) or (is_own and bound.frame.is_shared)):
            return self._bind_copy(bound, value, source, item)
        bind_device(bound, value, item)
        if is_own and source is not None:
            self._keep(value.name, source, item.spec, item.fence)
        return []

    def _bind_copy(self, bound: Bound, value: Value, source: Region, item: DeviceArray) -> list[_Put]:
        """Bind bytes that this run or another will write: copied to the input's place."""
        name, spec, copied = value.name, item.spec, Fence()
        region = self._places.reserve(name, spec.nbytes)
        bound.sources.append(item.fence)
        bound.keep += [item.source, source.memory, region.memory]
        bound.env[value] = Held(spec, region)
        self._keep(name, region, spec, copied)
        self._marks.note(name)

        def put() -> None:
            if spec.nbytes:
                self._stream.copy(region.address, source.address, spec.nbytes)
            copied.issue(())

        lost = StaleError(f"Input {name!r} was an output that a run given up did not get to copy; set it.", value=name)
        bound.finish.append(lambda _: _give_up(copied, lost))
        return [put]

    def _keep(self, name: str, region: Region, spec: TensorSpec, fence: Fence) -> None:
        """Let an input stay set to bytes that no run will write, in place of an output about to be stale."""
        tensor = wrap_region(self._backend, region, spec, name, self._stream, fence)
        content = tensor._content
        self._there.pop(name, None)
        self.kept[name] = DeviceArray(content.place, tensor, fence, content.lease.readers)

    def _bind_host(self, bound: Bound, value: Value, item: HostArray) -> list[_Put]:
        if item.request is not None:
            return self._bind_late(bound, value, item.spec, item.request)
        assert item.array is not None
        raw = item.array.reshape(-1).view(np.uint8)
        bound.keep.append(item.array)
        if not self._backend.device.target.has_kernels:
            region = Region(BorrowedMemory.of(raw), 0, raw.nbytes)
            if bound.frame.holds(region):
                region = Region(BorrowedMemory.of(raw.copy()), 0, raw.nbytes)
            bound.env[value] = Held(item.spec, region, item.array)
            return []
        region = self._places.reserve(value.name, raw.nbytes)
        bound.keep.append(region.memory)
        bound.env[value] = Held(item.spec, region, item.array)
        now = self._marks.enter()
        there, since, memory = self._there.get(value.name, (None, 0, None))
        if there is item and since == now and memory is region.memory and not item.is_borrowed:
            return []

        def put() -> None:
            if raw.nbytes:
                self._stream.copy_to_device(region.address, raw)
            self._there[value.name] = (item, now, region.memory)

        return [put]

    def _bind_late(self, bound: Bound, value: Value, spec: TensorSpec, request: ReadbackRequest) -> list[_Put]:
        """Bind content that is on its way from another device."""
        staging, nbytes = self._backend.staging, spec.nbytes
        block = staging.take(max(nbytes, 1))
        begin_host_write(block, nbytes)
        bound.finish.append(lambda event: staging.give_back(block, event))
        bound.requests.append(request)
        window = view_region(Region(block, 0, nbytes)).view(spec.dtype).reshape(spec.shape)
        has_kernels = self._backend.device.target.has_kernels
        region = self._places.reserve(value.name, nbytes) if has_kernels else Region(block, 0, nbytes)
        bound.keep.append(region.memory)
        held = bound.env[value] = Held(spec, region)
        self._there.pop(value.name, None)

        def put() -> None:
            np.copyto(window, request.view())
            held.array = window
            if has_kernels and nbytes:
                self._stream.copy_to_device(region.address, window.reshape(-1).view(np.uint8))

        return [put]


def _give_up(fence: Fence, failure: StaleError) -> None:
    """Say that work will never run, unless it is on its stream."""
    fence.issue((), failure)
