"""Benchmark of models on a GPU beside PyTorch: time from the file to the first answer, and of later runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.errors import GpuexecError
from gpuexec.ir.precision import STRICT, TF32
from tests.bench.cpu_models import open_onnxruntime
from tests.bench.gpu_contenders import (
    COMPILED,
    EAGER,
    GRAPH,
    MAX_ERRORS,
    OURS,
    Budget,
    Contender,
    Turns,
    compare,
    open_torch_contenders,
    open_worker,
    take_turns,
)
from tests.bench.gpu_prediction import Predicted, predict
from tests.bench.measure import percentile, repeat_ms, time_ms
from tests.bench.models import Array, BenchModel
from tests.bench.tables import Figures
from tests.system.models.folder import TRAINED

START_COLUMNS = ("model", "commands", "load", "plan", "compile", "first run", "to NumPy p50", "host p50", "p99")
COLUMNS = (
    "model",
    "by",
    "latency p50",
    "p10",
    "p90",
    "in a row p50",
    "row p10",
    "row p90",
    "of ours",
    "predicted",
    "at least",
    "max error",
)
SUMMARY_COLUMNS = ("model", OURS, "predicted", EAGER, GRAPH, COMPILED, "fastest other / ours")
_RUNS = "runs by each contender (ms)"
_PRECISIONS = {
    STRICT: "float32 without TF32",
    TF32: "float32 with TF32",
    "fp16": "fp16: gpuexec's products and convolutions, and all of PyTorch's",
    "bf16": "bf16: gpuexec's products and convolutions, and all of PyTorch's",
}


def measure_model(
    backend: Backend, make: Callable[[], BenchModel], turns: Turns, budget: Budget, without: Collection[str] = ()
) -> list[Figures]:
    """Measure a model in every way there is, first whether they give the same.

    Args:
        backend: The GPU, or what stands for it.
        make: Makes the model.
        turns: Of each contender.
        budget: Seconds to use; one that fails is a note.
        without: Contenders that are left out.
    """
    bench = make()
    start = Figures(f"{bench.name} on {backend.device.name}: from the file to the first answer (ms)", START_COLUMNS)
    runs = Figures(f"{bench.name} on {backend.device.name}: {_RUNS}", COLUMNS)
    try:
        _measure(start, runs, backend, bench, turns, budget, without)
    except GpuexecError as error:
        runs.notes.append(f"{bench.name} failed: {error}")
    return [start, runs]


def _measure(
    start: Figures,
    runs: Figures,
    backend: Backend,
    bench: BenchModel,
    turns: Turns,
    budget: Budget,
    without: Collection[str],
) -> None:
    kept: dict[str, gx.Model] = {}
    load_ms = time_ms(lambda: kept.update(model=bench.load()))
    with gx.Worker(kept["model"], backend=backend, stream=backend.device.create_stream()) as worker:
        ours = open_worker(worker, bench)
        plan = worker.prepare(bench.feeds)
        report = worker.report()
        answers: list[Array] = []
        first_ms = time_ms(lambda: answers.append(ours.read()))
        whole, host = _time_host(worker, ours, bench, turns)
        start.add(
            bench.name,
            None if plan is None else len(plan.segment.commands),
            load_ms,
            report.plan_ms,
            report.compile_ms,
            first_ms,
            percentile(whole, 0.5),
            percentile(host, 0.5),
            percentile(host, 0.99),
        )
        start.notes.append(
            "compile: into an empty cache, without the kernels of parts before. To NumPy: inputs and output on the "
            "host. host: schedule alone, inputs on the device, which is idle."
        )
        contenders = [ours, *open_torch_contenders(bench, budget, runs.notes, without)]
        try:
            predicted = predict(bench.plan(backend.device.target))
        except ValueError as error:
            predicted = None
            runs.notes.append(f"Not predicted: {error}")
        _compare_in_turns(runs, bench, contenders, answers[0], turns, budget, predicted)


def _time_host(worker: gx.Worker, ours: Contender, bench: BenchModel, turns: Turns) -> tuple[list[float], list[float]]:
    """Return times of runs from NumPy to NumPy, and of `schedule` alone."""
    whole, host = [], []
    for _ in range(turns.count):
        ours.reset()
        whole += repeat_ms(lambda: worker.run(bench.feeds), turns.latencies)
        ours.reset()
        for _ in range(turns.latencies):
            host.append(time_ms(worker.schedule))
            worker.wait_for_completion()
    return whole, host


def _compare_in_turns(
    runs: Figures,
    bench: BenchModel,
    contenders: list[Contender],
    first: Array,
    turns: Turns,
    budget: Budget,
    predicted: Predicted | None,
) -> None:
    outputs = {contender.name: contender.read() for contender in contenders} | {OURS: first}
    if EAGER in outputs:
        expected, by = outputs[EAGER], EAGER
    else:
        expected, by = open_onnxruntime(bench.data, 0, bench.weights)(bench.inputs)[0], "onnxruntime on the CPU"
    errors = {name: compare(output, expected) for name, output in outputs.items()}
    same = [contender for contender in contenders if errors[contender.name] <= MAX_ERRORS[bench.precision]]
    samples = take_turns(same, turns, budget)
    ours = samples.get(OURS)
    for contender in contenders:
        cells: tuple[Any, ...] = (None,) * 7
        if (taken := samples.get(contender.name)) is not None:
            spread = taken.spread()
            cells = (*spread, None if ours is None else spread[3] / ours.spread()[3])
        expects: tuple[float | None, float | None] = (None, None)
        if contender.name == OURS and predicted is not None:
            expects = (predicted.whole_us / 1e3, predicted.floor_us / 1e3)
        runs.add(bench.name, contender.name, *cells, *expects, f"{errors[contender.name]:.1e}")
    runs.notes += [
        f"{name}: DIFFERS from {by} by {error:.1e} of the largest output, so it was not timed."
        for name, error in errors.items()
        if not error <= MAX_ERRORS[bench.precision]
    ]
    count = max((len(each.in_a_row) for each in samples.values()), default=0)
    runs.notes += [
        f"{_PRECISIONS[bench.precision]}, inputs on the GPU. {count} turns each, interleaved: {turns.latencies} runs "
        f"each waited for, then {turns.in_a_row} in a row, which count once. of ours: in a row, over gpuexec's.",
        f"max error: over the largest output, against {by}.",
    ]


def summarise(tables: Sequence[dict[str, Any]]) -> Figures:
    """Return the times of runs in a row of all models, one row each, from tables as JSON."""
    figures = Figures("Models: one of many runs in a row, p50 (ms)", SUMMARY_COLUMNS)
    for table in tables:
        if table["title"].endswith(_RUNS) and table["rows"]:
            by = {row["by"]: row for row in table["rows"]}
            times = {name: row["in a row p50"] for name, row in by.items()}
            others = [taken for name, taken in times.items() if name != OURS and taken is not None]
            ours = times.get(OURS)
            ratio = min(others) / ours if others and ours else None
            predicted = by[OURS]["predicted"] if OURS in by else None
            cells = (ours, predicted, *(times.get(name) for name in (EAGER, GRAPH, COMPILED)), ratio)
            figures.add(table["rows"][0]["model"], *cells)
    return figures


def find_trained(folder: Path | None) -> dict[str, Callable[[], BenchModel]]:
    """Return makers of the trained models of a folder, by name."""
    if folder is None:
        return {}
    manifest = json.loads((folder / "manifest.json").read_text())
    return {name: partial(_read_trained, folder, name, manifest[name]) for name in TRAINED if name in manifest}


def _read_trained(folder: Path, name: str, entry: dict[str, Any]) -> BenchModel:
    with np.load(folder / entry["cases"][0]) as case:
        inputs = {str(key): case[f"in_{i}"] for i, key in enumerate(case["input_names"])}
    return BenchModel(name, (folder / entry["file"]).read_bytes(), inputs)
