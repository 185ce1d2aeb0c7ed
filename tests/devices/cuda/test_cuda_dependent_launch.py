"""Dependent launches on the CUDA device: an attribute of a launch on a stream, data of an edge of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.device import Region
from gpuexec.devices.recording import record_graph, record_launches
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.ir.command import Command, Copy, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.edges import find_edges
from tests.devices.cuda.launching import download, upload

if TYPE_CHECKING:
    from tests.devices.cupy_standin import Standin

SOURCE = """#include "dependent_launch.cuh"
extern "C" __global__ void shift(const float* x, float* y, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    wait_for_predecessors();
    launch_dependents();
    if (i < n) y[i] = 2.0f * x[(i + 1) % n] + 1.0f;
}
extern "C" __global__ void shift_in_order(const float* x, float* y, int n) {
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[(i + 1) % n] + 1.0f;
}
"""
SIZE = 1000
NBYTES = 4 * SIZE
SPEC = TensorSpec((SIZE,), np.dtype(np.float32))
SHIFT, IN_ORDER = "shift", "shift_in_order"


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "shift.cu"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def standin() -> Iterator[Standin]:
    from tests.devices.cupy_standin import Standin

    below = SimulatorDevice(lambda source: (SHIFT, IN_ORDER), schedule=Schedule("random", 5))
    yield Standin(below)
    below.close()


def slot(buffer: int) -> Slot:
    return Slot(buffer, 0, SPEC, (1,))


def make_segment(source: str) -> Segment:
    """Five launches, the third of which does not wait, and a copy before the last one."""
    commands: list[Command] = [
        Launch(Kernel(source, name), (16, 1, 1), (64, 1, 1), (slot(at), slot(at + 1), np.int32(SIZE)), (1,))
        for at, name in enumerate((SHIFT, SHIFT, IN_ORDER, SHIFT))
    ]
    commands.append(Copy(slot(5), slot(4)))
    commands.append(Launch(Kernel(source, SHIFT), (16, 1, 1), (64, 1, 1), (slot(5), slot(6), np.int32(SIZE)), (1,)))
    return Segment(tuple(commands), find_edges(commands), ("",) * len(commands))


def run(device: CudaDevice, source: str, *, as_graph: bool, times: int = 3) -> list[bytes]:
    """Return the last buffer after each of several submissions over other inputs."""
    device.load([Kernel(source, SHIFT), Kernel(source, IN_ORDER)])
    stream = device.create_stream()
    memory = {at: Region(device.allocate(NBYTES), 0, NBYTES) for at in range(1, 7)}
    recording = (record_graph if as_graph else record_launches)(device, make_segment(source), memory)
    results = []
    for number in range(times):
        x = upload(device, stream, np.arange(SIZE, dtype=np.float32) + number)
        recording.submit(stream, {0: Region(x, 0, NBYTES)})
        results.append(download(device, stream, memory[6].memory, np.float32).tobytes())
    recording.close()
    return results


def expect(number: int) -> bytes:
    x = np.arange(SIZE, dtype=np.float32) + number
    for _ in range(5):
        x = 2 * np.roll(x, -1) + 1
    return x.tobytes()


@pytest.mark.parametrize("as_graph", [False, True], ids=["stream", "graph"])
def test_results_are_the_same_with_and_without(
    any_device: CudaDevice, source: str, as_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = run(any_device, source, as_graph=as_graph)
    monkeypatch.setenv("GPUEXEC_DEPENDENT_LAUNCH", "0")
    assert early == run(any_device, source, as_graph=as_graph) == [expect(number) for number in range(3)]


def test_stream_gives_the_attribute_to_launches_behind_a_launch(
    device: CudaDevice, standin: Standin, source: str
) -> None:
    run(device, source, as_graph=False, times=1)
    assert standin.calls == [f"{source}:{name}" for name in (SHIFT, SHIFT, IN_ORDER, SHIFT, SHIFT)]
    assert standin.early == [f"{source}:{SHIFT}"] * 2


def test_graph_gives_data_to_the_edges_between_them(device: CudaDevice, standin: Standin, source: str) -> None:
    run(device, source, as_graph=True, times=1)
    first = min(before for before, _ in standin.graphs.programmatic)
    assert [(a - first, b - first) for a, b in standin.graphs.programmatic] == [(0, 1), (2, 3)]


def test_driver_without_edge_data_launches_in_order(
    standin: Standin, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.devices.cupy_standin import install

    install(monkeypatch, standin)
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", str(tmp_path / "cache"))
    standin.driver_version = 12020
    device = CudaDevice()
    assert run(device, source, as_graph=False, times=1) == run(device, source, as_graph=True, times=1) == [expect(0)]
    assert standin.early == [] and standin.graphs.programmatic == []
    device.close()
