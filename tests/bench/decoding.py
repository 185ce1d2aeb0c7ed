"""Benchmark of decoding with a growing cache, whose every step has new shapes: host time on the tracer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from tests.bench.host_time import open_tracer
from tests.bench.measure import percentile
from tests.bench.tables import Figures, beside

MODEL, CASE = "arch/gpt2_kv__d21.onnx", "arch/gpt2_kv__d21.case0.npz"
TOKENS, FIRST_PAST, BOUND_MS = 64, 19, 5.0
DECLARED = {"past": (0, 128), "total": (1, 129)}
_COLUMNS = (
    "declared",
    "cache fed as",
    "first step",
    "step p50",
    "step p99",
    "CPU p50",
    "bound",
    "",
    "plans",
    "bound ",
    " ",
    "sizes",
)


def measure_decoding(folder: Path | None) -> list[Figures]:
    """Measure 64 steps of gpt2_kv__d21, from 19 tokens in the cache to 82."""
    figures = Figures(f"Host time of decoding {TOKENS} tokens on the tracer, per step (ms)", _COLUMNS)
    if folder is None or not (folder / MODEL).exists():
        figures.notes.append("Not measured: GPUEXEC_MODELS names no folder with " + MODEL + ".")
        return [figures]
    with np.load(folder / CASE) as case:
        given = {str(name): case[f"in_{i}"] for i, name in enumerate(case["input_names"])}
    for declared, max_plans in (({}, 5), (DECLARED, 1)):
        for way in ("tensors", "arrays"):
            _measure_way(figures, folder / MODEL, declared, given, way, max_plans)
    figures.notes.append(
        "`schedule` alone. Tensors: the outputs of the step before, on the device; arrays: the same read back. "
        "CPU: what the calling thread spent on a core, which others hardly disturb."
    )
    return [figures]


def _measure_way(
    figures: Figures,
    path: Path,
    declared: Mapping[str, tuple[int, int]],
    given: Mapping[str, Any],
    way: str,
    max_plans: int,
) -> None:
    with gx.Worker(gx.load(path, dims=declared), backend=open_tracer()) as worker:
        steps = decode(worker, given, way == "tensors")
        report = worker.report()
    times, busy = ([step[i] for step in steps] for i in range(2))
    p50 = percentile(times[1:], 0.5)
    figures.add(
        ", ".join(f"{name} {low}-{high}" for name, (low, high) in declared.items()) or "nothing",
        way,
        times[0],
        p50,
        percentile(times[1:], 0.99),
        percentile(busy[1:], 0.5),
        BOUND_MS,
        beside(p50, BOUND_MS),
        report.plans,
        max_plans,
        beside(report.plans, max_plans),
        report.variants,
    )


def decode(worker: gx.Worker, given: Mapping[str, Any], as_tensors: bool) -> list[tuple[float, float]]:
    """Return milliseconds of `schedule` for each token: by the clock, and of this thread on a core."""
    inputs = dict(given)
    times = []
    for step in range(TOKENS):
        past = FIRST_PAST + step
        inputs["attention_mask"] = np.ones((1, past + 1), np.int64)
        inputs["position_ids"] = np.full((1, 1), past, np.int64)
        start, busy = time.perf_counter(), time.thread_time()
        run = worker.schedule(inputs)
        times.append(((time.perf_counter() - start) * 1e3, (time.thread_time() - busy) * 1e3))
        for name, output in run.outputs.items():
            if name.startswith("present"):
                cache = output if as_tensors else output.readback_and_clone()
                inputs[name.replace("present", "past_key_values")] = cache
    return times
