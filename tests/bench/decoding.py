"""Benchmarks of decoding with a growing cache, whose every step has new shapes.

Host time on the tracer; and a whole step on the CPU, beside its products alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from tests.bench.decoders import make_gpt2
from tests.bench.host_time import open_tracer
from tests.bench.measure import percentile
from tests.bench.models import Array, BenchModel
from tests.bench.tables import Figures, beside

MODEL, CASE = "arch/gpt2_kv__d21.onnx", "arch/gpt2_kv__d21.case0.npz"
TOKENS, FIRST_PAST, BOUND_MS = 64, 19, 5.0
DECLARED = {"past": (0, 128), "total": (1, 129)}
# Of the steps on the CPU: what makes the model, how many, and how much a step may take beside its products.
MAKE, STEPS, FIRST_STEPS, STEP_BOUND_MS = make_gpt2, 40, 12, 1.0
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


def measure_step() -> list[Figures]:
    """Measure steps of GPT-2 on the CPU by turns with their products: weights, keys and values, nothing else."""
    columns = ("model", "past", "step min", "step p50", "products min", "products p50", "above p50", "bound", "")
    figures = Figures("A decoding step on the CPU beside its products (ms)", columns)
    bench = MAKE()
    with gx.Worker(bench.load(), backend="cpu") as worker:
        held = {memory.input for memory in worker.model.memories}
        worker.state.set({name: array for name, array in bench.inputs.items() if name in held})
        given = {name: array for name, array in bench.inputs.items() if name not in held}
        multiply = _list_products(bench)
        steps, products = [], []
        for number in range(FIRST_STEPS + STEPS):
            past = worker.state.length
            given["position_ids"] = np.full_like(given["position_ids"], past)
            start = time.perf_counter()
            worker.run(given)
            middle = time.perf_counter()
            multiply(past + 1)
            if number >= FIRST_STEPS:
                steps.append((middle - start) * 1e3)
                products.append((time.perf_counter() - middle) * 1e3)
    above = percentile([step - alone for step, alone in zip(steps, products, strict=True)], 0.5)
    times = [figure for each in (steps, products) for figure in (min(each), percentile(each, 0.5))]
    figures.add(bench.name, past, *times, above, STEP_BOUND_MS, beside(above, STEP_BOUND_MS))
    figures.notes.append(
        "`run`, the cache as state; above: p50 of the differences of a step and the products behind it."
    )
    return [figures]


def _list_products(bench: BenchModel) -> Callable[[int], None]:
    """Return what makes the products of a step of GPT-2 with so many keys, in their order, into arrays of its own."""
    weights, heads, random = bench.weights, bench.config["heads"], np.random.default_rng(0)
    width = weights["words"].shape[1]
    layers = [number for number in range(len(weights)) if f"layer.{number}.qkv.weight" in weights]
    shape = (1, heads, bench.capacity or 0, width // heads)
    caches = [[random.standard_normal(shape, np.float32) for _ in range(2)] for _ in layers]
    query = random.standard_normal((1, heads, 1, width // heads), np.float32)

    def draw(matrix: Array) -> tuple[Array, Array, Array]:
        return random.standard_normal((1, len(matrix)), np.float32), matrix, np.empty((1, matrix.shape[1]), np.float32)

    rows = [[draw(weights[f"layer.{n}.{part}.weight"]) for part in ("qkv", "out", "up", "down")] for n in layers]
    logits = draw(weights["words"].T)

    def multiply(keys: int) -> None:
        scores, mixed = np.empty((1, heads, 1, keys), np.float32), np.empty_like(query)
        for (first, *others), (key, value) in zip(rows, caches, strict=True):
            np.matmul(first[0], first[1], out=first[2])
            np.matmul(query, key[:, :, :keys].swapaxes(2, 3), out=scores)
            np.matmul(scores, value[:, :, :keys], out=mixed)
            for x, matrix, y in others:
                np.matmul(x, matrix, out=y)
        np.matmul(logits[0], logits[1], out=logits[2])

    return multiply
