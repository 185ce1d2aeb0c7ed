"""Benchmark of host time for scheduling a plan of 100 commands, and for one launch, on the tracer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Device, Recording, Region, Stream
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.devices.recording import record_graph, record_launches
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.ir.plan import BOUND_ROLES, Plan, Role, Segment
from tests.bench.measure import percentile, repeat_ms, time_ms
from tests.bench.models import ModelBuilder
from tests.bench.tables import Figures, beside

COMMANDS, SCHEDULE_BOUND_MS = 100, 1.0
_LAUNCHES = 20_000
# Of a profiler: what it remembers is let go of as it goes.
_RUNS_KEPT = 10
Recorder = Callable[[Segment, Mapping[int, Region]], Recording]
_STEPS = ("Add", "Tanh", "MatMul", "Sigmoid", "Mul")


def open_tracer() -> Backend:
    """Return a backend over a tracer that writes nothing down."""
    return Backend(TracerDevice(is_writing=False), gx.BackendType.GPU_COMPUTE, "measured")


def load_commands(count: int, *, is_read_often: bool = False) -> gx.Model:
    """Return a model of ``count`` nodes, each of which becomes one command; every Add may read the input once more."""
    build, x = ModelBuilder(7), "x"
    for index in range(count):
        operator = _STEPS[index % len(_STEPS)]
        others = {"Add": (64,), "Mul": (64,), "MatMul": (64, 64)}.get(operator)
        if is_read_often and operator == "Add":
            x = build.node(operator, x, "x")
        else:
            x = build.node(operator, x, *([build.weight(*others)] if others else []))
    data = build.finish("commands", (16, 64), x, (16, 64)).data
    return gx.load(data, disabled_passes=["fuse_epilogues", "fuse_regions"])


def measure_schedule(repeats: int) -> list[Figures]:
    """Measure `Worker.schedule` of a plan of 100 commands, and its parts."""
    backend = open_tracer()
    x = np.ones((16, 64), np.float32)
    with gx.Worker(load_commands(COMMANDS), backend=backend) as worker:
        plan = worker.prepare(x)
        worker.schedule(x)
        whole = repeat_ms(lambda: worker.schedule(x), repeats)
        read = repeat_ms(lambda: worker.run(x), repeats)
    profiler = gx.Profiler(keep_runs=_RUNS_KEPT)
    with gx.Worker(load_commands(COMMANDS), backend=backend, profiler=profiler) as worker:
        worker.schedule(x)
        profiled = repeat_ms(lambda: worker.schedule(x), repeats)
    forms = measure_forms(backend, repeats)
    launch = _time_launches(backend.device, repeats=5)
    count = len(plan.segment.commands)
    figures = Figures(
        f"Host time of a plan of {count} commands on the tracer (us)", ("part", "p50", "p99", "share", "bound", "")
    )
    p50 = percentile(whole, 0.5)
    bound = SCHEDULE_BOUND_MS * 1e3
    for name, samples, limit in [("schedule", whole, bound), *forms]:
        part = percentile(samples, 0.5)
        share = f"{part / p50:.0%}" if samples is whole else None
        figures.add(name, part * 1e3, percentile(samples, 0.99) * 1e3, share, limit, beside(part * 1e3, limit))
    figures.add("schedule, profiled", percentile(profiled, 0.5) * 1e3, percentile(profiled, 0.99) * 1e3, None, None, "")
    figures.add("run: schedule and readback", percentile(read, 0.5) * 1e3, percentile(read, 0.99) * 1e3, None, None, "")
    figures.notes.append(f"{repeats} calls each. What is scheduled is launched as a graph from the 4th time on.")
    packing = Figures("One launch on the tracer (ns)", ("part", "best"))
    for name, cost in launch.items():
        packing.add(name, cost)
    packing.notes.append(
        f"Best of 5 times {_LAUNCHES} calls; a launch packs the eleven arguments of the driver's launch."
    )
    return [figures, packing]


def measure_forms(backend: Backend, repeats: int) -> list[tuple[str, list[float], float]]:
    """Return what is measured, times of `Recording.submit` in both forms, and the bound in microseconds of each."""
    device: Any = backend.device
    rows, costs = [], device.launch_costs
    for is_read_often in (False, True):
        with gx.Worker(load_commands(COMMANDS, is_read_often=is_read_often), backend=backend) as worker:
            plan = worker.prepare(np.ones((16, 64), np.float32))
        assert plan is not None
        count, patched = len(plan.segment.commands), _count_bound(plan)
        launched, graph = partial(record_launches, device), partial(record_graph, device)
        stream_bound = costs.stream_us + costs.launch_us * count
        for name, record, per_node in (("stream", launched, 0.0), ("graph", graph, costs.patch_us)):
            same, changed = measure_submit(plan, device, repeats, record)
            fixed = stream_bound if name == "stream" else costs.graph_us
            rows.append((f"  submit as a {name}, {patched} commands patched", changed, fixed + per_node * patched))
            if not is_read_often:
                rows.append((f"  submit as a {name}, none patched", same, fixed))
    return rows


def _count_bound(plan: Plan) -> int:
    """Return how many commands use a buffer that is bound at submit."""
    bound = {buffer.id for buffer in plan.buffers if buffer.role in BOUND_ROLES}
    return sum(
        any(slot.buffer in bound for slot in (*command.reads_from(), *command.writes_to()))
        for command in plan.segment.commands
    )


def measure_submit(
    plan: Plan, device: Device, repeats: int, record: Recorder | None = None
) -> tuple[list[float], list[float]]:
    """Return times of `Recording.submit` with bindings unchanged, and with other ones each time.

    What was submitted is waited for in between, so that a full queue is no part of the times.

    Args:
        plan: Of one segment; what its buffers hold does not matter.
        device: Where its kernels are loaded.
        repeats: Submits of each kind.
        record: How to record; None: the device's own way.
    """
    segment = plan.segment
    arena = device.allocate(max(plan.layout.nbytes, 1))
    places = {b: Region(arena, offset, plan.buffers[b].nbytes) for b, offset in plan.layout.offsets}
    for buffer in plan.buffers:
        if buffer.role is Role.CONSTANT:
            places[buffer.id] = Region(device.allocate(buffer.nbytes), 0, buffer.nbytes)
    stream = device.create_stream()
    for buffer in plan.buffers:
        if buffer.role is Role.COUNTERS:
            places[buffer.id] = Region(device.allocate(buffer.nbytes), 0, buffer.nbytes)
            stream.fill(places[buffer.id].address, bytes(1), buffer.nbytes)
    bound = [buffer for buffer in plan.buffers if buffer.id not in places]
    bindings = [{b.id: Region(device.allocate(b.nbytes), 0, b.nbytes) for b in bound} for _ in range(2)]
    recording = (record or device.record)(segment, places)
    recording.submit(stream, bindings[0])
    samples: tuple[list[float], list[float]] = [], []
    for taken, turns in zip(samples, (cycle(bindings[:1]), cycle(bindings[::-1])), strict=True):
        for binding in islice(turns, repeats):
            stream.synchronize()
            taken.append(time_ms(partial(recording.submit, stream, binding)))
    stream.synchronize()
    return samples


def _time_launches(device: Device, repeats: int) -> dict[str, float]:
    """Return nanoseconds of a launch and of patching a pointer."""
    kernel = Kernel("bench.cu", "bench")
    device.load([kernel])
    function, stream = device.function(kernel), device.create_stream()
    arguments = PackedArguments([None, None, np.int64(1), np.int32(1), np.float32(1)])
    return {
        "launch": _best_ns(lambda: launch_often(stream, function, arguments), repeats),
        "patching a pointer": _best_ns(lambda: _patch_often(arguments), repeats),
        "an empty loop": _best_ns(lambda: _loop(range(_LAUNCHES)), repeats),
    }


def launch_often(stream: Stream, function: object, arguments: PackedArguments) -> None:
    """Launch one kernel many times."""
    launch, config = stream.launch, LaunchConfig((1, 1, 1), (128, 1, 1))
    for _ in range(_LAUNCHES):
        launch(function, config, arguments)  # type: ignore[arg-type]


def _patch_often(arguments: PackedArguments) -> None:
    patch = arguments.set_pointer
    for address in range(_LAUNCHES):
        patch(0, address)


def _loop(items: Sequence[int]) -> None:
    for _ in items:
        pass


def _best_ns(function: object, repeats: int) -> float:
    assert callable(function)
    return min(time_ms(function) for _ in range(repeats)) * 1e6 / _LAUNCHES
