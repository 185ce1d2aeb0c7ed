"""Measurement of the candidates of a model's products and convolutions, for a tune file.

The model runs whole, once for each provider that takes all it can, with a time for each layer: so every candidate meets
the caches as it would, and what it needs beside its kernel counts. Of several runs and equal problems it is the median.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Any

from gpuexec.devices.backend import BackendLike
from gpuexec.devices.device import Device
from gpuexec.errors import InputError, UnsupportedError
from gpuexec.execution.profiling.profiler import Profiler
from gpuexec.execution.profiling.rows import CommandRow, LayerRow
from gpuexec.execution.worker import Worker
from gpuexec.ir.command import LibraryCall
from gpuexec.ir.provider import LIBRARIES, OURS, Offer, check_providers
from gpuexec.model.model import Model
from gpuexec.planner.providers import Providers
from gpuexec.planner.tune_file import Tuning
from gpuexec.system.version import VERSION


def tune(
    model: Model,
    inputs: Any,
    *,
    providers: Collection[str] = LIBRARIES,
    backend: BackendLike = "gpu_compute",
    runs: int = 20,
    warmup: int = 3,
) -> Tuning:
    """Measure a model's products and convolutions by each provider that can compute them.

    Args:
        model: In the precision that it is to run in.
        inputs: Of its runs; what is measured is the upper end of the size class that they fall in.
        providers: Libraries.
        backend: A GPU.
        runs: How many are counted for each provider.
        warmup: How many come before them.

    Raises:
        InputError: ``runs`` or ``warmup`` is too small, there is no such provider, or the backend has no libraries.
        DeviceNotFoundError: There is no GPU, or a library is not installed.
    """
    names = check_providers(providers)
    if not names or runs < 1 or warmup < 0:
        raise InputError(f"tune takes a provider, and runs from 1 and warmup from 0 on, got {runs} and {warmup}.")
    times: dict[str, dict[str, float]] = {}
    refused: dict[str, dict[str, str]] = {}
    for name in (OURS, *names):
        found = _measure(model, inputs, names, name, backend, (runs, warmup), refused)
        for problem, us in found.items():
            times.setdefault(problem, {})[name] = us
    with Worker(model, backend=backend, providers=names) as worker:
        device = worker._engine.backend.device
        return Tuning(device.name, _list_versions(device, names), times, refused)


def _measure(
    model: Model,
    inputs: Any,
    names: tuple[str, ...],
    forced: str,
    backend: BackendLike,
    counts: tuple[int, int],
    refused: dict[str, dict[str, str]],
) -> dict[str, float]:
    """Return the microseconds of each problem that a provider took; note what a library can't solve after all."""
    runs, warmup = counts
    while True:
        profiler = Profiler(keep_runs=runs, memory=False)
        with Worker(model, backend=backend, providers=names, profiler=profiler) as worker:
            planning = worker._engine.planning
            if not planning.providers.names:
                raise InputError(f"{worker._engine.backend.device.name} has no libraries: tune on a GPU.")
            planning.providers = Providers(names, Tuning("", {}, {}, refused), forced)
            try:
                for _ in range(warmup + runs):
                    worker.run(inputs)
            except UnsupportedError:
                if not _note_refusals(worker, refused):
                    raise
                continue
            return find_times(profiler.rows(), planning.offers, forced)


def find_times(rows: Iterable[LayerRow], offers: Iterable[tuple[str, Offer]], provider: str) -> dict[str, float]:
    """Return the median microseconds of each problem that a provider took and a library could have taken.

    Args:
        rows: Layers of all runs.
        offers: What nodes could choose from, and took.
        provider: Whose times they are.
    """
    problems = {
        node: offer.problem
        for node, offer in offers
        if offer.chosen == provider and any(name != OURS for name, _, _ in offer.costs)
    }
    # A node may have layers apart from each other, and a loop has each of them several times.
    taken: dict[tuple[str, int], dict[tuple[CommandRow, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.node in problems and row.duration_ms is not None:
            taken[row.node, row.run][row.commands].append(row.duration_ms)
    found: dict[str, list[float]] = defaultdict(list)
    for (node, _), layers in taken.items():
        found[problems[node]].append(1e3 * sum(sum(each) / len(each) for each in layers.values()))
    return {problem: median(each) for problem, each in found.items()}


def _note_refusals(worker: Worker, refused: dict[str, dict[str, str]]) -> bool:
    """Note the problems of a Worker's plans that a library refuses; return whether there are any."""
    device: Any = worker._engine.backend.device
    is_any = False
    for plan in worker.plans:
        for command in plan.segment.commands:
            if not isinstance(command, LibraryCall):
                continue
            try:
                device.plan_library_call(command)
            except UnsupportedError as error:
                refused.setdefault(str(command.problem), {})[command.library] = str(error).partition(" for a ")[0]
                is_any = True
    return is_any


def _list_versions(device: Device, names: tuple[str, ...]) -> Mapping[str, str]:
    """Return the versions of what was measured."""
    opened: Any = device
    versions = {"gpuexec": VERSION, "driver": str(opened.driver_version)}
    return versions | {name: opened.open_library(name).version for name in names}
