"""Benchmark of generated models on the CPU, against onnxruntime and onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import gpuexec as gx
from tests.bench.measure import interleave, percentile, time_ms
from tests.bench.models import MODELS, BenchModel
from tests.bench.tables import Figures

COLUMNS = (
    "model",
    "load",
    "plan",
    "first run",
    "p50",
    "bound",
    "ort 2 thr",
    "ort 1 thr",
    "reference",
    "gx / ort 2",
    "gx / ort 1",
    "ref / gx",
    "max error",
)
# p50 in milliseconds on two quiet cores. Of mlp and chain only the ratio to onnxruntime says something.
BOUNDS_MS = {"resnet18": 150.0, "encoder": 30.0, "lstm": 60.0, "unet_small": 150.0}
_LIMIT_S = 3.0  # for each contender and model


def measure_models(names: Sequence[str], repeats: int) -> list[Figures]:
    """Measure load, plan, first run and p50 of models, with the same runs by other engines in between."""
    figures = Figures("Models on the CPU (ms)", COLUMNS)
    for name in names:
        _measure_model(figures, MODELS[name](), repeats)
    figures.notes.append(
        f"p50 of up to {repeats} runs in turns of three; each gets {_LIMIT_S:.0f} s a model. NumPy in, NumPy out."
    )
    return [figures]


def open_onnxruntime(
    model: bytes | str, threads: int, weights: Mapping[str, Any] | None = None
) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function that runs a model, or the file of one, by onnxruntime, fully optimised.

    ``weights`` are those beside the bytes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if weights:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
        options.add_external_initializers(list(weights), values)
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(None, inputs)


def open_reference(data: bytes) -> Callable[[dict[str, Any]], list[Any]]:
    """Return a function that runs a model by onnx's reference evaluator."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_from_string(data))
    return lambda inputs: list(evaluator.run(None, inputs))


def _measure_model(figures: Figures, bench: BenchModel, repeats: int) -> None:
    inputs, kept = bench.inputs, {}

    def load() -> None:
        kept["worker"] = gx.Worker(gx.load(bench.data), backend=gx.BackendType.CPU)

    load_ms = time_ms(load)
    with kept["worker"] as worker:
        plan_ms = time_ms(lambda: worker.prepare(inputs))
        first_ms = time_ms(lambda: worker.run(inputs))
        by_two, by_one = open_onnxruntime(bench.data, 2), open_onnxruntime(bench.data, 1)
        by_reference = open_reference(bench.data)
        contenders: dict[str, Callable[[], Any]] = {
            "gpuexec": lambda: worker.run(inputs),
            "ort 2": lambda: by_two(inputs),
            "ort 1": lambda: by_one(inputs),
            "reference": lambda: by_reference(inputs),
        }
        results = {name: contender() for name, contender in contenders.items()}
        samples = interleave(contenders, repeats, _LIMIT_S)
    p50 = {name: percentile(taken, 0.5) for name, taken in samples.items()}
    ours = p50["gpuexec"]
    error = float(np.abs(np.asarray(results["gpuexec"]) - results["ort 1"][0]).max())
    figures.add(
        bench.name,
        load_ms,
        plan_ms,
        first_ms,
        ours,
        BOUNDS_MS.get(bench.name),
        p50["ort 2"],
        p50["ort 1"],
        p50["reference"],
        ours / p50["ort 2"],
        ours / p50["ort 1"],
        p50["reference"] / ours,
        f"{error:.1e}",
    )
