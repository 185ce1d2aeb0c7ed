"""Contenders of the GPU benchmarks: ways to run one model on a GPU, timed in turns by the host's clock.

A turn of each contender follows a turn of every other, so that clocks, heat and bystanders are the same for all.
"""

from __future__ import annotations

import importlib
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.ir.precision import STRICT, TF32
from tests.bench.measure import percentile, time_ms
from tests.bench.models import Array, BenchModel
from tests.bench.torch_architectures import FORWARDS, make_network

OURS, EAGER, GRAPH, COMPILED = "gpuexec", "torch eager", "torch, CUDA graph", "torch.compile"
WARM_RUNS = 3
# The largest difference of outputs, over the largest output, of contenders that compute the same in a precision.
MAX_ERRORS = {STRICT: 1e-4, TF32: 1e-2, "fp16": 2e-2, "bf16": 1e-1}
# Seconds that are left for timing when torch.compile is given up.
_TIMING_S = 15.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run a model.

    Attributes:
        name: Its name in tables.
        submit: Puts one run on the GPU.
        wait: Waits for all runs.
        read: Runs once and returns the first output.
        reset: Brings the state back to what it was before the runs of a turn.
    """

    name: str
    submit: Callable[[], object]
    wait: Callable[[], object]
    read: Callable[[], Array]
    reset: Callable[[], object] = lambda: None


@dataclass(slots=True)
class Samples:
    """Milliseconds of runs: ``latency`` of each alone until it is done, ``in_a_row`` of many without waiting, each."""

    latency: list[float] = field(default_factory=list)
    in_a_row: list[float] = field(default_factory=list)

    def spread(self) -> tuple[float, float, float, float, float, float]:
        """Return median, 10 % and 90 % of latency, then of runs in a row."""
        p50, p10, p90 = ([percentile(s, share) for s in (self.latency, self.in_a_row)] for share in (0.5, 0.1, 0.9))
        return p50[0], p10[0], p90[0], p50[1], p10[1], p90[1]


@dataclass(frozen=True, slots=True)
class Turns:
    """How many turns each contender gets, and the runs of one: each waited for, and in a row without waiting."""

    count: int = 7
    latencies: int = 10
    in_a_row: int = 20


class Budget:
    """Seconds that are left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Seconds left; negative when they are over."""
        return self._end - time.monotonic()


def take_turns(contenders: Sequence[Contender], turns: Turns, budget: Budget) -> dict[str, Samples]:
    """Time contenders in turns, as many as are asked for or until the budget is used up, but one of each at least."""
    samples = {contender.name: Samples() for contender in contenders}
    for count in range(turns.count):
        if count and budget.left_s < 0:
            break
        for contender in contenders:
            _take_turn(contender, samples[contender.name], turns)
    return samples


def _take_turn(contender: Contender, samples: Samples, turns: Turns) -> None:
    submit, wait = contender.submit, contender.wait
    contender.reset()
    for _ in range(WARM_RUNS):
        submit()
    wait()
    samples.latency += [time_ms(lambda: (submit(), wait())) for _ in range(turns.latencies)]

    def run_in_a_row() -> None:
        for _ in range(turns.in_a_row):
            submit()
        wait()

    samples.in_a_row.append(time_ms(run_in_a_row) / turns.in_a_row)


def compare(found: Array, expected: Array) -> float:
    """Return the largest difference over the largest value expected."""
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    return float(difference.max(initial=0.0) / max(np.abs(np.asarray(expected)).max(initial=0.0), 1e-30))


def open_worker(worker: gx.Worker, bench: BenchModel) -> Contender:
    """Return a Worker's runs, whose inputs stay on the device, as a contender."""
    snapshot = None
    if bench.state:
        worker.state.set(bench.memories)
        snapshot = worker.state.snapshot()

    def reset() -> None:
        if snapshot is not None:
            worker.state.restore(snapshot)

    def read() -> Array:
        reset()
        return np.asarray(worker.run(bench.feeds)[0])

    return Contender(OURS, worker.schedule, worker.wait_for_completion, read, reset)


def open_torch(precision: str = STRICT) -> Any:
    """Return PyTorch, set to the fastest kernels of cuDNN, with TF32 only where that is the precision.

    Raises:
        ImportError: It is not installed, or has no GPU.
    """
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise ImportError("torch has no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == TF32
    torch.backends.cudnn.benchmark = True
    torch.set_grad_enabled(False)
    return torch


def open_torch_contenders(
    bench: BenchModel, budget: Budget, notes: list[str], without: Collection[str] = ()
) -> Iterator[Contender]:
    """Yield the ways PyTorch runs a model, without those named; for each that it lacks, a note says why."""
    if bench.name not in FORWARDS:
        notes.append(f"{bench.name}: not written in PyTorch.")
        return
    try:
        torch = open_torch(bench.precision)
    except ImportError as error:
        notes.append(f"torch: not measured, {error}.")
        return
    network, inputs = make_network(torch, bench, "cuda")
    makers: dict[str, Callable[[Any, Any, list[Any]], Contender]] = {
        EAGER: _make_eager,
        GRAPH: _make_graph,
        COMPILED: _make_compiled,
    }
    for name, make in makers.items():
        if name in without:
            continue
        with noting(name, notes), limit_time(budget.left_s - _TIMING_S):
            yield make(torch, network, inputs)


@contextmanager
def noting(name: str, notes: list[str]) -> Iterator[None]:
    """Note whatever another package raises in a context, so that only what it was for is left out."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        notes.append(f"{name}: not measured, {type(error).__name__}: {lines[0][:200]}")


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """Interrupt what a context of the main thread does when it takes too long.

    Raises:
        TimeoutError: It has.
    """

    def stop(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"it took more than the {seconds:.0f} s there were")

    if seconds <= 0:
        raise TimeoutError("no time is left")
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _make_eager(torch: Any, network: Any, inputs: list[Any]) -> Contender:
    return _make_contender(torch, EAGER, lambda: network(*inputs))


def _make_graph(torch: Any, network: Any, inputs: list[Any]) -> Contender:
    graph = capture(torch, lambda: network(*inputs))
    return Contender(GRAPH, graph.submit, torch.cuda.synchronize, lambda: graph.read().float().cpu().numpy())


def _make_compiled(torch: Any, network: Any, inputs: list[Any]) -> Contender:
    compiled = torch.compile(network, mode="reduce-overhead")

    def call() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*inputs)

    for _ in range(4):
        call()
    torch.cuda.synchronize()
    return _make_contender(torch, COMPILED, call)


def _make_contender(torch: Any, name: str, call: Callable[[], Any]) -> Contender:
    return Contender(name, call, torch.cuda.synchronize, lambda: call().float().cpu().numpy())


@dataclass(frozen=True, slots=True)
class Captured:
    """A CUDA graph of PyTorch: ``submit`` launches it, ``read`` does too and returns what the call returned."""

    submit: Callable[[], object]
    read: Callable[[], Any]


def capture(torch: Any, call: Callable[[], Any], times: int = 1) -> Captured:
    """Capture a call, several times in a row, as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_RUNS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    results: list[Any] = []
    # Threads of gpuexec may call the driver meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            results[:] = [call()]

    def read() -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return results[0]

    return Captured(graph.replay, read)


def warm_compiler(bench: BenchModel) -> None:
    """Compile a model by torch.compile, so that another process finds the code in the compiler's cache."""
    torch = open_torch(bench.precision)
    _make_compiled(torch, *make_network(torch, bench, "cuda"))
