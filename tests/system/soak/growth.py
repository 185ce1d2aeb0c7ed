"""Soak test of thousands of runs of changing shapes: no growth, and all memory released."""

from __future__ import annotations

import gc
import os
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.simulator.device import SimulatorDevice
from tests.devices.opening import list_kernels
from tests.system.soak.models import SoakModel

WARM_RUNS = 100
# What one process's memory may wander by, whatever it does: pages, arenas of the allocator, caches of the interpreter.
_OBJECTS_SLACK, _TRACED_SLACK, _RSS_SLACK = 200, 64 << 10, 8 << 20


@dataclass(frozen=True)
class Held:
    """Memory held at one moment, in bytes but for ``objects``."""

    objects: int
    traced: int
    rss: int
    device: int
    pinned: int

    def __str__(self) -> str:
        return (
            f"{self.objects:,} objects, {self.traced:,} B traced, RSS {self.rss:,} B,"
            f" device {self.device:,} B, pinned {self.pinned:,} B"
        )


def open_device(kind: str, delay_s: float = 0.0) -> Backend:
    """Return a backend of its own, so that only what runs on it is counted."""
    if kind == "cpu":
        return Backend(CpuDevice(), gx.BackendType.CPU, "to soak")
    device = SimulatorDevice(list_kernels, delay_s=delay_s)
    return Backend(device, gx.BackendType.SIMULATOR, "to soak")


def run_long(soak: SoakModel, kind: str, runs: int) -> list[str]:
    """Run a model with changing shapes; print figures, and return what grew or was not given back."""
    backend = open_device(kind)
    rng = np.random.default_rng(7)
    # An odd number in a round: each of a Worker's two frames meets every shape within two rounds.
    warm = [*soak.shapes, *soak.shapes[: 1 - len(soak.shapes) % 2]]
    order = [warm[index % len(warm)] for index in range(WARM_RUNS)]
    order += [soak.shapes[index] for index in rng.integers(0, len(soak.shapes), max(runs - WARM_RUNS, 0))]
    problems: list[str] = []
    start = time.perf_counter()
    model = gx.load(soak.proto)
    for shape in soak.shapes:
        soak.case(shape)
    tracemalloc.start()
    worker = gx.Worker(model, backend=backend)
    before = None
    kinds: Counter[str] = Counter()
    for number, shape in enumerate(order, 1):
        x, expected = soak.case(shape)
        got = worker.run(x)
        for array, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=1e-5)
        if number == WARM_RUNS:
            before, kinds = measure(worker, backend), count_kinds()
    after, grown = measure(worker, backend), count_kinds() - kinds
    tracemalloc.stop()
    assert before is not None
    seconds = time.perf_counter() - start
    print(f"{soak.name} on {kind}: {len(order):,} runs over {len(soak.shapes)} shapes in {seconds:.0f} s")
    print(f"  after {WARM_RUNS}: {before}\n  at the end: {after}")
    problems += find_growth(before, after)
    if problems:
        print(f"  more of: {grown.most_common(8)}")
    worker.close()
    del worker, got, array
    gc.collect()
    backend.staging.trim()
    left = count_device(backend)
    print(f"  closed: device {left:,} B, pinned {backend.staging.nbytes:,} B")
    if left or backend.staging.nbytes:
        problems.append(f"{left} device bytes and {backend.staging.nbytes} pinned bytes were not given back")
    backend.completion.close()
    backend.device.close()
    return [f"{soak.name} on {kind}: {problem}" for problem in problems]


def measure(worker: gx.Worker, backend: Backend) -> Held:
    """Return what is held when nothing is under way."""
    worker.trim()
    worker.wait_for_completion()
    gc.collect()
    stats = worker.memory_stats()
    held = sum(stats[name] for name in ("arena", "exchange", "weights", "frames"))
    device = count_device(backend) if isinstance(backend.device, SimulatorDevice) else held
    return Held(len(gc.get_objects()), tracemalloc.get_traced_memory()[0], read_rss(), device, stats["pinned"])


def count_kinds() -> Counter[str]:
    """Return how many objects of each type there are."""
    return Counter(type(each).__name__ for each in gc.get_objects())


def count_device(backend: Backend) -> int:
    """Return the bytes allocated on a device, as far as it knows."""
    return backend.device.context.blocks.nbytes if isinstance(backend.device, SimulatorDevice) else 0


def read_rss() -> int:
    """Return the process's resident memory in bytes."""
    if not sys.platform.startswith("linux"):
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def find_growth(before: Held, after: Held) -> list[str]:
    """Return what is more than it was, by more than memory wanders anyway."""
    allowed = Held(_OBJECTS_SLACK, _TRACED_SLACK, _RSS_SLACK, 0, 0)
    return [
        f"{name} grew from {getattr(before, name):,} to {getattr(after, name):,}"
        for name in Held.__dataclass_fields__
        if getattr(after, name) > getattr(before, name) + getattr(allowed, name)
    ]
