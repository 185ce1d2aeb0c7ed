"""Benchmark of the CPU beside onnxruntime with two threads: models of a folder, the digits, generated models."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

import gpuexec as gx
from tests.bench.cpu_models import open_onnxruntime
from tests.bench.measure import interleave, percentile
from tests.bench.models import MODELS
from tests.bench.tables import Figures

THREADS = 2
BANDS_MS = (0.1, 0.5, 2.0, 10.0, inf)  # upper ends, by onnxruntime's time
SHOWN = 10
# What is to be reached: onnxruntime's time over ours, of all models and of each; of generated models; ours in us.
ALL_BOUND, LEAST_BOUND, GENERATED_BOUND = 0.22, 0.015, 0.68
GENERATED_BOUNDS = {"mlp": 0.8, "resnet18": 0.55, "encoder": 0.6, "lstm": 0.55, "chain": 1.25, "unet_small": 0.6}
BOUNDS_US = {"digits": 60.0, "silero_vad_v6": 130.0, "silero_vad_ifless": 130.0}
NAMED = (*BOUNDS_US, "gtcrn_simple", "mjx_apollo_policy", "mlagents_hybrid_v2")
_EXAMPLES = Path(__file__).parents[2] / "examples"
_BURST = 10
_LIMIT_S, _WARM_S, _WARM_RUNS = 0.6, 1.0, 8  # for each contender and model; our runs until all is prepared

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a run of a model takes, at the median, by us and by onnxruntime."""

    name: str
    own_ms: float
    other_ms: float

    @property
    def ratio(self) -> float:
        """Onnxruntime's time over ours: 1 is as fast."""
        return self.other_ms / self.own_ms


def measure_suite(folder: Path | None, generated: Sequence[str], repeats: int) -> list[Figures]:
    """Measure all models in one process, runs of the two by turns, and count what was left out.

    Args:
        folder: Models with inputs, and their ``manifest.json``; None: there is none.
        generated: Names of generated models.
        repeats: Runs of each contender and model.
    """
    load = os.getloadavg()[0]
    failed = Figures("Models left out", ("model", "why"))
    digits = np.load(_EXAMPLES / "data" / "digits.npz")["images"][:1].astype(np.float32).reshape(1, 1, 8, 8)
    own = _measure("digits", _EXAMPLES / "models" / "digits.onnx", lambda: {"image": digits}, repeats, failed)
    suite = []
    for name, model in {} if folder is None else json.loads((folder / "manifest.json").read_text()).items():
        assert folder is not None
        file, case = folder / model["file"], folder / model["cases"][0]
        suite += _measure(name, file, lambda case=case: _read_case(case), repeats, failed)  # type: ignore[misc]
    benches = [MODELS[name]() for name in generated]
    made = [
        pace
        for bench in benches
        for pace in _measure(bench.name, bench.data, lambda bench=bench: bench.inputs, repeats, failed)  # type: ignore[misc]
    ]
    bands = _show_bands(suite)
    tables = [bands, _show_slowest(suite), _show_named([*own, *suite]), _show_generated(made)]
    if folder is None:
        bands.notes.append("Not measured: GPUEXEC_MODELS names no folder of models.")
    bands.notes.append(
        f"p50 of up to {repeats} runs in turns of {_BURST}, at most {_LIMIT_S} s each; onnxruntime takes {THREADS}"
        f" threads of {os.cpu_count()} cores; load average {load:.2f} before and {os.getloadavg()[0]:.2f} after."
    )
    if failed.rows:
        bands.notes.append(f"FAILED: {', '.join(row[0] for row in failed.rows)}; see below.")
        tables.append(failed)
    return tables


def _measure(
    name: str, model: Path | bytes, read: Callable[[], Mapping[str, Array]], repeats: int, failed: Figures
) -> list[Pace]:
    """Return the pace of a model, and close its Worker and session; none, and a row of ``failed``, if it fails."""
    try:
        inputs = dict(read())
        run = open_onnxruntime(str(model) if isinstance(model, Path) else model, THREADS)
        with gx.Worker(model, backend=gx.BackendType.CPU, seed=0) as worker:
            run(inputs)
            end = time.perf_counter() + _WARM_S
            for _ in range(_WARM_RUNS):
                worker.run(inputs)
                if time.perf_counter() > end:
                    break
            contenders: dict[str, Callable[[], object]] = {
                "own": lambda: worker.run(inputs),
                "other": lambda: run(inputs),
            }
            samples = interleave(contenders, repeats, _LIMIT_S, _BURST)
    except Exception as error:
        failed.add(name, f"{type(error).__name__}: {' '.join(str(error).split())}")
        return []
    finally:
        run = inputs = None  # type: ignore[assignment]
        gc.collect()
    own_ms, other_ms = (percentile(samples[contender], 0.5) for contender in ("own", "other"))
    return [Pace(name, own_ms, other_ms)]


def _read_case(file: Path) -> dict[str, Array]:
    """Return the inputs of a case by name."""
    with np.load(file) as case:
        return {str(name): case[f"in_{number}"] for number, name in enumerate(case["input_names"])}


def _show_bands(paces: Sequence[Pace]) -> Figures:
    columns = ("onnxruntime's time", "models", "ort / gx", "bound", "least", "bound of each", "which")
    figures = Figures(f"CPU beside onnxruntime with {THREADS} threads: geometric means of its time over ours", columns)
    below = 0.0
    for end in BANDS_MS:
        band = [pace for pace in paces if below <= pace.other_ms < end]
        title = f"from {below:g} ms" if end == inf else f"{below:g} to {end:g} ms"
        _add_band(figures, title, band, None)
        below = end
    _add_band(figures, "all", paces, ALL_BOUND)
    return figures


def _add_band(figures: Figures, title: str, paces: Sequence[Pace], bound: float | None) -> None:
    if not paces:
        figures.add(title, 0, None, bound, None, LEAST_BOUND, "")
        return
    least = min(paces, key=lambda pace: pace.ratio)
    mean = geometric_mean([pace.ratio for pace in paces])
    figures.add(title, len(paces), mean, bound, least.ratio, LEAST_BOUND, least.name)


def _show_slowest(paces: Sequence[Pace]) -> Figures:
    figures = Figures(f"The {SHOWN} furthest behind onnxruntime (ms)", ("model", "gpuexec", "onnxruntime", "ort / gx"))
    for pace in sorted(paces, key=lambda pace: pace.ratio)[:SHOWN]:
        figures.add(pace.name, pace.own_ms, pace.other_ms, pace.ratio)
    return figures


def _show_named(paces: Sequence[Pace]) -> Figures:
    figures = Figures("Small models (us)", ("model", "gpuexec", "bound", "onnxruntime", "ort / gx"))
    for pace in paces:
        if pace.name in NAMED:
            figures.add(pace.name, 1e3 * pace.own_ms, BOUNDS_US.get(pace.name), 1e3 * pace.other_ms, pace.ratio)
    return figures


def _show_generated(paces: Sequence[Pace]) -> Figures:
    figures = Figures("Generated models (ms)", ("model", "gpuexec", "onnxruntime", "ort / gx", "bound"))
    for pace in paces:
        figures.add(pace.name, pace.own_ms, pace.other_ms, pace.ratio, GENERATED_BOUNDS[pace.name])
    if paces:
        figures.add("geometric mean", None, None, geometric_mean([pace.ratio for pace in paces]), GENERATED_BOUND)
    return figures
