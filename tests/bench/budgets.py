"""Benchmark of budgeted steps on the CPU device: their time beside the budget, with one very slow layer."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, helper

import gpuexec as gx
from tests.bench.measure import percentile
from tests.bench.tables import Figures, beside

LAYERS, SLOW_AT = 40, 17
SIDE = 1024
# Budgets, in layers.
BUDGETS = (2.0, 4.0, 8.0, 16.0)
_COLUMNS = ("budget", "ms", "steps", "layers in a step", "longest step p50", "bound", "", "step of the slow layer p50")


def measure_budgets(repeats: int) -> list[Figures]:
    """Measure the steps of 39 Neg and a Pow, over 4 MiB, for several budgets."""
    figures = Figures(f"Steps of {LAYERS} layers with a budget, on the CPU device (ms)", _COLUMNS)
    x = np.random.default_rng(1).uniform(1, 2, (SIDE, SIDE)).astype(np.float32)
    layers = gx.load(make_model(), disabled_passes=["fuse_regions"])
    with gx.Worker(layers, backend=gx.BackendType.CPU) as worker:
        layer_ms, slow_ms = _measure_layers(worker, x, repeats)
        for layers in BUDGETS:
            budget_ms = layers * layer_ms
            _time_steps(worker, x, budget_ms)
            runs = [_time_steps(worker, x, budget_ms) for _ in range(repeats)]
            usual = [max(ms for nodes, ms in run if "slow" not in nodes) for run in runs]
            slow = [ms for run in runs for nodes, ms in run if "slow" in nodes]
            counts = sorted(len(nodes) for nodes, _ in runs[-1])
            longest, bound = percentile(usual, 0.5), budget_ms + layer_ms
            span = f"{counts[0]} to {counts[-1]}"
            figures.add(
                f"{layers:g} layers",
                budget_ms,
                len(counts),
                span,
                longest,
                bound,
                beside(longest, bound),
                percentile(slow, 0.5),
            )
    figures.notes.append(
        f"{repeats} runs. A layer takes {layer_ms:.3g} ms, the slow one {slow_ms:.3g}, by steps of one layer each. A"
        " step is timed from its issue to its end, which the host waits for; longest: without the slow layer's."
    )
    return [figures]


def make_model() -> bytes:
    """Return a chain of Neg with one Pow in it."""
    names = ["x", *(f"v{i}" for i in range(LAYERS - 1)), "y"]
    nodes = [
        helper.make_node("Pow", [names[i], "power"], [names[i + 1]], name="slow")
        if i == SLOW_AT
        else helper.make_node("Neg", [names[i]], [names[i + 1]], name=f"layer{i}")
        for i in range(LAYERS)
    ]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (SIDE, SIDE)) for name in ("x", "y")]
    power = helper.make_tensor("power", TensorProto.FLOAT, (), [2.2])
    graph = helper.make_graph(nodes, "budgets", info[:1], info[1:], [power])
    model: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString()
    return model


def _measure_layers(worker: gx.Worker, x: np.ndarray, repeats: int) -> tuple[float, float]:  # type: ignore[type-arg]
    """Return the p50 of the usual layers, and of the slow one."""
    rows = [row for _ in range(repeats) for row in _time_steps(worker, x, 0.0)]
    usual = percentile([ms for nodes, ms in rows if "slow" not in nodes], 0.5)
    return usual, percentile([ms for nodes, ms in rows if "slow" in nodes], 0.5)


def _time_steps(worker: gx.Worker, x: np.ndarray, budget_ms: float) -> list[tuple[Sequence[str], float]]:  # type: ignore[type-arg]
    """Return the nodes of each step, and how long it took."""
    rows: list[tuple[Sequence[str], float]] = []
    steps = worker.schedule_iterable(x, budget_ms=budget_ms)
    while True:
        start = time.perf_counter()
        step = next(steps, None)
        worker.wait_for_completion()
        if step is None:
            return rows
        rows.append((step.nodes, (time.perf_counter() - start) * 1e3))
