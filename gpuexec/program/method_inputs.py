"""Inputs of a Method: each has its own place, is taken at once, and stays set until it is replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream, begin_host_write
from gpuexec.errors import InputError, StaleError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.arenas import view_region, wrap_region
from gpuexec.execution.results.tensor import Tensor
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.program.memory_manager import Sharing
from gpuexec.program.method_places import InputPlaces
from gpuexec.program.slot_marks import SlotMarks

Array = np.ndarray[Any, Any]


class MethodInputs:
    """The values that inputs are set to, their memory, and the run that used each last.

    What is set from the host is copied at once: into its window, or into pinned memory lent by the device where nothing
    is planned. ``kept`` is what each input is set to.

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
        places: InputPlaces,
        sharing: Sharing | None,
    ) -> None:
        self.backend, self.stream, self.syncs = backend, stream, syncs
        self.places, self._sharing = places, sharing
        self.kept: dict[str, GivenInput] = {}
        self._blocks: dict[str, MemoryBlock] = {}
        # The last run that uses what an input was set to.
        self._uses: dict[str, Fence] = {}
        self._marks = SlotMarks(places, sharing)

    # ---- setting

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
        if not self.backend.device.target.has_kernels:
            self._wait_for_window(name)
        self._let_go(name)
        tensor = self.keep(name, self.places.reserve(name, spec.nbytes), spec)
        if use is not None:
            tensor._content.lease.readers.add(use)
        return tensor

    def check_apart(self, region: Region, what: str) -> None:
        """Check that bytes are not those of a place: what is set stays there from run to run.

        Raises:
            InputError: They are.
        """
        if self.places.holds(region):
            raise InputError(f"{what} overlaps the memory of an input that stays set; give each bytes of its own.")

    def clear(self) -> None:
        """Free all memory; the caller has waited for all runs."""
        for name in list(self._blocks):
            self.backend.staging.give_back(self._blocks.pop(name))
        self.places.clear()
        for each in (self.kept, self._uses, self._marks):
            each.clear()

    # ---- what a run does with them

    def enter(self) -> None:
        """Note that a run of this Method uses the slots now.

        Raises:
            StaleError: Another Method has used slots since they were written; those inputs are no longer set.
        """
        lost = self._marks.list_lost()
        for name in lost:
            self._let_go(name)
        if lost:
            raise StaleError(
                f"Input {lost[0]!r} lay in memory that another Method has used since; set it again.", value=lost[0]
            )

    def use(self, names: Iterable[str], run: Fence) -> None:
        """Note that a run uses what inputs are set to."""
        for name in names:
            self._uses[name] = run
        if self._sharing is not None:
            self._sharing.use = run

    def keep(self, name: str, region: Region, spec: TensorSpec, written: Fence | None = None) -> Tensor:
        """Keep an input set to device bytes that no run will write, valid once ``written`` is done."""
        tensor = wrap_region(self.backend, region, spec, name, self.stream, written)
        content = tensor._content
        self.kept[name] = DeviceArray(content.place, tensor, content.fence, content.lease.readers)
        self._marks.note(name)
        return tensor

    # ---- setting, in detail

    def _copy(self, name: str, spec: TensorSpec, array: Array) -> None:
        slot = self.places.find_slot(name)
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
                self.syncs.note_wait(f"input {name!r}", "a run in flight reads the memory planned for it")
                use.settle()

    def _take_block(self, name: str, nbytes: int) -> Region:
        block = self.backend.staging.take(max(nbytes, 1))
        begin_host_write(block, nbytes)
        self._blocks[name] = block
        return Region(block, 0, nbytes)

    def _let_go(self, name: str) -> None:
        """Forget what an input is set to; runs in flight may use it still."""
        self.kept.pop(name, None)
        self._marks.forget(name)
        block, use = self._blocks.pop(name, None), self._uses.pop(name, None)
        if block is None:
            return
        staging = self.backend.staging
        if use is None:
            staging.give_back(block)
        else:
            use.when_issued(lambda: staging.give_back(block, *use.events[:1]))
