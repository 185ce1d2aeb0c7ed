"""Predictions of the benchmark models for GPUs that are not there: by target and precision, from the plans alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from onnx import TensorProto, helper

from gpuexec.devices.dependent_launch import find_waiting
from gpuexec.ir.precision import STRICT, TF32
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ir.target import Target
from gpuexec.planner.prediction import PlanPrediction, predict_plan
from tests.bench.architectures import ARCHITECTURES
from tests.bench.decoders import make_llama
from tests.bench.models import BenchModel
from tests.bench.tables import Figures

TARGETS = ("sm_90", "sm_89", "sm_80")
PRECISIONS = (STRICT, TF32, "fp16")
_SHOWN = 4  # kernels of a row
_COLUMNS = (
    "model",
    "target",
    "precision",
    "launches",
    "transposes",
    "predicted us",
    "floor us",
    "MB moved",
    "of peak",
    "kernels that take longest (us)",
)


def make_product(extent: int) -> BenchModel:
    """Return a product of two square matrices of bf16."""
    shape = [extent, extent]
    values = [helper.make_tensor_value_info(name, TensorProto.BFLOAT16, shape) for name in "aby"]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", values[:2], values[2:])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10).SerializeToString()
    return BenchModel(f"product_{extent}_bf16", data, {name: np.zeros(shape, BFLOAT16) for name in "ab"})


# By name, with the precisions that each is predicted in.
MODELS: Mapping[str, tuple[Callable[[], BenchModel], Sequence[str]]] = {
    **{name: (partial(make, has_weights=False), PRECISIONS) for name, make in ARCHITECTURES.items()},
    "llama_1b_int4_decode": (partial(make_llama, bits=4, has_weights=False), (STRICT, "fp16")),
    **{f"product_{extent}_bf16": (partial(make_product, extent), (STRICT,)) for extent in (4096, 8192)},
}


def measure_predictions() -> list[Figures]:
    """Plan each model for each target, in each precision, and predict the plan."""
    figures = Figures("Predicted of plans, without a GPU", _COLUMNS)
    for name, (make, precisions) in MODELS.items():
        bench = make()
        for target in map(Target.named, TARGETS):
            for precision in precisions:
                plan = replace(bench, precision=precision).plan(target)
                found = predict_plan(plan, waits=find_waiting(target))
                figures.add(
                    name, target.name, precision, found.launches, found.transposes, found.predicted_us, found.floor_us,
                    found.moved_nbytes / 1e6, _find_share(found), _list_hottest(found),
                )  # fmt: skip
    figures.notes.append("Of peak: operations beside those of the fastest unit that a command uses, all the time.")
    return [figures]


def _find_share(found: PlanPrediction) -> float:
    gpu = found.gpu
    rate = gpu.matrix_rate if any(row.bounds.tensor for row in found.commands) else gpu.float_rate
    return found.flops / (found.predicted_us * 1e-6) / rate


def _list_hottest(found: PlanPrediction) -> str:
    times: Counter[str] = Counter()
    for row in found.commands:
        times[row.kernel.partition(":")[2].partition("<")[0] or row.kernel] += row.predicted_us  # type: ignore[assignment]
    return ", ".join(f"{kernel} {time:.0f}" for kernel, time in times.most_common(_SHOWN))
