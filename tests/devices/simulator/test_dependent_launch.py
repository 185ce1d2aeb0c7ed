"""Dependent launches in the simulator: kernels that wait are right in any order, and those that don't are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.device import Recording, Region
from gpuexec.devices.kernels.kernel_source import find_waiting_kernels
from gpuexec.devices.prepared import PreparedLaunch, PreparedSegment
from gpuexec.devices.recording import record_graph, record_launches
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Order, Schedule
from gpuexec.errors import CheckError, DeviceLostError
from gpuexec.ir.command import Command, Copy, Fill, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.edges import find_edges

Array = np.ndarray
SOURCE = Path(__file__).parent / "kernels" / "dependent.cu"
KERNELS = tuple(re.findall(r"__global__ void (\w+)\(", SOURCE.read_text()))
RIGHT = (
    *("right", "prefetches", "signals_at_once", "waits_for_block", "waits_beside_a_barrier", "copies_behind_its_wait"),
    "plain",
)
ALWAYS_FOUND = {
    "waits_in_some_blocks": "must wait for the launches before it",
    "signals_and_never_waits": "must wait for the launches before it",
    "writes_before_it_waits": "wrote memory before it waited",
}
SIZE = 200
SPEC = TensorSpec((SIZE,), np.dtype(np.float32))
WEIGHTS = np.linspace(0.5, 1, SIZE, dtype=np.float32)
X = np.arange(SIZE, dtype=np.float32)
in_both_forms = pytest.mark.parametrize("record", [record_launches, record_graph], ids=["stream", "graph"])
in_both_modes = pytest.mark.parametrize("check_kernels", [False, True], ids=["plain", "check"])
Record = Callable[[SimulatorDevice, Segment, dict[int, Region]], Recording]


def slot(buffer: int) -> Slot:
    return Slot(buffer, 0, SPEC, (1,))


def launch(kernel: str, x: int, y: int) -> Launch:
    arguments = (slot(x), slot(0), slot(y), np.int32(SIZE))
    return Launch(Kernel(str(SOURCE), kernel), (4, 1, 1), (64, 1, 1), arguments, (2,))


def make_chain(kernels: Sequence[str]) -> list[Command]:
    """Return launches from %1 to %2, from there to %3, and so on; %0 has weights."""
    return [launch(kernel, at, at + 1) for at, kernel in enumerate(kernels, 1)]


def expect(x: Array, launches: int) -> Array:
    for _ in range(launches):
        x = (x + np.roll(x, -1)) * WEIGHTS + np.float32(1)
    return x


def make_device(
    seed: int, *, check_kernels: bool = False, target: str = "sm_90", order: Order = "random"
) -> SimulatorDevice:
    schedule = Schedule(order, seed)
    return SimulatorDevice(lambda source: KERNELS, target, schedule=schedule, check_kernels=check_kernels)


def run(device: SimulatorDevice, commands: Sequence[Command], record: Record, times: int = 2) -> Array:
    """Return the content of the last buffer after several submissions, with memory of the first ones left as it is."""
    segment = Segment(tuple(commands), find_edges(commands), ("",) * len(commands))
    device.load(list(dict.fromkeys(command.kernel for command in commands if isinstance(command, Launch))))
    buffers = 1 + max(each.buffer for command in commands for each in (*command.reads_from(), *command.writes_to()))
    memories = [device.allocate(4 * SIZE) for _ in range(buffers)]
    stream = device.create_stream()
    for memory, content in zip(memories, (WEIGHTS, X), strict=False):
        stream.copy_to_device(memory.address, content.view(np.uint8))
    recording = record(device, segment, {at: Region(memory, 0, 4 * SIZE) for at, memory in enumerate(memories)})
    result = device.allocate_pinned(4 * SIZE)
    assert result.array is not None
    for _ in range(times):
        recording.submit(stream, {})
    stream.copy_to_host(result.array, memories[-1].address)
    stream.synchronize()
    return result.array.view(np.float32).copy()


def test_kernels_of_the_file_wait_as_their_source_says() -> None:
    assert find_waiting_kernels(SOURCE) == set(KERNELS) - {"plain"}


@in_both_forms
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_every_block_runs_once_in_each_schedule(order: Order, record: Record) -> None:
    """Of a grid that several threads of the host share."""
    size, spec = 64 * 300, TensorSpec((64 * 300,), np.dtype(np.int32))
    kernel = Kernel(str(SOURCE), "counts")
    x, y = (Slot(buffer, 0, spec, (1,)) for buffer in (0, 1))
    commands = [Launch(kernel, (300, 1, 1), (64, 1, 1), slots, (1,)) for slots in ((x, y), (y, x), (x, y))]
    for seed in range(10):
        device = make_device(seed, order=order)
        device.load([kernel])
        memories = [device.allocate(4 * size) for _ in range(2)]
        stream = device.create_stream()
        for memory in memories:
            stream.fill(memory.address, bytes(4), size)
        segment = Segment(tuple(commands), find_edges(commands), ("",) * 3)
        recording = record(device, segment, {at: Region(memory, 0, 4 * size) for at, memory in enumerate(memories)})
        recording.submit(stream, {})
        result = device.allocate_pinned(4 * size)
        assert result.array is not None
        stream.copy_to_host(result.array, memories[1].address)
        stream.synchronize()
        assert (result.array.view(np.int32) == 4).all()  # 0 + 0 + 1, 0 + 1 + 1, 1 + 2 + 1
        device.close()


@in_both_forms
@in_both_modes
@pytest.mark.parametrize("kernel", RIGHT)
def test_chain_of_kernels_that_wait_is_right(kernel: str, check_kernels: bool, record: Record) -> None:
    for seed in range(5):
        device = make_device(seed, check_kernels=check_kernels)
        got = run(device, make_chain(["right", kernel, "right", kernel]), record)
        assert (got == expect(X, 4)).all()
        device.close()


@in_both_forms
def test_chain_is_right_in_hundreds_of_orders(record: Record) -> None:
    device = make_device(0)
    expected = expect(X, 5)
    kernels = ["right", "prefetches", "signals_at_once", "plain", "right"]
    for _ in range(150):
        assert (run(device, make_chain(kernels), record) == expected).all()
    device.close()


@in_both_forms
@pytest.mark.parametrize("kernel", ALWAYS_FOUND)
def test_kernel_that_breaks_a_rule_is_found_in_every_order(kernel: str, record: Record) -> None:
    """The middle one of three: what comes after it could overtake what came before."""
    for seed in range(10):
        device = make_device(seed)
        with pytest.raises(DeviceLostError, match=f"{kernel}.*{ALWAYS_FOUND[kernel]}"):
            run(device, make_chain(["right", kernel, "right"]), record, times=1)
        device.close()


@in_both_forms
@pytest.mark.parametrize("kernel", ["reads_before_it_waits", "copies_before_it_waits"])
def test_read_before_the_wait_gives_wrong_numbers_in_every_order(kernel: str, record: Record) -> None:
    """On a second run, too, when memory holds what the first run left there."""
    for seed in range(10):
        device = make_device(seed)
        assert not (run(device, make_chain(["right", kernel]), record) == expect(X, 2)).all()
        device.close()


@in_both_forms
@pytest.mark.parametrize(
    ("kernel", "access", "text"),
    [
        ("reads_before_it_waits", "read", "reads what a launch writes that this one depends on"),
        ("copies_before_it_waits", "read", "reads what a launch writes that this one depends on"),
        ("writes_before_it_waits", "write", "writes before it waits"),
        ("waits_in_some_blocks", "read", "reads what a launch writes that this one depends on"),
    ],
)
def test_check_mode_names_the_line_of_an_early_access(kernel: str, access: str, text: str, record: Record) -> None:
    device = make_device(0, check_kernels=True)
    with pytest.raises(CheckError) as caught:
        run(device, make_chain(["right", kernel]), record)
    finding = next(each for each in caught.value.findings if each.party.access == access)
    assert finding.kind == "missing wait" and text in finding.detail
    assert SOURCE.name in {finding.file, *(file for file, _ in finding.party.within)}
    device.close()


@in_both_forms
@pytest.mark.parametrize("kernel", [*ALWAYS_FOUND, "reads_before_it_waits"])
def test_same_kernels_do_no_harm_where_launches_begin_in_order(
    kernel: str, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target, value in (("sm_80", "1"), ("sm_90", "0")):
        monkeypatch.setenv("GPUEXEC_DEPENDENT_LAUNCH", value)
        device = make_device(0, target=target)
        assert (run(device, make_chain(["right", kernel, "right"]), record) == expect(X, 3)).all()
        device.close()


@in_both_forms
@in_both_modes
def test_copies_and_fills_between_launches_keep_their_order(check_kernels: bool, record: Record) -> None:
    commands: list[Command] = [
        *make_chain(["right", "right"]),
        Copy(slot(4), slot(3)),
        Fill(slot(2), b"\0\0\0\0"),
        launch("right", 4, 5),
        launch("right", 2, 6),
        launch("right", 5, 7),
    ]
    for seed in range(20):
        device = make_device(seed, check_kernels=check_kernels)
        assert (run(device, commands, record) == expect(X, 4)).all()
        device.close()


@in_both_forms
def test_memory_that_a_launch_before_still_reads_is_written_behind_it(record: Record) -> None:
    """Write after read: the second launch reuses the first one's input."""
    commands = [launch("right", 1, 2), launch("right", 2, 1), launch("right", 1, 2), launch("right", 2, 3)]
    for seed in range(20):
        device = make_device(seed)
        assert (run(device, commands, record, times=1) == expect(X, 4)).all()
        device.close()


