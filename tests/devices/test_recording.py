"""Recordings: packed once, patched on change."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.device import Function, Region
from gpuexec.devices.prepared import PreparedLaunch, PreparedSegment
from gpuexec.devices.recorder.tracer import TracerDevice, TracerFunction, TracerMemory, TracerStream
from gpuexec.devices.recording import LaunchRecording
from gpuexec.errors import DeviceLostError, KernelError, PlanError
from gpuexec.ir.command import Command, Copy, Fill, HostCall, Kernel, Launch, LaunchConfig, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec

BYTE = np.dtype(np.uint8)
KERNEL = Kernel("a.cu", "k")
ARENA, WEIGHTS, INPUT, OUTPUT = range(4)


class Parameters(ctypes.Structure):
    """Parameters of a kernel, laid out by the platform's C compiler rules."""

    _fields_ = (
        ("flag", ctypes.c_bool),
        ("source", ctypes.c_void_p),
        ("count", ctypes.c_int32),
        ("half", ctypes.c_uint16),
        ("ratio", ctypes.c_double),
        ("target", ctypes.c_void_p),
        ("last", ctypes.c_int8),
    )


def test_arguments_lie_as_in_a_struct() -> None:
    arguments = PackedArguments(
        [np.bool_(True), None, np.int32(-7), ml_dtypes.bfloat16(1.5), np.float64(0.25), None, np.int8(-1)]
    )
    arguments.set_pointer(1, 0x1234567890)
    arguments.set_pointer(5, 0xFFFF_FFFF_FFFF_FF00)
    places = (ctypes.c_uint64 * len(arguments)).from_address(arguments.address)
    block = Parameters.from_address(places[0])
    assert (block.flag, block.source, block.count, block.half) == (True, 0x1234567890, -7, 0x3FC0)
    assert (block.ratio, block.target, block.last) == (0.25, 0xFFFF_FFFF_FFFF_FF00, -1)
    offsets = [getattr(Parameters, name).offset for name, _ in Parameters._fields_]
    assert [place - places[0] for place in places] == offsets
    assert arguments.kinds() == ("b1", "P8", "i4", "f2", "f8", "P8", "i1")


def test_structs_are_aligned_to_16_and_read_back() -> None:
    arguments = PackedArguments([np.int8(1), b"0123456789", None])
    places = (ctypes.c_uint64 * 3).from_address(arguments.address)
    assert [place - places[0] for place in places] == [0, 16, 32]
    assert places[0] % 16 == 0
    assert arguments.read() == [b"\1", b"0123456789", bytes(8)]
    assert arguments.items()[1].tobytes() == b"0123456789"
    assert arguments.kinds() == ("i1", "s10", "P8")


def test_update_changes_values_and_keeps_pointers_and_places() -> None:
    arguments = PackedArguments([None, np.int32(1), b"ab"])
    arguments.set_pointer(0, 77)
    address = arguments.address
    arguments.update([None, np.int32(2), b"cd"])
    assert (arguments.address, arguments.pointer(0)) == (address, 77)
    assert arguments.read()[1:] == [np.int32(2).tobytes(), b"cd"]


def test_node_arguments_are_the_present_ones_with_another_last_pointer() -> None:
    arguments = PackedArguments([None, np.int32(1), None])
    node = NodeArguments(arguments, 0xABCD00, 64)
    arguments.set_pointer(0, 77)
    arguments.update([None, np.int32(2), None])
    places = (ctypes.c_uint64 * 3).from_address(node.address)
    assert [ctypes.c_uint64.from_address(places[at]).value for at in (0, 2)] == [77, 0xABCD00]
    assert ctypes.c_int32.from_address(places[1]).value == 2
    assert node.read() == [(77).to_bytes(8, "little"), (2).to_bytes(4, "little"), (0xABCD00).to_bytes(8, "little")]
    assert (node.pointer(0), node.pointer(2), node.kinds()) == (77, 0xABCD00, ("P8", "i4", "P8"))
    assert arguments.read()[2] == bytes(8)


def window(buffer: int, offset: int = 0) -> Slot:
    return Slot(buffer, offset, TensorSpec((8,), BYTE), (1,))


