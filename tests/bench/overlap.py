"""Benchmark of overlap: two independent commands side by side on the CPU device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ir.operator import Array, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.bench.measure import percentile, repeat_ms
from tests.bench.tables import Figures, beside

COMMAND_MS, BOUND_MS = 50.0, 75.0
_SIZE = 1 << 18  # bytes enough to be worth a thread from the first run on
_SOURCE = np.ones(1 << 16, np.float32)
# What the operator does, by the name of its attribute; filled in when measured.
WORK: dict[str, Callable[[], object]] = {}


@operator("Occupy", "bench")
@dataclass(frozen=True, slots=True)
class Occupy(Operator):
    """Pass the input on after 50 ms of work without the interpreter's lock."""

    work: str
    branch: int = 0  # tells apart what would be merged as equal
    tolerance = Tolerance.EXACT

    def infer(self, *inputs: Any) -> tuple[TensorSpec, ...]:
        """Return the input's spec."""
        return (inputs[0].with_shape(inputs[0].shape),)

    def compute(self, *inputs: Any, out: Any = None) -> tuple[Array | None, ...]:
        """Work, then return the input."""
        WORK[self.work]()
        return (inputs[0],)


def measure_overlap(repeats: int) -> list[Figures]:
    """Measure one command of 50 ms, and two that nothing orders."""
    figures = Figures("Two unordered commands of 50 ms on the CPU device (ms)", ("work", "one", "two", "bound", ""))
    WORK["sleep"] = lambda: time.sleep(COMMAND_MS / 1e3)
    WORK["NumPy"] = _calibrate()
    x = np.ones(_SIZE, np.float32)
    for work in WORK:
        times = []
        for branches in (1, 2):
            with gx.Worker(gx.load(make_model(work, branches)), backend=gx.BackendType.CPU) as worker:
                worker.run(x)
                times.append(percentile(repeat_ms(lambda: worker.run(x), repeats), 0.5))
        figures.add(work, *times, BOUND_MS, beside(times[1], BOUND_MS))
    figures.notes.append(f"p50 of {repeats} runs. A sleep needs no core; NumPy's work needs one each.")
    return [figures]


def _calibrate() -> Callable[[], object]:
    """Return work of a fixed amount that takes 50 ms on a core of its own."""
    out = np.empty_like(_SOURCE)
    best = min(repeat_ms(lambda: np.sqrt(_SOURCE, out=out), 200))
    count = max(1, round(COMMAND_MS / best))

    def work() -> None:
        own = np.empty_like(_SOURCE)
        for _ in range(count):
            np.sqrt(_SOURCE, out=own)

    return work


def make_model(work: str, branches: int) -> bytes:
    """Return a model of one or two branches that nothing orders."""
    names = [f"y{branch}" for branch in range(branches)]
    nodes = [
        helper.make_node("Occupy", ["x"], [name], name=name, domain="bench", work=work, branch=branch)
        for branch, name in enumerate(names)
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [_SIZE]) for name in ("x", *names)]
    graph = helper.make_graph(nodes, work, info[:1], info[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("bench", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())
