"""Recordings in both forms: a stream of launches, a graph, and whichever costs less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from gpuexec.devices import graph_form
from gpuexec.devices.device import Device, Recording, Region
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.recording import record_graph, record_launches, record_segment
from gpuexec.errors import PlanError
from gpuexec.ir.command import Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.template import plan_graph
from tests.devices.every_device.programs import make_input, make_program
from tests.devices.every_device.test_device import SHIFT, download, on_launching, upload
from tests.devices.execute import LoadedPlan, Record
from tests.devices.opening import SCALE_SOURCE
from tests.ir.graph_builder import compute_graph


def record_both(device: Device, segment: Segment, memory: Mapping[int, Region]) -> Recording:
    """Return a recording that is a graph from the second submission on, or launches where those cost less."""
    return record_segment(device, segment, memory, GraphCache(1 << 30))


on_forms = pytest.mark.parametrize(
    "record", [record_launches, record_graph, record_both], ids=["stream", "graph", "either"]
)


@pytest.fixture(autouse=True)
def early_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make graphs early, and of little, so that both forms take turns here."""
    monkeypatch.setattr(graph_form, "USES_BEFORE", 1)


KERNEL = Kernel(SCALE_SOURCE, "scale<float>")
PATTERN = b"\x01\0\0\0\x02\0\0\0"
Array = np.ndarray[Any, Any]


def make_segment(count: int, factor: float = 3, pattern: bytes = PATTERN) -> Segment:
    """Fill %2 with 8-byte patterns beside y = factor * x + 5 into %1, then copy %1 over the front of %2."""
    spec, wide = TensorSpec((count,), np.dtype(np.float32)), TensorSpec((count,), np.dtype(np.int64))
    x, y, front = (Slot(buffer, 0, spec, (1,)) for buffer in (0, 1, 2))
    arguments = (x, y, np.float32(factor), SHIFT, np.int32(count))
    scale = Launch(KERNEL, (1, 1, 1), (64, 1, 1), arguments, writes=(1,))
    fill = Fill(Slot(2, 0, wide, (1,)), pattern)
    return Segment((scale, fill, Copy(front, y)), ((0, 2), (1, 2)), ("scale", "fill", "copy"))


def expect_segment(x: Array, factor: float = 3, pattern: bytes = PATTERN) -> bytes:
    scaled = (x * np.float32(factor) + 5).astype(np.float32).tobytes()
    return scaled + (pattern * len(x))[len(scaled) :]


class Recorded:
    """A segment of `make_segment`, recorded, with %1 in place and %0 and %2 bound when submitted."""

    def __init__(self, device: Device, record: Callable[..., Recording], segment: Segment) -> None:
        device.load([KERNEL])
        self.device, self.stream = device, device.create_stream()
        self.recording = record(device, segment, {1: Region(device.allocate(256), 0, 256)})

    def run(self, x: Array, output: Any = None, **part: int) -> bytes:
        """Run with x bound where it was never before, and return %2."""
        source, target = upload(self.device, self.stream, x), output or self.device.allocate(8 * len(x))
        bindings = {0: Region(source, 0, source.nbytes), 2: Region(target, 0, target.nbytes)}
        self.recording.submit(self.stream, bindings, **part)
        return download(self.stream, target).tobytes()


@on_launching
@on_forms
@pytest.mark.parametrize("pattern", [PATTERN, b"\x03\0\0\0" * 2], ids=["halves differ", "halves equal"])
def test_submit_patches_what_is_bound_elsewhere(
    device: Device, record: Callable[..., Recording], pattern: bytes
) -> None:
    recorded = Recorded(device, record, make_segment(64, pattern=pattern))
    for start in (0, 1000, 2000):
        x = np.arange(start, start + 64, dtype=np.float32)
        assert recorded.run(x) == expect_segment(x, pattern=pattern)