def launch(count: int, *slots: Slot, kernel: Kernel = KERNEL) -> Launch:
    return Launch(kernel, (count, 1, 1), (32, 1, 1), (*slots, np.int32(count)), (len(slots) - 1,))


COMMANDS: tuple[Command, ...] = (
    launch(1, window(INPUT), window(WEIGHTS), window(ARENA)),
    launch(2, window(ARENA), window(ARENA, 64)),
    Copy(window(OUTPUT), window(ARENA, 64)),
    Fill(window(OUTPUT, 8), b"\0\1"),
)
SEGMENT = Segment(COMMANDS, ((0, 1), (1, 2)), ("a", "b", "c", "d"))


def region(address: int) -> Region:
    return Region(TracerMemory(address, 256), 0, 256)


MEMORY = {ARENA: region(0x1000), WEIGHTS: region(0x2000)}


def bindings(source: int = 0x3000, target: int = 0x4000) -> dict[int, Region]:
    return {INPUT: region(source), OUTPUT: region(target)}


def make() -> tuple[TracerDevice, LaunchRecording, TracerStream]:
    device = TracerDevice()
    device.load([KERNEL, Kernel("a.cu", "other")])
    stream = device.create_stream()
    assert isinstance(stream, TracerStream)
    recording = LaunchRecording(device, SEGMENT, MEMORY)
    device.log.clear()
    return device, recording, stream


def launch_row(count: int, *addresses: int) -> tuple[object, ...]:
    values = (*(a.to_bytes(8, "little") for a in addresses), count.to_bytes(4, "little"))
    return ("launch", "a.cu:k", (count, 1, 1), (32, 1, 1), values)


def test_submit_issues_all_commands_with_their_addresses() -> None:
    device, recording, stream = make()
    recording.submit(stream, bindings())
    assert device.log == [
        launch_row(1, 0x3000, 0x2000, 0x1000),
        launch_row(2, 0x1000, 0x1040),
        ("copy", 0x4000, 0x1040, 8),
        ("fill", 0x4008, b"\0\1", 8),
    ]


def test_submit_takes_other_bindings_and_parts() -> None:
    device, recording, stream = make()
    recording.submit(stream, bindings(), 0, 1)
    recording.submit(stream, bindings(0x5000, 0x6000), 2)
    recording.submit(stream, bindings(0x5000, 0x6000), 0, 1)
    assert [row[:3] for row in device.log[1:3]] == [("copy", 0x6000, 0x1040), ("fill", 0x6008, b"\0\1")]
    assert device.log[3] == launch_row(1, 0x5000, 0x2000, 0x1000)


def test_bind_touches_only_commands_on_buffers_that_moved() -> None:
    device, _, _ = make()
    segment = PreparedSegment(device, COMMANDS, MEMORY)
    assert segment.bind(bindings()) == {0, 2, 3}
    assert segment.bind(bindings()) == set()
    assert segment.bind(bindings(0x5000)) == {0}


def test_patch_changes_only_what_differs() -> None:
    device, recording, stream = make()
    segment = PreparedSegment(device, COMMANDS, MEMORY)
    segment.bind(bindings())
    before = list(segment.commands)
    equal = launch(2, window(ARENA), window(ARENA, 64))
    other = launch(3, window(INPUT), window(WEIGHTS), window(ARENA, 128))
    moved = Fill(window(OUTPUT, 16), b"\0\1")
    assert segment.patch((other, equal, COMMANDS[2], moved)) == [0, 3]
    assert segment.commands[0] is before[0], "the same launch: its block is kept"
    assert segment.commands[1] is before[1]
    assert segment.bind(bindings(0x3000, 0x7000)) == {2, 3}
    recording.patch((other, equal, COMMANDS[2], moved))
    recording.submit(stream, bindings(0x3000, 0x7000))
    assert device.log == [
        launch_row(3, 0x3000, 0x2000, 0x1080),
        launch_row(2, 0x1000, 0x1040),
        ("copy", 0x7000, 0x1040, 8),
        ("fill", 0x7010, b"\0\1", 8),
    ]


def test_bind_reports_a_command_that_was_patched_onto_a_bound_buffer() -> None:
    device, _, _ = make()
    segment = PreparedSegment(device, COMMANDS, MEMORY)
    segment.bind(bindings())
    segment.patch((COMMANDS[0], launch(2, window(INPUT), window(ARENA, 64)), *COMMANDS[2:]))
    assert segment.bind(bindings(0x5000)) == {0, 1}


