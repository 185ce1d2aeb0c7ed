"""What the host spends on scheduling a plan of 100 commands, and on one launch. On the tracer, where nothing runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice

import numpy as np

import gpuexec as gx
from gpuexec.command import Kernel
from gpuexec.plan import Plan, Role, Segment
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Device, Recording, Region, Stream
from gpuexec.runtime.tracer import TracerDevice
from tests.bench.measure import percentile, repeat_ms, time_ms
from tests.bench.models import ModelBuilder
from tests.bench.tables import Figures, beside

COMMANDS, SCHEDULE_BOUND_MS = 100, 1.0
_LAUNCHES = 20_000
Recorder = Callable[[Segment, Mapping[int, Region]], Recording]
_STEPS = ("Add", "Tanh", "MatMul", "Sigmoid", "Mul")


def open_tracer() -> Backend:
    """Return a backend over a tracer that writes nothing down."""
    return Backend(TracerDevice(is_writing=False), gx.BackendType.GPU_COMPUTE, "measured")


def make_commands(count: int) -> bytes:
    """Return a model of ``count`` nodes, each of which becomes one command."""
    build, x = ModelBuilder(7), "x"
    for index in range(count):
        operator = _STEPS[index % len(_STEPS)]
        others = {"Add": (64,), "Mul": (64,), "MatMul": (64, 64)}.get(operator)
        x = build.node(operator, x, *([build.weight(*others)] if others else []))
    return build.finish("commands", (16, 64), x, (16, 64)).data


def measure_schedule(repeats: int) -> list[Figures]:
    """Measure `Worker.schedule` of a plan of 100 commands, and its parts."""
    backend = open_tracer()
    x = np.ones((16, 64), np.float32)
    with gx.Worker(gx.load(make_commands(COMMANDS)), backend=backend) as worker:
        plan = worker.prepare(x)
        worker.schedule(x)
        whole = repeat_ms(lambda: worker.schedule(x), repeats)
        read = repeat_ms(lambda: worker.run(x), repeats)
    same, changed = measure_submit(plan, backend.device, repeats)
    launch = _time_launches(backend.device, repeats=5)
    count = len(plan.segment.commands)
    figures = Figures(
        f"Host time of a plan of {count} commands on the tracer (us)", ("part", "p50", "p99", "share", "bound", "")
    )
    p50 = percentile(whole, 0.5)
    bound = SCHEDULE_BOUND_MS * 1e3
    for name, samples in {
        "schedule": whole,
        "  submit: issuing, two bindings patched": changed,
        "  the same with bindings unchanged": same,
    }.items():
        part = percentile(samples, 0.5)
        is_whole = samples is whole
        limits = (bound, beside(part * 1e3, bound)) if is_whole else (None, "")
        figures.add(name, part * 1e3, percentile(samples, 0.99) * 1e3, f"{part / p50:.0%}", *limits)
    rest = p50 - percentile(changed, 0.5)
    figures.add("  the rest: inputs, choosing, binding, events", rest * 1e3, None, f"{rest / p50:.0%}", None, "")
    figures.add("run: schedule and readback", percentile(read, 0.5) * 1e3, percentile(read, 0.99) * 1e3, None, None, "")
    figures.notes.append(f"{repeats} calls each.")
    packing = Figures("One launch on the tracer (ns)", ("part", "best"))
    for name, cost in launch.items():
        packing.add(name, cost)
    packing.notes.append(
        f"Best of 5 times {_LAUNCHES} calls; a launch packs the eleven arguments of the driver's launch."
    )
    return [figures, packing]


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
    bound = [buffer for buffer in plan.buffers if buffer.id not in places]
    bindings = [{b.id: Region(device.allocate(b.nbytes), 0, b.nbytes) for b in bound} for _ in range(2)]
    recording, stream = (record or device.record)(segment, places), device.create_stream()
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
    launch = stream.launch
    for _ in range(_LAUNCHES):
        launch(function, (1, 1, 1), (128, 1, 1), 0, arguments)  # type: ignore[arg-type]


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
