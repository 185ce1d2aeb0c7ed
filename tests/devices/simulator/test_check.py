"""Check mode: its rules of order and access, and its reports."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.device import Region
from gpuexec.devices.recording import record_launches
from gpuexec.devices.simulator import findings as findings_module
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.findings import Finding
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import FindingsError, SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import find_compiler
from gpuexec.errors import CheckError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec

Kernels = Mapping[str, SimulatorFunction]
SOURCE = Path(__file__).parent / "kernels" / "check.cu"
NAMES = (
    *("hand_over<32>", "hand_over<16>", "shuffle_orders_nothing", "atomics_together", "atomic_beside_plain"),
    *("write_after_many_reads", "neighbouring_bytes", "copies_padding", "local_array", "module_data", "writes_all"),
    *("two_mistakes", "adds_halves", "read_beside_atomics", "array_of_a_struct"),
)
ORDERS = [Schedule("forward"), Schedule("reverse"), Schedule("random", 1), Schedule("random", 2)]
in_every_order = pytest.mark.parametrize("order", ORDERS, ids=["forward", "reverse", "random-1", "random-2"])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_file(SOURCE, NAMES, mode="check")


def line_of(text: str) -> int:
    lines = [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1, lines
    return lines[0]


def find(
    function: SimulatorFunction, block: int, *arguments: object, order: Schedule | None = None
) -> tuple[Finding, ...]:
    with pytest.raises(FindingsError) as caught:
        function.launch_arrays(1, block, *arguments, schedule=order)
    return caught.value.findings


@in_every_order
@pytest.mark.parametrize(
    ("name", "block", "dtype"),
    [
        ("hand_over<32>", 32, np.int32),
        ("atomics_together", 64, np.int32),
        ("neighbouring_bytes", 64, np.uint8),
        ("copies_padding", 32, np.float64),
        ("module_data", 32, np.int32),
    ],
)
def test_what_is_ordered_is_clean(kernels: Kernels, order: Schedule, name: str, block: int, dtype: type) -> None:
    kernels[name].launch_arrays(1, block, np.zeros(64, dtype), schedule=order)


@in_every_order
@pytest.mark.parametrize(
    ("name", "block", "lines"),
    [
        ("hand_over<16>", 32, ("slots[lane] = lane;", "// 16 lanes: race")),
        ("shuffle_orders_nothing", 32, ("slots[threadIdx.x] = threadIdx.x;", "slots[other]")),
        ("atomic_beside_plain", 64, ("< 32) atomicAdd(&out[0], 1)", "out[0] = 5;")),
        ("read_beside_atomics", 64, ("atomicAdd(&out[0], 2);", "out[1] = out[0];")),
        ("write_after_many_reads", 32, ("out[threadIdx.x] = one;", "one = 8;")),
    ],
)
def test_race_is_found_in_every_order(
    kernels: Kernels, order: Schedule, name: str, block: int, lines: tuple[str, str]
) -> None:
    races = [each for each in find(kernels[name], block, np.zeros(64, np.int32), order=order) if each.kind == "race"]
    assert races
    for race in races:
        assert race.other is not None
        assert {race.line, race.other.line} == {line_of(text) for text in lines}
        assert race.thread != race.other.thread


def test_read_that_only_one_reader_of_many_is_unordered_with_names_that_reader(kernels: Kernels) -> None:
    (race,) = find(kernels["write_after_many_reads"], 32, np.zeros(32, np.int32))
    assert race.other is not None
    assert {race.thread, race.other.thread} == {(1, 0, 0), (31, 0, 0)}


def test_index_beyond_a_local_array_is_found(kernels: Kernels) -> None:
    kernels["local_array"].launch_arrays(1, 1, np.zeros(1, np.float32), np.int32(4))
    (finding,) = find(kernels["local_array"], 1, np.zeros(1, np.float32), np.int32(5))
    assert (finding.kind, finding.line) == ("out of bounds", line_of("held[i & 7]"))
    assert "float [4]" in finding.detail


@pytest.mark.skipif("clang" in find_compiler().version, reason="clang++ takes such an array for one that may go on")
def test_index_beyond_the_array_at_the_end_of_a_struct_is_found(kernels: Kernels) -> None:
    kernels["array_of_a_struct"].launch_arrays(1, 1, np.zeros(1, np.float32), np.int32(4))
    (finding,) = find(kernels["array_of_a_struct"], 1, np.zeros(1, np.float32), np.int32(5))
    assert (finding.kind, finding.line) == ("out of bounds", line_of("values[i & 7]"))


def test_place_is_the_line_of_the_kernel_where_a_header_of_the_simulator_did_it(kernels: Kernels) -> None:
    x, out = np.ones(32, np.float16), np.zeros(1, np.float16)
    for finding in find(kernels["adds_halves"], 32, x, out):
        assert (finding.file, finding.line) == ("check.cu", line_of("out[0] += x[threadIdx.x];"))


def test_several_mistakes_of_one_launch_are_all_named_once(kernels: Kernels) -> None:
    findings = find(kernels["two_mistakes"], 128, np.zeros(128, np.int32))
    assert [(each.kind, each.line, each.detail.partition("shared ")[2]) for each in findings] == [
        ("uninitialised read", line_of("out[threadIdx.x] = a[threadIdx.x];"), "'a' of 512"),
        ("uninitialised read", line_of("+= b[threadIdx.x]"), "'b' of 512"),
    ]


def test_argument_that_the_caller_may_not_write_is_not_written(kernels: Kernels) -> None:
    x, y = np.ones(8, np.int32), np.zeros(8, np.int32)
    kernels["writes_all"].launch_arrays(1, 32, x, y, np.int32(8))
    y.flags.writeable = False
    (finding,) = find(kernels["writes_all"], 32, x, y, np.int32(8))
    assert (finding.kind, finding.party.access) == ("out of bounds", "write")
    assert finding.detail.startswith("byte 0 of argument 1 of 32")


def make_launch(reads: int, writes: int, count: int) -> Launch:
    x, y = (Slot(i, 0, TensorSpec((n,), np.dtype(np.int32)), (1,)) for i, n in enumerate((reads, writes)))
    kernel = Kernel(str(SOURCE), "writes_all")
    return Launch(kernel, (1, 1, 1), (32, 1, 1), (x, y, np.int32(count)), (1,))


@pytest.mark.parametrize(
    ("reads", "writes", "count", "message"),
    [
        (16, 16, 16, None),
        (16, 16, 17, r"read check.cu:\d+ by thread \(16, 0, 0\) .*: byte 64 of argument 0 of 64"),
        (32, 16, 17, r"write check.cu:\d+ by thread \(16, 0, 0\) .*: byte 64 of argument 1 of 64"),
    ],
)
def test_launch_of_a_plan_may_touch_its_slots_alone(reads: int, writes: int, count: int, message: str | None) -> None:
    device = SimulatorDevice(lambda _: NAMES, check_kernels=True, schedule=Schedule())
    command = make_launch(reads, writes, count)
    device.load([command.kernel])
    stream, arena = device.create_stream(), device.allocate(1024)  # one allocation: slots end where no memory does
    stream.fill(arena.address, bytes(4), 256)
    places = {0: Region(arena, 0, 128), 1: Region(arena, 256, 128)}
    record_launches(device, Segment((command,), (), ("node",)), places).submit(stream, {})
    if message is None:
        stream.synchronize()
        return
    with pytest.raises(
        CheckError, match=f"(?s)launch of .*writes_all for 'node': check mode found .*{message}"
    ) as caught:
        stream.synchronize()
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.findings == caught.value.findings
    with pytest.raises(CheckError):
        device.allocate(1)


def test_knob_makes_simulators_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not SimulatorDevice(lambda _: ()).is_checking
    monkeypatch.setenv("GPUEXEC_CHECK_KERNELS", "1")
    monkeypatch.setenv("GPUEXEC_CHECK_SEED", "7")
    device = SimulatorDevice(lambda _: ())
    assert device.is_checking
    assert device.context.next_schedule().order == "random"
    assert device.context.next_schedule().seed >= 7


def test_without_a_reader_of_lines_the_report_says_what_is_missing(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findings_module.shutil, "which", lambda name: None)
    with pytest.raises(FindingsError, match=r"an unknown line .*\n.*apt-get install binutils") as caught:
        kernels["hand_over<16>"].launch_arrays(1, 32, np.zeros(32, np.int32))
    assert all((each.file, each.line) == ("", 0) for each in caught.value.findings)