def test_patch_forgets_where_a_command_lay_before() -> None:
    device, recording, stream = make()
    recording.submit(stream, bindings())
    recording.patch((*COMMANDS[:3], Fill(window(ARENA, 192), b"\0\1")))
    device.log.clear()
    recording.submit(stream, bindings(0x3000, 0x7000))
    assert device.log[2:] == [("copy", 0x7000, 0x1040, 8), ("fill", 0x10C0, b"\0\1", 8)]


def test_patch_may_bring_another_kernel_in_a_place() -> None:
    device, recording, stream = make()
    other = Launch(Kernel("a.cu", "other"), (1, 1, 1), (32, 1, 1), (window(OUTPUT), np.int64(9)), (0,))
    recording.submit(stream, bindings())
    recording.patch((*COMMANDS[:3], other))
    device.log.clear()
    recording.submit(stream, bindings())
    assert device.log[3][1:] == (
        "a.cu:other",
        (1, 1, 1),
        (32, 1, 1),
        ((0x4000).to_bytes(8, "little"), (9).to_bytes(8, "little")),
    )


def test_patch_of_another_length_is_refused() -> None:
    _, recording, _ = make()
    with pytest.raises(PlanError, match="4 commands can't take 3"):
        recording.patch(COMMANDS[:3])


def test_host_call_can_not_be_recorded_for_kernels() -> None:
    device, _, _ = make()
    segment = Segment((HostCall("Add", (), (), ()),), (), ("add",))
    with pytest.raises(PlanError, match="Add"):
        device.record(segment, {})


def test_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    function = TracerFunction(KERNEL, 1)
    function.signature = ("P8", "P8", "P8", "i8")
    with pytest.raises(KernelError, match=r"a\.cu:k takes \(P8, P8, P8, i8\), got \(P8, P8, P8, i4\)"):
        PreparedLaunch(function, COMMANDS[0])  # type: ignore[arg-type]
    function.signature = ("P8", "P8", "P8", "i4")
    PreparedLaunch(function, COMMANDS[0])  # type: ignore[arg-type]


class ConfigStream(TracerStream):
    """Keeps the configuration of each launch."""

    configs: tuple[LaunchConfig, ...] = ()

    def launch(self, function: Function, config: LaunchConfig, arguments: PackedArguments) -> None:
        self.configs += (config,)


def test_configuration_is_made_once_and_when_the_size_changes() -> None:
    device, _, _ = make()
    stream = ConfigStream(device, 1)
    prepared = PreparedLaunch(device.function(KERNEL), launch(1, window(ARENA)))
    prepared.issue(stream)
    prepared.issue(stream)
    prepared.update(launch(2, window(ARENA)))
    prepared.issue(stream)
    first, again, other = stream.configs
    assert first is again and first == LaunchConfig((1, 1, 1), (32, 1, 1))
    assert other == LaunchConfig((2, 1, 1), (32, 1, 1))


class FaultingStream(TracerStream):
    """Loses its device at the second wait."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1
        if self.waits == 2:
            raise DeviceLostError("illegal address")


@pytest.mark.parametrize("is_set", [False, True])
def test_waiting_after_each_command_names_the_one_that_faulted(monkeypatch: pytest.MonkeyPatch, is_set: bool) -> None:
    monkeypatch.setenv("GPUEXEC_SYNC_EACH", str(int(is_set)))
    device = TracerDevice()
    target = Slot(0, 0, TensorSpec((4,), BYTE), (1,))
    fills: tuple[Command, ...] = tuple(Fill(target, bytes([value])) for value in range(3))
    segment = Segment(fills, ((0, 1), (1, 2)), ("first", "second", "third"))
    recording = LaunchRecording(device, segment, {0: Region(TracerMemory(0, 4), 0, 4)})
    stream = FaultingStream(device, 1)
    if is_set:
        with pytest.raises(DeviceLostError, match=r"Command 1 \(second\): illegal address") as caught:
            recording.submit(stream, {})
        assert caught.value.node == "second"
    else:
        recording.submit(stream, {})
    assert sum(row[0] == "fill" for row in device.log) == (2 if is_set else 3)
