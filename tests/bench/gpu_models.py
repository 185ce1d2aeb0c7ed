"""Benchmark of models on a GPU: time from the file to the first answer, and of later runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.device import Stream
from gpuexec.errors import GpuexecError
from tests.bench.cpu_models import open_onnxruntime
from tests.bench.measure import percentile, repeat_ms, time_ms
from tests.bench.models import BenchModel
from tests.bench.tables import Figures
from tests.bench.torch_models import open_torch
from tests.system.models.folder import TRAINED

COLUMNS = (
    "model",
    "commands",
    "load",
    "plan",
    "compile",
    "first run",
    "to done p50",
    "to NumPy p50",
    "p99",
    "device",
    "host p50",
    "torch",
    "ort CPU",
    "max error",
)
_IN_A_ROW, _MAX_ORT_RUNS = 20, 10


def find_models(
    made: Mapping[str, Callable[[], BenchModel]], folder: Path | None, names: Sequence[str] | None
) -> Iterator[BenchModel]:
    """Yield the generated models, and the trained ones of a folder, by name where names are given."""
    for name, make in made.items():
        if names is None or name in names:
            yield make()
    manifest = {} if folder is None else json.loads((folder / "manifest.json").read_text())
    for name in TRAINED if names is None else names:
        if folder is not None and name in manifest:
            with np.load(folder / manifest[name]["cases"][0]) as case:
                inputs = {str(key): case[f"in_{i}"] for i, key in enumerate(case["input_names"])}
            yield BenchModel(name, (folder / manifest[name]["file"]).read_bytes(), inputs)


def measure_models(backend: Backend, models: Iterator[BenchModel], repeats: int) -> list[Figures]:
    """Measure each model; one that fails is a row that says why."""
    figures = Figures(f"Models on {backend.device.name} (ms)", COLUMNS)
    by_torch = open_torch() if isinstance(backend.device, CudaDevice) else {}
    for bench in models:
        try:
            _measure_model(figures, backend, bench, repeats, by_torch)
        except GpuexecError as error:
            figures.notes.append(f"{bench.name} failed: {error}")
    figures.notes += [
        f"p50 of {repeats} runs of NumPy inputs, uploads included. To done: schedule until the run's event is done.",
        f"device: a run's share of {_IN_A_ROW} in a row between two events; the host's time where that is longer.",
        "host: schedule alone, the device idle. compile: into an empty cache, without the kernels of earlier rows.",
        "torch: eager on the same GPU, float32 without TF32, inputs on the device, until done; models written for it."
        if by_torch
        else "torch: not measured, it is not installed or has no GPU.",
    ]
    return [figures]


def _measure_model(
    figures: Figures, backend: Backend, bench: BenchModel, repeats: int, by_torch: Mapping[str, Callable[[], Any]]
) -> None:
    inputs, kept = bench.inputs, {}
    load_ms = time_ms(lambda: kept.update(model=gx.load(bench.data)))
    stream = backend.device.create_stream()
    with gx.Worker(kept["model"], backend=backend, stream=stream) as worker:
        plan = worker.prepare(inputs)
        report = worker.report()
        answers: list[Any] = []
        first_ms = time_ms(lambda: answers.append(worker.run(inputs)))
        done = repeat_ms(lambda: worker.schedule(inputs).wait(), repeats)
        whole = repeat_ms(lambda: worker.run(inputs), repeats)
        host = []
        for _ in range(repeats):
            host.append(time_ms(lambda: worker.schedule(inputs)))
            worker.wait_for_completion()
        device_ms = _time_in_a_row(backend, worker, stream)
    first = answers[0][0]
    ort_ms, error = _compare(bench, first, repeats)
    torch_ms = _time_torch(by_torch[bench.name](), repeats) if bench.name in by_torch else None
    commands = len(plan.segment.commands)
    figures.add(
        bench.name,
        commands,
        load_ms,
        report.plan_ms,
        report.compile_ms,
        first_ms,
        percentile(done, 0.5),
        percentile(whole, 0.5),
        percentile(whole, 0.99),
        device_ms,
        percentile(host, 0.5),
        torch_ms,
        ort_ms,
        f"{error:.1e}",
    )


def _time_in_a_row(backend: Backend, worker: gx.Worker, stream: Stream) -> float:
    """Return milliseconds of a run by the device's own clock."""
    first, last = backend.device.create_timed_event(), backend.device.create_timed_event()
    worker.schedule().wait()
    stream.record(first)
    for _ in range(_IN_A_ROW):
        worker.schedule()
    stream.record(last)
    last.synchronize()
    return last.elapsed_ms(first) / _IN_A_ROW


def _time_torch(call: Callable[[], Any], repeats: int) -> float:
    import torch

    def run() -> None:
        call()
        torch.cuda.synchronize()

    repeat_ms(run, 10)
    return percentile(repeat_ms(run, repeats), 0.5)


def _compare(bench: BenchModel, found: Any, repeats: int) -> tuple[float, float]:
    """Return p50 of onnxruntime on all cores, and how far the first output is from its."""
    session = open_onnxruntime(bench.data, 0)
    expected = session(bench.inputs)[0]
    p50 = percentile(repeat_ms(lambda: session(bench.inputs), min(repeats, _MAX_ORT_RUNS)), 0.5)
    difference = np.abs(np.asarray(found, np.float64) - np.asarray(expected, np.float64))
    return p50, float(difference.max(initial=0.0))
