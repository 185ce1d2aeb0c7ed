"""Measurement of times, with the conditions they were taken under."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any

QUIET = 0.1  # cores that other processes may use before figures are called noisy
PACKAGES = (
    "numpy",
    "onnx",
    "onnxruntime",
    "ml_dtypes",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "cuda-bindings",
    "torch",
    "triton",
    "jax",
)
_STAT = Path("/proc/stat")
# Idle threads of onnxruntime and of OpenBLAS spin for tens of milliseconds; whoever comes next should not pay for it.
_PAUSE_S = 0.06


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least ``share`` of all samples do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def time_ms(function: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    function()
    return (time.perf_counter() - start) * 1e3


def repeat_ms(function: Callable[[], object], repeats: int) -> list[float]:
    """Return the times of calls one after the other."""
    return [time_ms(function) for _ in range(repeats)]


def interleave(
    contenders: Mapping[str, Callable[[], object]], repeats: int, limit_s: float, burst: int = 3
) -> dict[str, list[float]]:
    """Return times in milliseconds of several ways to do one thing, taken in turns, so that noise hits all alike.

    Args:
        contenders: What to call, by name; each has been called before.
        repeats: Calls of each.
        limit_s: A contender that has used up this much time is left out of the later turns.
        burst: Calls in a turn; the first finds its data pushed out of the caches by the others.
    """
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    while True:
        left = [n for n, taken in samples.items() if len(taken) < repeats and sum(taken) < limit_s * 1e3]
        if not left:
            return samples
        for name in left:
            time.sleep(_PAUSE_S)
            samples[name] += repeat_ms(contenders[name], min(burst, repeats - len(samples[name])))


@dataclass(slots=True)
class Bystanders:
    """Counts, as a context, how many cores other processes used meanwhile; None where the system does not say."""

    cores: float | None = None
    _start: tuple[float, float, float] | None = field(default=None, repr=False)

    def __enter__(self) -> Bystanders:
        self._start = _read_times()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before, after = self._start, _read_times()
        if before is not None and after is not None and after[0] > before[0]:
            wall, busy, own = (b - a for a, b in zip(before, after))
            self.cores = max(0.0, (busy - own) / wall)

    @property
    def is_quiet(self) -> bool:
        """True if other processes used little enough of the CPU for figures taken meanwhile to count."""
        return self.cores is None or self.cores <= QUIET

    def __str__(self) -> str:
        return "unknown" if self.cores is None else f"{self.cores:.2f}"


def describe_machine() -> list[tuple[str, str]]:
    """Return rows of what figures depend on: processor, cores, versions, load, commit."""
    rows = [
        ("machine", f"{_read_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}"),
        ("load average", ", ".join(f"{load:.2f}" for load in os.getloadavg())),
        ("Python", platform.python_version()),
        ("packages", ", ".join(_read_versions())),
        ("commit", _read_commit()),
        ("command", " ".join([Path(sys.executable).name, *sys.argv])),
    ]
    threads = {k: v for k, v in os.environ.items() if k.endswith("_NUM_THREADS") or k.startswith("GPUEXEC_")}
    return rows + [("environment", ", ".join(f"{k}={v}" for k, v in sorted(threads.items())) or "-")]


def describe_numpy_threads() -> str:
    """Return the BLAS that NumPy uses."""
    import numpy as np

    config: Any = np.show_config(mode="dicts")
    blas = config["Build Dependencies"]["blas"]
    return f"{blas['name']} {blas['version']}"


def _read_times() -> tuple[float, float, float] | None:
    """Return wall clock, busy core seconds of the machine, and those of this process and its children."""
    if not _STAT.exists():
        return None
    user, nice, system, _idle, _wait, irq, softirq, *_ = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:])
    busy = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.monotonic(), busy, sum(each.ru_utime + each.ru_stime for each in used)


def _read_processor() -> str:
    info = Path("/proc/cpuinfo")
    rows = info.read_text().splitlines() if info.exists() else []
    return next((row.split(":", 1)[1].strip() for row in rows if row.startswith("model name")), platform.machine())


def _read_versions() -> list[str]:
    versions = []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return versions


def _read_commit() -> str:
    root = Path(__file__).parents[2]
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown"
    return found.stdout.strip() or "unknown"
