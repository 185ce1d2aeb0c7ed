"""Bindings of a replay: the bytes of each input and output, from this submission or an earlier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Region, Stream
from gpuexec.errors import InputError
from gpuexec.execution.replay.replayable import Replayable
from gpuexec.execution.replay.staged_inputs import InputHome
from gpuexec.execution.resources.aligned_copy import Move, find_alignment, is_aligned
from gpuexec.execution.resources.frames import Frame
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.results.arenas import take_memory
from gpuexec.execution.runs.inputs import DeviceArray, GivenInput, HostArray, InputReader
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model

# What was copied into a pinned block: the block, and the inputs by name.
Staged = tuple[MemoryBlock, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Regions of inputs and outputs.

    Attributes:
        regions: By buffer, what the plan reads and writes.
        outputs: By name, what the caller reads.
        before: Copies of inputs, ahead of the commands.
        behind: Copies of outputs, after them.
    """

    regions: Mapping[int, Region] = field(default_factory=dict)
    outputs: Mapping[str, Region] = field(default_factory=dict)
    before: Sequence[Move] = ()
    behind: Sequence[Move] = ()


class ReplayBindings:
    """The bytes that each buffer bound at submit is, for one replay.

    Args:
        model: Whose inputs.
        backend: Where.
        recorded: What they were recorded as.
        syncs: Where waits of the host are counted.

    Attributes:
        frame: Holds the outputs.
        home: Holds the inputs that come from the host, or are copied for where they start.
        layout: Where they lie.
        by_element: The plan's kernels read and write one element at a time, so that arrays need only be aligned to
            theirs.
        given: By input.
        missing: Inputs whose content was never given, or whose submission failed.
        user_outputs: Memory of the caller's, by output.
    """

    def __init__(self, model: Model, backend: Backend, recorded: Replayable, syncs: SyncLog) -> None:
        self._model, self._backend, self._recorded, self._syncs = model, backend, recorded, syncs
        self.frame, self.home = Frame(backend), InputHome(backend, recorded.inputs)
        self.layout, self.by_element = Layout(), False
        self.given: dict[str, GivenInput] = {name: HostArray(spec) for name, spec in recorded.inputs.items()}
        self.missing = set(recorded.inputs)
        self.user_outputs: dict[str, MemoryBlock] = {}

    @property
    def borrowed(self) -> list[DeviceArray]:
        """The inputs that lie in memory of somebody else's."""
        return [item for item in self.given.values() if isinstance(item, DeviceArray)]

    def free(self) -> None:
        """Free all memory; the caller has waited."""
        self.frame.free()
        self.home.free()
        self.given.clear()
        self.user_outputs.clear()

    def let_go(self) -> None:
        """Drop inputs and outputs given so far; the caller sees to it that they outlive the work on them."""
        self.given = {name: HostArray(spec) for name, spec in self._recorded.inputs.items()}
        self.missing = set(self._recorded.inputs)
        self._give_outputs(dict.fromkeys(self.user_outputs))
        self.frame.give_back()
        self.layout = Layout()

    def accept(self, inputs: object, stream: Stream) -> dict[str, GivenInput]:
        """Return the inputs given, and those on the device that were given before, as they are now."""
        input_reader, recorded = InputReader(self._model, self._backend, stream), self._recorded
        before = {name: item.source for name, item in self.given.items() if isinstance(item, DeviceArray)}
        kept = {name: HostArray(spec) for name, spec in recorded.inputs.items()}
        accepted = input_reader.accept(inputs, kept)
        given = {name: item for name, item in accepted.items() if item is not kept[name]}
        again = {name: source for name, source in before.items() if name not in given}
        if again:
            renewed = input_reader.accept(again, kept)
            given.update({name: renewed[name] for name in again})
        for name, item in given.items():
            recorded.check_input(name, item)
        return given

    def take_outputs(self, outputs: Mapping[str, object], stream: Stream) -> dict[str, MemoryBlock | None]:
        """Return memory of the caller's for the outputs it is given for; None for those that go back to their own."""
        if not isinstance(outputs, Mapping):
            raise InputError(f"outputs takes memory by name, {{'y': array}}, got a {type(outputs).__name__}.")
        taken: dict[str, MemoryBlock | None] = {}
        for name, item in outputs.items():
            spec = self._recorded.check_output(name, item)
            taken[name] = None
            if item is not None:
                nbytes, what = self._recorded.output_bytes[name], f"Output {name!r} ({spec})"
                taken[name] = take_memory(item, self._backend, stream, nbytes, what, is_host=False, alignment=1)
        return taken

    def bind(self, accepted: Mapping[str, GivenInput], taken: Mapping[str, MemoryBlock | None]) -> Staged | None:
        """Set the region of each input and output; all or nothing.

        Returns:
            What is given from the host, in a pinned block, and its names; None where nothing is.

        Raises:
            InputError: An input or output lies in the bytes of an output.
        """
        given, before = {**self.given, **accepted}, self.user_outputs
        self._give_outputs({**before, **taken})
        try:
            layout = self._locate(given)
            staged = self._stage(accepted)
        except BaseException:
            self._give_outputs({**dict.fromkeys(taken), **before})
            raise
        self.layout, self.given = layout, given
        self.missing -= accepted.keys()
        return staged

    def _find_alignment(self, spec: TensorSpec) -> int:
        return find_alignment(self._backend.device.target, spec.dtype, by_element=self.by_element)

    def _give_outputs(self, outputs: Mapping[str, MemoryBlock | None]) -> None:
        for name, memory in outputs.items():
            self.frame.give(name, None if memory is None else Region(memory, 0, memory.nbytes))
        self.user_outputs = {name: memory for name, memory in outputs.items() if memory is not None}

    def _locate(self, given: Mapping[str, GivenInput]) -> Layout:
        """Return where everything lies, having checked that nothing lies in the bytes of an output."""
        recorded, bindings = self._recorded, dict[int, Region]()
        before, behind = list[Move](), list[Move]()
        outputs = {name: self.frame.output(name, nbytes) for name, nbytes in recorded.output_bytes.items()}
        for name, item in given.items():
            region = self.home.locate(name)
            if isinstance(item, DeviceArray):
                region = self._reach(name, item)
                _check_apart(name, region, outputs)
                alignment = self._find_alignment(item.spec)
                if recorded.input_buffers[name] is not None and not is_aligned(region, alignment):
                    before.append(Move.of_input(name, region, self.home.locate(name), alignment))
                    region = self.home.locate(name)
            buffer = recorded.input_buffers[name]
            if buffer is not None:
                bindings[buffer] = region
        for name, region in outputs.items():
            _check_apart(name, region, {other: outputs[other] for other in outputs if other < name})
            spec = recorded.outputs[name]
            alignment = self._find_alignment(spec)
            target = self.frame.writable(name, region.nbytes, alignment)
            if self.frame.is_aside(name, target):
                behind.append(Move.of_output(name, target, region, alignment, spec.nbytes))
            bindings[recorded.output_buffers[name]] = target
        return Layout(bindings, outputs, before, behind)

    def _reach(self, name: str, item: DeviceArray) -> Region:
        """Return where an input lies, which is known once what makes it is on its stream."""
        if not item.fence.is_issued():
            self._syncs.note_wait(name, "an input of a replay was not on its stream yet")
        item.fence.wait_issued()
        return item.place.region

    def _stage(self, accepted: Mapping[str, GivenInput]) -> Staged | None:
        """Copy what is given from the host into a pinned block; return it with the names, or None."""
        arrays = {}
        for name, item in accepted.items():
            if isinstance(item, HostArray):
                if item.request is not None and not item.request.is_done():
                    self._syncs.note_wait(name, "an input of a replay lies on another device")
                content = item.array if item.request is None else item.request.view()
                assert content is not None
                arrays[name] = content
        return (self.home.stage(arrays), arrays) if arrays else None


def _check_apart(name: str, region: Region, outputs: Mapping[str, Region]) -> None:
    start, end = region.address, region.address + region.nbytes
    for other, output in outputs.items():
        if start < output.address + output.nbytes and output.address < end:
            raise InputError(
                f"{name!r} lies in the bytes of output {other!r}, which the run writes: give one of them other memory"
                " (submit(outputs=...) takes yours), or copy it first.",
                value=name,
            )
