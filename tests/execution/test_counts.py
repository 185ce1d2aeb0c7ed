"""Data-dependent sizes that change from run to run: right results, from few plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from tests.model.control_models import ControlModel
from tests.model.small_models import CPU

Array = np.ndarray[Any, Any]
RUNS = 100
SIDE = 136
BOXES = 300

NON_ZERO = "(float[n, m] x) => (int64[2, k] y, int64[k, 2] z) { y = NonZero (x) z = Transpose <perm = [1, 0]> (y) }"
COMPRESS = """(float[n, m] x) => (float[k, m] y, float[k] z) <float zero = {0}, int64[1] axis = {1}> {
  size = ReduceSum <keepdims = 0> (x, axis) c = Greater (size, zero)
  y = Compress <axis = 0> (x, c) z = ReduceMax <keepdims = 0> (y, axis)
}"""
UNIQUE = """(float[n, m] x) => (float[k] y, int64[l] back, int64[k] counts) <float ten = {10}> {
  scaled = Mul (x, ten) whole = Round (scaled) y, first, back, counts = Unique (whole)
}"""
TOP_K = """(float[n, m] x) => (float[k, m] y, int64[k, m] at) <float zero = {0}, int64[1] one = {1}> {
  is_more = Greater (x, zero) ones = Cast <to = 7> (is_more) rows = ReduceMax <keepdims = 1> (ones, one)
  every = ReduceSum <keepdims = 0> (rows) k = Reshape (every, one)
  y, at = TopK <axis = 0> (x, k)
}"""
SUPPRESSION = """(float[b, n, 4] x, float[b, c, n] scores) => (int64[k, 3] y)
<int64[1] most = {1000}, float[1] overlap = {0.3}, float[1] least = {0}> {
  y = NonMaxSuppression (x, scores, most, overlap, least)
}"""


def rows_of(number: int, share: float) -> dict[str, Array]:
    """Return rows of which about this share has numbers above 0; the others are 0."""
    random = np.random.default_rng(number)
    x = np.abs(random.normal(size=(SIDE, SIDE))).astype(np.float32)
    x[random.random(SIDE) >= share] = 0
    return {"x": x}


def boxes_of(number: int, share: float) -> dict[str, Array]:
    """Return boxes of which about this share has a score above 0."""
    random = np.random.default_rng(number)
    corners = random.uniform(0, 100, (1, BOXES, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + random.uniform(1, 9, (1, BOXES, 2)).astype(np.float32)], axis=2)
    scores = random.uniform(0.1, 1, (1, 1, BOXES)).astype(np.float32)
    scores[random.random((1, 1, BOXES)) >= share] = -1
    return {"x": boxes, "scores": scores}


# The text, and what makes inputs of it.
MODELS: dict[str, tuple[str, Callable[[int, float], dict[str, Array]]]] = {
    "NonZero": (NON_ZERO, rows_of),
    "Compress": (COMPRESS, rows_of),
    "Unique": (UNIQUE, rows_of),
    "TopK": (TOP_K, rows_of),
    "NonMaxSuppression": (SUPPRESSION, boxes_of),
}
# One plan for what comes before the read, and one or two for what follows it, which are made anew where there are no
# rows at all, and where there are more than there is room for. A plan that lacked room gets twice what it needs, and
# every tenth run has all rows: so that happens once or twice.
MAX_PLANS = 6


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return open_backend(CPU if request.param == "cpu" else gx.BackendType.SIMULATOR)


@pytest.mark.parametrize("name", MODELS)
def test_counts_change_from_run_to_run(name: str, backend: Backend) -> None:
    text, make = MODELS[name]
    model = ControlModel(text, (), 18).parse().SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(7)
    with gx.Worker(gx.load(model), backend=backend) as worker:
        for number in range(RUNS):
            feed = make(number, (0.0, 1.0, float(random.random()))[min(number % 10, 2)])
            run = worker.schedule(feed)
            if number % 4:
                continue
            for tensor, expected in zip(run.outputs.values(), session.run(None, feed), strict=True):
                made = tensor.readback_and_clone()
                assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
                np.testing.assert_array_equal(made, expected)
        plans, variants = worker.report().plans, worker.report().variants
    print(f"{name}: {RUNS} runs took {plans} plans, {variants} sizes")
    assert plans <= MAX_PLANS
