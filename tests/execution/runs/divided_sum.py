"""An operator whose kernel and whose order of sums depend on the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import helper

import gpuexec as gx
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.model.small_models import DOMAIN, make_model

Array = np.ndarray[Any, Any]
KERNELS = [Kernel(f"{__name__}:divided_sum.cu", f"divided_sum<{tag}>") for tag in range(2)]
for _kernel in KERNELS:
    instantiate(_kernel.source, [_kernel.expression])
COLUMNS = 1000


@operator("DividedSum", DOMAIN)
@dataclass(frozen=True, slots=True)
class DividedSum(Operator):
    """Sums of rows, by another kernel from ``many`` rows on, and in more parts the fewer rows there are."""

    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    many: int = 8

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape[:1]),)

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        return (x.sum(1, dtype=np.float64).astype(x.dtype),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        assert inputs[0] is not None and outputs[0] is not None
        x = emit.contiguous(inputs[0])
        rows, columns = x.shape
        kernel = KERNELS[emit.choose(int(rows >= self.many))]
        parts = emit.divide(max(1, 64 // max(rows, 1)))
        scratch = emit.temp((rows, 64), x.dtype)
        emit.fill(scratch, 0)
        sizes = [np.int64(size) for size in (rows, columns, parts)]
        emit.launch(kernel, (-(-rows // 32), 1, 1), (32, 1, 1), [x, outputs[0], *sizes], writes=[1])


def summing(dims: Any = None, many: int = 8) -> gx.Model:
    """Return ``y = DividedSum(w * x)`` over ``x [rows, 1000]`` and a weight ``w [1000]`` of ones."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"], name="weigh"),
        helper.make_node("DividedSum", ["a"], ["y"], name="sum", domain=DOMAIN, many=many),
    ]
    model = make_model(nodes, {"x": ("rows", COLUMNS)}, {"y": ("rows",)}, w=np.ones(COLUMNS, np.float32))
    return model if dims is None else model.bind(dims)


def remembering(capacity: int) -> gx.Model:
    """Return a model that sums the rows of x as `summing` does, and appends them to a memory of that capacity."""
    nodes = [
        helper.make_node("DividedSum", ["x"], ["y"], name="sum", domain=DOMAIN),
        helper.make_node("Concat", ["past", "x"], ["present"], name="join", axis=0),
    ]
    inputs = {"x": ("rows", COLUMNS), "past": ("past", COLUMNS)}
    model = make_model(nodes, inputs, {"y": ("rows",), "present": ("all", COLUMNS)})
    return model.bind_state({"present": "past"}, capacity=capacity)


def draw(rows: int) -> Array:
    """Return rows whose first is always the same, of numbers whose sum depends on its order."""
    return np.random.default_rng(0).random((rows, COLUMNS), np.float32) * 1000


def names(worker: gx.Worker) -> list[tuple[str, int]]:
    """Return the kernel of each plan, newest first, and the rows it was laid out for."""
    return [(plan.kernels()[-1].expression, plan.inputs[0].spec.shape[0]) for plan in worker.plans]
