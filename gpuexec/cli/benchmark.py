"""Benchmarks of a model: what it costs to begin, latency with its parts, throughput, and what a run is bound by."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.cli.feeds import count_rows
from gpuexec.cli.output_checks import OutputCheck
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.worker import Worker
from gpuexec.ir.target import Target
from gpuexec.system.records import Record

# The fewest runs of a measurement, whatever they take, and the most that are profiled.
_MIN_RUNS, _MAX_PROFILED = 10, 200
# A run is bound by the host where that takes more than this share of what the device takes.
_HOST = 0.9
# Runs vary where the ninth decile is so many times the median.
_UNSTABLE = 1.3


@dataclass(frozen=True, slots=True)
class Spread(Record):
    """A time over runs, in milliseconds: the least, the mean, percentiles and the most."""

    runs: int
    min_ms: float
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Spread:
        """Return the spread of at least one time."""
        p50, p90, p99 = (float(each) for each in np.percentile(times_ms, (50, 90, 99)))
        return cls(len(times_ms), min(times_ms), float(np.mean(times_ms)), p50, p90, p99, max(times_ms))


@dataclass(frozen=True, slots=True)
class Throughput(Record):
    """Runs and rows a second, with so many runs in flight at once; a row is one of the first input's first axis."""

    in_flight: int
    runs: int
    runs_per_s: float
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class Beginning(Record):
    """Milliseconds until the first outputs are there.

    Attributes:
        load_ms: From the file to the Model.
        plan_ms, compile_ms: Of the plans and kernels that the first run needs.
        upload_ms: The rest of `Worker.prepare`: weights to the device, and memory.
        first_run_ms: From the call to the outputs on the host, all of that done.
    """

    load_ms: float
    plan_ms: float
    compile_ms: float
    upload_ms: float
    first_run_ms: float


@dataclass(frozen=True, slots=True)
class Steady(Record):
    """Times of runs whose plans are there.

    Attributes:
        latency: From the call of `Worker.run` to the outputs on the host.
        enqueue: Of `Worker.schedule`, which returns at once.
        compute: From the first command to the last, by events on the stream, of a run behind another one whose inputs
            it takes.
        h2d, d2h: Copies of inputs and outputs, by events, in runs that are profiled. None where there are none.
        throughput: With one run at a time, and with several in flight.
    """

    latency: Spread
    enqueue: Spread
    h2d: Spread | None
    compute: Spread
    d2h: Spread | None
    throughput: tuple[Throughput, ...]


@dataclass(frozen=True, slots=True)
class Benchmark(Record):
    """What was measured of a model, and ``advice`` in whole sentences; ``inputs`` are types and shapes by name."""

    model: str
    version: str
    backend: str
    device: str
    precision: str
    inputs: Mapping[str, str]
    beginning: Beginning
    steady: Steady
    advice: tuple[str, ...]
    checks: tuple[OutputCheck, ...] = ()


def begin(worker: Worker, feeds: Mapping[str, Any], load_ms: float) -> tuple[Beginning, dict[str, Any]]:
    """Prepare a Worker of a model that was loaded in so many milliseconds, and run once; return the outputs too."""
    start = time.perf_counter()
    worker.prepare(feeds)
    worker.wait_for_completion()
    prepared_ms, prepared = (time.perf_counter() - start) * 1e3, worker.report()
    start = time.perf_counter()
    outputs = worker.run(feeds)
    first_ms, report = (time.perf_counter() - start) * 1e3, worker.report()
    upload_ms = max(0.0, prepared_ms - prepared.plan_ms - prepared.compile_ms)
    return Beginning(load_ms, report.plan_ms, report.compile_ms, upload_ms, first_ms), dict(outputs.items())


def measure(worker: Worker, feeds: Mapping[str, Any], in_flight: int, duration_s: float, warmup_s: float) -> Steady:
    """Measure runs of the same inputs again and again.

    Args:
        worker: Has run them before.
        feeds: The inputs.
        in_flight: Runs at once, of the second throughput.
        duration_s: How long latency and throughput are measured, each; a third of that for each of the others.
        warmup_s: Of runs before, which don't count.
    """
    # What grows by rows would be full at some time.
    begins_anew = any(memory.axis is not None for memory in worker.model.memories)

    def reset() -> None:
        if begins_anew:
            worker.state.reset()

    def run() -> None:
        worker.run(feeds)

    _repeat(reset, run, warmup_s)
    start = time.perf_counter()
    latencies = _repeat(reset, run, duration_s)
    seconds, rows = time.perf_counter() - start, count_rows(feeds)
    alone = Throughput(1, len(latencies), len(latencies) / seconds, rows * len(latencies) / seconds)
    enqueue = _measure_enqueue(worker, feeds, reset, duration_s / 3)
    compute = _measure_compute(worker, feeds, reset, duration_s / 3)
    h2d, d2h = _measure_copies(worker, feeds, reset, duration_s / 3)
    flow = [] if in_flight == 1 else [_measure_flow(worker, feeds, reset, in_flight, duration_s)]
    return Steady(Spread.of(latencies), enqueue, h2d, compute, d2h, (alone, *flow))


