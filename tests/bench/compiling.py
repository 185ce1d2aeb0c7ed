"""Benchmark of compiling: kernels of a model's plan into an empty cache and out of a full one, without a GPU."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.nvrtc import compiler_version
from gpuexec.ir.command import Kernel
from gpuexec.ir.precision import STRICT
from gpuexec.ir.target import Target
from gpuexec.passes import GENERATING
from gpuexec.system import knobs
from tests.bench.architectures import ARCHITECTURES
from tests.bench.models import BenchModel
from tests.bench.tables import Figures, beside

TARGET, COLD_S, WARM_S = "sm_90", 2.0, 0.3
MODELS: Mapping[str, Callable[[], BenchModel]] = {
    name: partial(ARCHITECTURES[name], has_weights=False) for name in ("bert_base", "resnet50_b1")
}
_COLUMNS = (
    *("plan", "precision", "kernels", "generated", "programs", "cold s", "bound", "", "processor s"),
    *("warm s", "bound", ""),
)


def measure_compiling() -> list[Figures]:
    """Compile the kernels of each model's plan, and those of the plan that stands for it meanwhile."""
    figures = Figures(f"Compiling the kernels of a plan for {TARGET}", _COLUMNS)
    for name, make in MODELS.items():
        for precision in (STRICT, "fp16"):
            bench = replace(make(), precision=precision)
            for title, disabled in ((name, frozenset[str]()), (f"{name}, unfused", GENERATING)):
                kernels = bench.plan(Target.named(TARGET), disabled).kernels()
                generated = sum(bool(kernel.text) for kernel in kernels)
                with tempfile.TemporaryDirectory() as folder:
                    programs, cold_s, cpu_s = _compile(kernels, Path(folder))
                    _, warm_s, _ = _compile(kernels, Path(folder))
                figures.add(
                    *(title, precision, len(kernels), generated, programs, cold_s, COLD_S, beside(cold_s, COLD_S)),
                    *(cpu_s, warm_s, WARM_S, beside(warm_s, WARM_S)),
                )
    figures.notes.append(f"{compiler_version()}, {knobs.build_jobs()} programs at once, headers read before.")
    return [figures]


def _compile(kernels: Sequence[Kernel], folder: Path) -> tuple[int, float, float]:
    """Return how many programs kernels are compiled in, and seconds: by the clock and of processors."""
    library = KernelLibrary(TARGET, KernelCache(folder))
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    entries = library.compile(kernels)
    seconds, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    return len({entry.key for entry in entries.values()}), seconds, cpu_s
