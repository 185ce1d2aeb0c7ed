"""Benchmark of arena packing beside the lower bound: real models and hard instances."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.ir.plan import Plan
from gpuexec.planner.arena import pack
from tests.bench.host_time import open_tracer
from tests.bench.tables import Figures, beside
from tests.planner.hard_arenas import cut_in_a_wheel, cut_in_two, cut_rectangle

SEEDS = range(11)
MODEL_BOUND = 1.02
HARD_BOUNDS = {"worst": 1.30, "geometric mean": 1.20, "longest, s": 2.0}
SHOWN = 12
_MODEL_COLUMNS = (
    "model",
    "case",
    "target",
    "part",
    "commands",
    "buffers",
    "arena",
    "lower bound",
    "ratio",
    "bound",
    "",
)


def measure_arenas(folder: Path | None) -> list[Figures]:
    """Measure every plan of every case of a folder of models, and the packer on rectangles cut to pieces."""
    return [*_measure_models(folder), _measure_hard()]


def _measure_models(folder: Path | None) -> list[Figures]:
    figures = Figures(f"Arenas of models, the {SHOWN} furthest above their lower bound", _MODEL_COLUMNS)
    if folder is None:
        figures.notes.append("Not measured: GPUEXEC_MODELS names no folder of models.")
        return [figures]
    failed = Figures("Models left out", ("model", "why"))
    rows: list[tuple[Any, ...]] = []
    for name, model in json.loads((folder / "manifest.json").read_text()).items():
        try:
            loaded = gx.load(folder / model["file"])
        except gx.GpuexecError as error:
            failed.add(name, str(error).split(":", 1)[-1].strip())
            continue
        for case in model["cases"]:
            for target, opened in (("cpu", gx.BackendType.CPU), ("sm_90", None)):
                try:
                    plans = _plan(loaded, folder / case, opened)
                except gx.GpuexecError as error:
                    failed.add(f"{name} ({target})", str(error))
                    continue
                rows += [(name, Path(case).stem, target, part, *_describe(plan)) for part, plan in enumerate(plans)]
    rows.sort(key=lambda row: -row[-1])
    for row in rows[:SHOWN]:
        figures.add(*row, MODEL_BOUND, beside(row[-1], MODEL_BOUND))
    above = sum(row[-1] > MODEL_BOUND for row in rows)
    figures.notes.append(
        f"{len(rows)} plans of {len({row[0] for row in rows})} models; {above} above {MODEL_BOUND}. All parts of a"
        " model that is planned in parts count, those of bodies of loops too."
    )
    return [figures, failed]


def _plan(model: gx.Model, case: Path, backend: gx.BackendType | None) -> list[Plan]:
    """Return the plans that a run makes; without a backend those for sm_90, by the tracer if no content is read."""
    with np.load(case) as file:
        given = {str(name): file[f"in_{i}"] for i, name in enumerate(file["input_names"])}
    with gx.Worker(model, backend=backend or open_tracer()) as worker:
        worker.run(given)
        if backend is not None or not worker.report().host_reads:
            return list(worker.plans[::-1])
    with gx.Worker(model, backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(given)
        return list(worker.plans[::-1])


def _describe(plan: Plan) -> tuple[int, int, int, int, float]:
    layout = plan.layout
    ratio = layout.nbytes / layout.lower_bound if layout.lower_bound else 1.0
    return len(plan.segment.commands), len(layout.offsets), layout.nbytes, layout.lower_bound, ratio


def _measure_hard() -> Figures:
    figures = Figures(
        "Arenas of buffers cut from a full rectangle, over the smallest", ("cuts", "figure", "value", "bound", "")
    )
    cuts: dict[str, Callable[..., Any]] = {"straight": cut_in_two, "in wheels": cut_in_a_wheel}
    for name, cut in cuts.items():
        ratios, times = [], []
        for seed in SEEDS:
            hard = cut_rectangle(seed, cut)
            start = time.perf_counter()
            packing = pack(hard.lifetimes)
            times.append(time.perf_counter() - start)
            ratios.append(packing.nbytes / hard.nbytes)
        values = (max(ratios), prod(ratios) ** (1 / len(ratios)), max(times))
        for (figure, bound), value in zip(HARD_BOUNDS.items(), values, strict=True):
            figures.add(name, figure, value, bound, beside(value, bound))
    figures.notes.append(f"Seeds {SEEDS.start} to {SEEDS.stop - 1}, 150 to 450 buffers.")
    return figures
