"""Count mode: requests, sectors, wavefronts and traffic of kernels whose figures are known by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.devices.simulator.counts import LaunchCounts, LineCounts, RequestCounts, l2_nbytes
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.ir.target import Target
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template, specs_of

Array = np.ndarray[Any, Any]
Kernels = Mapping[str, SimulatorFunction]
SOURCE = Path(__file__).parent / "kernels" / "count.cu"
NAMES = (
    *("copy", "copy_vectors", "sum_of_vector", "transpose<32>", "transpose<33>", "global_broadcast<float>"),
    *(f"shared_stride<{name}>" for name in ("unsigned char", "float", "double", "float4")),
    *("count_up<int>", "count_up<float>", "count_up_shared", "ragged", "two_on_a_line", "one_lane_alone"),
    *("half_alone", "by_turns", "staged", "read_again", "two_blocks_meet", "uncounted"),
)
ALIGNMENT = 256  # as memory of a device
F32, I32 = np.float32, np.int32
ORDERS = [Schedule("forward"), Schedule("reverse"), Schedule("random", 1), Schedule("random", 2)]
in_every_order = pytest.mark.parametrize("order", ORDERS, ids=["forward", "reverse", "random-1", "random-2"])


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    return load_file(SOURCE, NAMES, mode="count")


def zeros(count: int, dtype: type = F32) -> Array:
    nbytes = count * np.dtype(dtype).itemsize
    memory = np.zeros(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes].view(dtype)


def measure(
    function: SimulatorFunction, grid: int, block: int | tuple[int, int], *arguments: object, **options: Any
) -> LaunchCounts:
    counts: list[LaunchCounts] = []
    function.launch_arrays(grid, block, *arguments, counts=counts, **options)
    (launch,) = counts
    assert launch.missing_rows == 0
    return launch


def find(launch: LaunchCounts, text: str, space: str, access: str) -> LineCounts:
    """Return the row of the line that holds a text."""
    lines = [number for number, line in enumerate(SOURCE.read_text().splitlines(), 1) if text in line]
    assert len(lines) == 1, lines
    wanted = (("count.cu", lines[0]), space, access)
    (found,) = [line for line in launch.lines if (line.places[0], line.space, line.access) == wanted]
    return found


@pytest.mark.parametrize(
    ("block", "stride", "offset", "expected"),
    [
        (32, 1, 0, RequestCounts(1, 32, 128, 4, 4)),
        (256, 1, 0, RequestCounts(8, 256, 1024, 32, 32)),
        (32, 1, 1, RequestCounts(1, 32, 128, 5, 4)),  # misaligned by an element
        (32, 2, 0, RequestCounts(1, 32, 128, 8, 4)),
        (32, 8, 0, RequestCounts(1, 32, 128, 32, 4)),
        (32, 32, 0, RequestCounts(1, 32, 128, 32, 4)),
        (32, 0, 0, RequestCounts(1, 32, 4, 1, 1)),
        (16, 1, 0, RequestCounts(1, 16, 64, 2, 2)),  # half a warp
        (40, 1, 0, RequestCounts(2, 40, 160, 5, 5)),
    ],
)
def test_sectors_of_a_copy(kernels: Kernels, block: int, stride: int, offset: int, expected: RequestCounts) -> None:
    launch = measure(kernels["copy"], 1, block, zeros(2048), zeros(256), I32(stride), I32(offset))
    assert find(launch, "// copy reads", "global", "read").counts == expected
    written = find(launch, "// copy writes", "global", "write").counts
    assert (written.nbytes, written.ratio) == (4 * block, 1.0)


def test_ratio_and_lanes_off_are_of_the_request(kernels: Kernels) -> None:
    launch = measure(kernels["copy"], 1, 8, zeros(2048), zeros(256), I32(32), I32(0))
    counts = find(launch, "// copy reads", "global", "read").counts
    assert (counts.ratio, counts.lanes_off) == (8.0, 0.75)


@pytest.mark.parametrize(("name", "written"), [("copy_vectors", 16), ("sum_of_vector", 4)])
def test_vector_is_one_access(kernels: Kernels, name: str, written: int) -> None:
    launch = measure(kernels[name], 1, 32, zeros(128), zeros(128))
    read, write = (next(line for line in launch.lines if line.access == access) for access in ("read", "write"))
    assert (read.width, read.counts) == (16, RequestCounts(1, 32, 512, 16, 16))
    assert (write.width, write.counts) == (written, RequestCounts(1, 32, 32 * written, written, written))


@pytest.mark.parametrize(("columns", "wavefronts"), [(32, 32), (33, 1)])
def test_column_of_a_shared_tile_takes_a_wavefront_for_each_word_of_a_bank(
    kernels: Kernels, columns: int, wavefronts: int
) -> None:
    launch = measure(kernels[f"transpose<{columns}>"], 1, (32, 8), zeros(1024), zeros(1024))
    assert find(launch, "// rows", "shared", "write").counts == RequestCounts(32, 1024, 4096, 32, 32)
    read = find(launch, "// columns", "shared", "read").counts
    assert read == RequestCounts(32, 1024, 4096, 32 * wavefronts, 32)
    assert launch.total("shared").transactions == 32 + 32 * wavefronts
    assert launch.total("global") == RequestCounts(64, 2048, 8192, 256, 256)


@pytest.mark.parametrize(
    ("name", "dtype", "block", "stride", "expected"),
    [
        ("float", F32, 32, 0, RequestCounts(1, 32, 4, 1, 1)),  # broadcast
        ("float", F32, 32, 1, RequestCounts(1, 32, 128, 1, 1)),
        ("float", F32, 32, 2, RequestCounts(1, 32, 128, 2, 1)),
        ("float", F32, 16, 2, RequestCounts(1, 16, 64, 1, 1)),
        ("unsigned char", np.uint8, 32, 1, RequestCounts(1, 32, 32, 1, 1)),
        ("double", np.float64, 32, 1, RequestCounts(1, 32, 256, 2, 2)),
        ("double", np.float64, 32, 2, RequestCounts(1, 32, 256, 4, 2)),
        ("double", np.float64, 16, 1, RequestCounts(1, 16, 128, 1, 1)),
        ("float4", F32, 32, 1, RequestCounts(1, 32, 512, 4, 4)),
        ("float4", F32, 32, 2, RequestCounts(1, 32, 512, 8, 4)),
        ("float4", F32, 8, 1, RequestCounts(1, 8, 128, 1, 1)),
    ],
)
def test_wavefronts_of_a_strided_read(
    kernels: Kernels, name: str, dtype: type, block: int, stride: int, expected: RequestCounts
) -> None:
    launch = measure(kernels[f"shared_stride<{name}>"], 1, block, zeros(256, dtype), I32(stride))
    assert find(launch, "// strided", "shared", "read").counts == expected


def test_broadcast_of_global_memory_is_a_sector(kernels: Kernels) -> None:
    launch = measure(kernels["global_broadcast<float>"], 2, 32, zeros(32), zeros(32))
    assert find(launch, "// broadcast", "global", "read").counts == RequestCounts(2, 64, 8, 2, 2)


@pytest.mark.parametrize(("name", "dtype"), [("int", I32), ("float", F32)])
@pytest.mark.parametrize(("stride", "nbytes", "sectors"), [(1, 128, 4), (0, 4, 1), (8, 128, 32)])
def test_atomic_is_one_request(
    kernels: Kernels, name: str, dtype: type, stride: int, nbytes: int, sectors: int
) -> None:
    launch = measure(kernels[f"count_up<{name}>"], 1, 32, zeros(256, dtype), I32(stride))
    (line,) = launch.lines
    assert (line.space, line.access) == ("global", "atomic")
    assert line.counts == RequestCounts(1, 32, nbytes, sectors, -(-nbytes // 32))
    assert launch.l2_read_nbytes == launch.l2_written_nbytes == 32 * sectors


def test_atomic_of_shared_memory(kernels: Kernels) -> None:
    launch = measure(kernels["count_up_shared"], 1, 64, zeros(1, I32))
    assert find(launch, "// shared", "shared", "atomic").counts == RequestCounts(2, 64, 8, 2, 2)


def test_last_trip_of_a_loop_has_lanes_off(kernels: Kernels) -> None:
    launch = measure(kernels["ragged"], 1, 32, zeros(40), zeros(40), I32(40))
    read = find(launch, "// ragged", "global", "read").counts
    assert read == RequestCounts(2, 40, 160, 5, 5)
    assert read.lanes_off == 1 - 40 / 64


def test_accesses_of_one_line_are_requests_of_their_own(kernels: Kernels) -> None:
    launch = measure(kernels["two_on_a_line"], 1, 32, zeros(64), zeros(64), zeros(64))
    assert find(launch, "// two", "global", "read").counts == RequestCounts(2, 64, 256, 4 + 8, 8)


@in_every_order
def test_lane_that_runs_on_while_others_wait_makes_requests_alone(kernels: Kernels, order: Schedule) -> None:
    x, count = zeros(20_000), 20_000  # more than are remembered at once
    launch = measure(kernels["one_lane_alone"], 1, 64, x, zeros(64), I32(count), schedule=order)
    assert find(launch, "// alone", "global", "read").counts == RequestCounts(count, count, 4 * count, count, count)
    assert find(launch, "// together", "global", "read").counts == RequestCounts(2, 64, 256, 8, 8)


@in_every_order
def test_lanes_that_run_on_while_others_wait_stay_together(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["half_alone"], 1, 32, zeros(80_000), zeros(32), I32(5000), schedule=order)
    expected = RequestCounts(5000, 80_000, 320_000, 10_000, 10_000)
    assert find(launch, "// half", "global", "read").counts == expected


@in_every_order
def test_warp_operation_brings_lanes_together(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["by_turns"], 1, 32, zeros(3200), zeros(32), I32(100), schedule=order)
    assert find(launch, "// turns", "global", "read").counts == RequestCounts(100, 1600, 6400, 400, 200)


@in_every_order
def test_barrier_of_the_grid_brings_lanes_together(kernels: Kernels, order: Schedule) -> None:
    launch = measure(kernels["two_blocks_meet"], 2, 32, zeros(64), zeros(64), schedule=order, is_cooperative=True)
    assert find(launch, "// grid", "global", "read").counts == RequestCounts(8, 128, 512, 32, 16)


def test_asynchronous_copy_reads_what_is_there_and_writes_all(kernels: Kernels) -> None:
    launch = measure(kernels["staged"], 1, 32, zeros(128), zeros(128), I32(20))
    assert find(launch, "// staged", "global", "read").counts == RequestCounts(1, 20, 320, 10, 10)
    assert find(launch, "// staged", "shared", "write").counts == RequestCounts(1, 32, 512, 4, 4)


def test_constants_arguments_local_arrays_and_shuffles_are_not_counted(kernels: Kernels) -> None:
    launch = measure(kernels["uncounted"], 1, 32, zeros(32), I32(3))
    assert [(line.space, line.access, line.counts.requests) for line in launch.lines] == [("global", "write", 1)]


@pytest.mark.parametrize(("target", "reads"), [("sm_90", 1), ("sm_75", 2)])
def test_cache_keeps_what_fits_it(kernels: Kernels, target: str, reads: int) -> None:
    count = 1_310_720  # 5 MiB, read twice
    x, y = zeros(count), zeros(256)
    launch = measure(kernels["read_again"], 1, 256, x, y, I32(count), I32(2), target=Target.named(target))
    assert launch.l2_read_nbytes == 2 * x.nbytes
    assert launch.dram_read_nbytes == reads * x.nbytes
    assert launch.l2_written_nbytes == launch.dram_written_nbytes == y.nbytes


def test_size_of_the_cache_is_of_the_target() -> None:
    assert {name: l2_nbytes(Target.named(name)) >> 20 for name in ("sm_75", "sm_80", "sm_90")} == {
        "sm_75": 4,
        "sm_80": 40,
        "sm_90": 50,
    }


@in_every_order
def test_figures_and_results_do_not_depend_on_the_order(kernels: Kernels, order: Schedule) -> None:
    x = zeros(1024)
    x[:] = np.arange(1024)
    y = zeros(1024)
    launch = measure(kernels["transpose<33>"], 1, (32, 8), x, y, schedule=order)
    np.testing.assert_array_equal(y.reshape(32, 32), x.reshape(32, 32).T)
    forward = measure(kernels["transpose<33>"], 1, (32, 8), x, zeros(1024))
    assert launch == forward


def count_operator(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> tuple[LaunchCounts, Array]:
    """Run the plan of one operator on a device in count mode."""
    ports = [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in inputs.items()]
    output = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([node], "g", ports, [output])
    model = gx.load(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]))
    template = plan_graph(model.graph, specs_of(inputs), Target.named("sm_90"))
    (kernel,) = template.plan.kernels()
    device = SimulatorDevice(lambda _: (kernel.expression,), count_kernels=True)
    try:
        (result,) = run_template(template, model.graph, inputs, device)
        (launch,) = device.counts
    finally:
        device.close()
    return launch, result


def test_sum_of_two_tensors_moves_what_it_must() -> None:
    inputs = {name: np.random.default_rng(0).random((64, 128), F32) for name in ("a", "b")}
    launch, result = count_operator(onnx.helper.make_node("Add", ["a", "b"], ["y"]), inputs)
    np.testing.assert_array_equal(result, inputs["a"] + inputs["b"])
    assert launch.total("global").ratio == 1.0
    assert (launch.l2_read_nbytes, launch.l2_written_nbytes) == (2 * result.nbytes, result.nbytes)


def test_softmax_reads_and_writes_whole_sectors() -> None:
    inputs = {"x": np.random.default_rng(0).random((4, 256), F32)}
    launch, result = count_operator(onnx.helper.make_node("Softmax", ["x"], ["y"]), inputs)
    np.testing.assert_allclose(result.sum(1), 1, rtol=1e-5)
    assert launch.total("global").ratio == 1.0
    assert (launch.dram_read_nbytes, launch.dram_written_nbytes) == (result.nbytes, result.nbytes)
    assert {line.places[0][0] for line in launch.lines} & {"softmax.cu", "softmax_state.cuh"}