@in_both_forms
def test_launch_that_joins_two_branches_waits_for_both(record: Record) -> None:
    commands = [
        launch("right", 1, 2),
        launch("right", 1, 3),
        Launch(Kernel(str(SOURCE), "right"), (4, 1, 1), (64, 1, 1), (slot(2), slot(3), slot(4), np.int32(SIZE)), (2,)),
    ]
    branch = expect(X, 1)
    for seed in range(20):
        device = make_device(seed)
        assert (run(device, commands, record) == (branch + np.roll(branch, -1)) * branch + np.float32(1)).all()
        device.close()


@pytest.mark.parametrize("between", ["event", "copy"])
def test_dependent_launch_behind_anything_but_a_launch_is_an_ordinary_one(between: str) -> None:
    device = make_device(0)
    device.load([Kernel(str(SOURCE), name) for name in ("right", "reads_before_it_waits")])
    memories = [device.allocate(4 * SIZE) for _ in range(4)]
    regions = {at: Region(memory, 0, 4 * SIZE) for at, memory in enumerate(memories)}
    stream = device.create_stream()
    for memory, content in zip(memories, (WEIGHTS, X), strict=False):
        stream.copy_to_device(memory.address, content.view(np.uint8))
    first, second = PreparedSegment(device, make_chain(["right", "reads_before_it_waits"]), regions).commands
    assert isinstance(second, PreparedLaunch)
    first.issue(stream)
    if between == "event":
        stream.record(device.create_event())
    else:
        stream.copy(memories[2].address, memories[2].address, 4)
    second.issue_early(stream)
    result = device.allocate_pinned(4 * SIZE)
    assert result.array is not None
    stream.copy_to_host(result.array, memories[3].address)
    stream.synchronize()
    assert (result.array.view(np.float32) == expect(X, 2)).all()
    device.close()
