"""Array programs: functions traced to models, supported Python, and models as functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.model.tracing.methods import METHODS

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def softmax(x: Any) -> Any:
    """Plain NumPy code."""
    shifted = x - np.max(x, axis=-1, keepdims=True)
    e = np.exp(shifted)
    return e / np.sum(e, axis=-1, keepdims=True)


def run(model: gx.Model, backend: Backend, *arrays: Any) -> gx.Outputs:
    with gx.Worker(model, backend=backend) as worker:
        return worker.run(list(arrays))


@pytest.mark.feature("S69")
def test_a_python_function_becomes_a_model(backend: Backend) -> None:
    model = gx.graph(softmax, {"x": ("float32", ("rows", 4))})
    assert [str(port) for port in (*model.inputs, *model.outputs)] == ["x: float32[rows,4]", "output: float32[rows,4]"]
    for x in (X, X[:1]):
        np.testing.assert_allclose(run(model, backend, x)[0], softmax(x), rtol=1e-6)


@pytest.mark.feature("S70")
def test_operators_and_indexing_are_pythons(backend: Backend) -> None:
    def function(x: Any, i: Any) -> Any:
        y = x.copy()
        y[1:] = -y[:-1] * 2 + y[-1] % 3
        y[y > 6] = 0
        return y[::-1, i], (x[..., None] >= x[0]) & ~(x[:, None] == 1), x[[0, 2], 1:3] @ x[:2, :2] // 2

    i = np.array([3, 0, 0])
    for got, expected in zip(run(gx.graph(function, [X, i]), backend, X, i), function(X, i), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.feature("S71")
def test_functional_methods_are_there_by_name(backend: Backend) -> None:
    assert all(callable(getattr(gx.fn, name)) for name in METHODS.values())

    def function(x: Any) -> Any:
        best, places = gx.fn.top_k(gx.fn.index_select(x, 1, np.array([3, 1])), 1, 0)
        return gx.fn.select(best, 0, 0), places, gx.fn.tri_l(x), gx.fn.one_hot(gx.fn.arg_max(x, 1), 4)

    expected = [X[2, [3, 1]], np.array([[2, 2]]), np.tril(X), np.eye(4, dtype=np.int64)[[3, 3, 3]]]
    for got, wanted in zip(run(gx.graph(function, [X]), backend, X), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.feature("S72")
def test_a_model_is_a_function_and_stays_as_it_is(backend: Backend) -> None:
    inner = gx.graph(softmax, {"x": ("float32", ("rows", 4))})
    nodes = inner.graph.nodes

    def twice(x: Any) -> Any:
        return gx.fn.forward(inner, gx.fn.forward(inner, x * 2)[0])[0] + 1

    np.testing.assert_allclose(run(gx.graph(twice, inner), backend, X)[0], softmax(softmax(X * 2)) + 1, rtol=1e-6)
    assert inner.graph.nodes is nodes
    np.testing.assert_allclose(run(inner, backend, X)[0], softmax(X), rtol=1e-6)