def advise(steady: Steady, target: Target) -> tuple[str, ...]:
    """Return what runs are bound by, and whether their times vary, in whole sentences."""
    latency, compute, enqueue = (each.p50_ms for each in (steady.latency, steady.compute, steady.enqueue))
    copies = sum(each.p50_ms for each in (steady.h2d, steady.d2h) if each is not None)
    # Where the host is no faster than the device, the device waits for it, and events measure that.
    is_host = enqueue > _HOST * compute if target.has_kernels else latency - compute > compute
    if is_host:
        bound = (
            f"Bound by the host: it takes {enqueue:.3f} ms to put a run on the stream, of {compute:.3f} ms there. Give"
            " more rows a run, or record it (Worker.record)."
        )
    elif copies > compute:
        bound = (
            f"Bound by copies: they take {copies:.3f} ms, commands {compute:.3f} ms. Keep inputs and outputs on the"
            " device (Tensors, DLPack, bound state), or give narrower types."
        )
    else:
        bound = (
            f"Bound by compute: commands take {compute:.3f} ms, copies {copies:.3f} ms. `gpuexec profile` names the"
            " layers; a lower precision may take less (--precision)."
        )
    varying = steady.compute if target.has_kernels else steady.latency
    if varying.p90_ms <= _UNSTABLE * varying.p50_ms:
        return (bound,)
    cure = "lock the clocks (nvidia-smi --lock-gpu-clocks)" if target.has_kernels else "leave it nothing else to do"
    share = varying.p90_ms / varying.p50_ms
    return bound, f"Unstable: the ninth decile is {share:.2f} times the median; {cure} and measure again."


def _repeat(reset: Callable[[], None], run: Callable[[], None], duration_s: float) -> list[float]:
    """Run until the time is over, and some times at least; return how long each took, in milliseconds."""
    taken: list[float] = []
    end = time.perf_counter() + duration_s
    while len(taken) < _MIN_RUNS or time.perf_counter() < end:
        reset()
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1e3)
    return taken


def _measure_enqueue(worker: Worker, feeds: Mapping[str, Any], reset: Callable[[], None], duration_s: float) -> Spread:
    taken: list[float] = []
    end = time.perf_counter() + duration_s
    while len(taken) < _MIN_RUNS or time.perf_counter() < end:
        reset()
        start = time.perf_counter()
        run = worker.schedule(feeds)
        taken.append((time.perf_counter() - start) * 1e3)
        run.wait()
    return Spread.of(taken)


def _measure_compute(worker: Worker, feeds: Mapping[str, Any], reset: Callable[[], None], duration_s: float) -> Spread:
    """Return the device's time of a run behind another one, so that the host is ahead where it can be."""
    device, stream = worker._engine.backend.device, worker._engine.stream
    taken: list[float] = []
    end = time.perf_counter() + duration_s
    while len(taken) < _MIN_RUNS or time.perf_counter() < end:
        reset()
        worker.schedule(feeds)
        reset()
        first, last = device.create_timed_event(), device.create_timed_event()
        stream.record(first)
        run = worker.schedule()
        stream.record(last)
        run.wait()
        last.synchronize()
        taken.append(last.elapsed_ms(first))
    return Spread.of(taken)


def _measure_copies(
    worker: Worker, feeds: Mapping[str, Any], reset: Callable[[], None], duration_s: float
) -> tuple[Spread | None, Spread | None]:
    """Return the copies of a run to the device and back, by the events of a profiler."""
    profiler = Profiler(memory=False, keep_runs=_MAX_PROFILED)
    end, runs = time.perf_counter() + duration_s, 0
    with profiler:
        while runs < _MIN_RUNS or (runs < _MAX_PROFILED and time.perf_counter() < end):
            reset()
            requests = [tensor.readback_request() for tensor in worker.schedule(feeds).outputs.values()]
            for request in requests:
                request.result()
            runs += 1
    sums: dict[str, defaultdict[int, float]] = {name: defaultdict(float) for name in ("upload", "readback")}
    for event in profiler.events():
        if event.name in sums and event.duration_ms is not None:
            sums[event.name][event.run] += event.duration_ms
    h2d, d2h = (Spread.of(list(each.values())) if each else None for each in sums.values())
    return h2d, d2h


def _measure_flow(
    worker: Worker, feeds: Mapping[str, Any], reset: Callable[[], None], in_flight: int, duration_s: float
) -> Throughput:
    """Return the throughput with so many runs scheduled before the first of them is waited for."""
    waiting: deque[list[Any]] = deque()
    start, runs = time.perf_counter(), 0
    end = start + duration_s
    while runs < _MIN_RUNS + in_flight or time.perf_counter() < end:
        reset()
        waiting.append([tensor.readback_request() for tensor in worker.schedule(feeds).outputs.values()])
        runs += 1
        if len(waiting) == in_flight:
            for request in waiting.popleft():
                request.result()
    for request in (each for requests in waiting for each in requests):
        request.result()
    seconds = time.perf_counter() - start
    return Throughput(in_flight, runs, runs / seconds, runs * count_rows(feeds) / seconds)