@on_launching
@on_forms
def test_patch_takes_another_size_and_other_scalars(device: Device, record: Callable[..., Recording]) -> None:
    recorded = Recorded(device, record, make_segment(64))
    for count, factor in ((64, 3), (10, 2), (33, 7), (64, 3)):
        recorded.recording.patch(make_segment(count, factor).commands)
        x = np.arange(count, dtype=np.float32)
        assert recorded.run(x) == expect_segment(x, factor)


@on_launching
@on_forms
def test_parts_add_up_to_the_whole(device: Device, record: Callable[..., Recording]) -> None:
    recorded, x = Recorded(device, record, make_segment(64)), np.arange(64, dtype=np.float32)
    whole = recorded.run(x)
    other = device.allocate(512)
    recorded.run(x + 1, other, first=0, last=1)
    assert recorded.run(x + 1, other, first=1, last=2) == PATTERN * 64
    assert recorded.run(x + 1, other, first=2) == expect_segment(x + 1)
    assert recorded.run(x) == whole == expect_segment(x)


@on_launching
@on_forms
def test_run_keeps_its_arguments_when_the_next_is_submitted(device: Device, record: Callable[..., Recording]) -> None:
    recorded, stream = Recorded(device, record, make_segment(64)), None
    stream = recorded.stream
    arrays = [np.arange(start, start + 64, dtype=np.float32) for start in (0, 500, 900)]
    sources, targets = [upload(device, stream, x) for x in arrays], [device.allocate(512) for _ in arrays]
    for source, target in zip(sources, targets, strict=True):
        recorded.recording.submit(stream, {0: Region(source, 0, 256), 2: Region(target, 0, 512)})
    for x, target in zip(arrays, targets, strict=True):
        assert download(stream, target).tobytes() == expect_segment(x)


@on_launching
@on_forms
def test_patch_refuses_another_number_of_commands(device: Device, record: Callable[..., Recording]) -> None:
    recorded = Recorded(device, record, make_segment(64))
    with pytest.raises(PlanError, match="3 commands can't take 2"):
        recorded.recording.patch(make_segment(64).commands[:2])


@on_launching
@on_forms
@pytest.mark.parametrize("seed", range(6))
def test_program_runs_in_every_size_of_its_class(device: Device, record: Record, seed: int) -> None:
    graph = make_program(seed)
    template = plan_graph(graph, {"x": TensorSpec((16, 8), np.dtype(np.float32))}, device.target)
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(template.plan, constants, device, record) as loaded:
        for rows in (16, 4, 14, 2, 16):
            arrays = make_input(seed, rows)
            variant = template.specialise({"x": TensorSpec((rows, 8), np.dtype(np.float32))})
            for got, expected in zip(loaded.run(arrays, variant), compute_graph(graph, arrays), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_recording_refuses_host_calls() -> None:
    spec = TensorSpec((4,), np.dtype(np.float32))
    call = HostCall("Neg", (), (Slot(0, 0, spec, (1,)),), (Slot(1, 0, spec, (1,)),))
    with pytest.raises(PlanError, match="a host call can't be part of a recording"):
        record_launches(TracerDevice(), Segment((call,), (), ("neg",)), {})


def test_tracer_writes_down_commands_with_bound_addresses() -> None:
    device = TracerDevice()
    device.load([KERNEL])
    x, y, z = (device.allocate(nbytes) for nbytes in (256, 256, 512))
    recording = device.record(make_segment(64), {1: Region(y, 0, 256)})
    device.log.clear()
    bindings: Mapping[int, Region] = {0: Region(x, 0, 256), 2: Region(z, 0, 512)}
    recording.submit(device.create_stream(), bindings)
    launch, fill, copy = device.log
    assert launch[:2] == ("launch", str(KERNEL))
    assert launch[4][:2] == tuple(memory.address.to_bytes(8, "little") for memory in (x, y))  # type: ignore[index]
    assert fill == ("fill", z.address, PATTERN, 64)
    assert copy == ("copy", z.address, y.address, 256)
