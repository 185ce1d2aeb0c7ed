"""Tracing: inputs and outputs of a program, dtypes, and free dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from tests.model.tracing.tracing import check, check_devices, compute, trace

fn = gx.fn
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SPECS = {"x": ("float32", ("n", 4)), "y": ("float32", (4,))}


def dims_of(model: gx.Model) -> list[Any]:
    return [port.spec.dims for port in model.outputs]


@pytest.mark.parametrize(
    "specs",
    [
        SPECS,
        [("float32", ("n", 4)), (np.float32, (4,))],
        {"y": TensorSpec((4,), np.dtype(np.float32)), "x": ("float32", ("n", 4))},
    ],
)
def test_inputs_go_by_name_or_place(specs: Any) -> None:
    model = gx.graph(lambda x, y: x - y, specs)
    given = {"x": X, "y": X[0]}
    (got,) = compute(model, *(given[port.name] for port in model.inputs))
    np.testing.assert_array_equal(got, X - X[0])
    assert [str(port) for port in model.outputs] == ["output: float32[n,4]"]


def test_a_model_gives_its_inputs_and_an_array_its_shape() -> None:
    first = gx.graph(lambda x, y: x - y, SPECS)
    second = gx.graph(lambda *arrays: fn.forward(first, *arrays)[0] * 2, first)
    assert [str(port) for port in second.inputs] == [str(port) for port in first.inputs]
    assert gx.graph(lambda a: a + 1, [X]).inputs[0].spec.dims == (3, 4)


def test_outputs_have_the_names_of_a_dict_and_are_each_their_own() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return {"same": x, "y": y, "again": y, "third": y, "add_1": y * 2, "seven": 7, "rows": np.arange(2)}

    model = gx.graph(function, [("float32", (3, 4))])
    assert [port.name for port in model.outputs] == ["same", "y", "again", "third", "add_1", "seven", "rows"]
    expected = [X, X + 1, X + 1, X + 1, (X + 1) * 2, np.int64(7), np.arange(2)]
    check_devices(lambda x: tuple(function(x).values()), X, expected=expected)
    for got, wanted in zip(compute(model, X), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_dims_are_fixed_and_bounded() -> None:
    model = gx.graph(lambda x, y: x - y, SPECS, dims={"n": 5})
    assert model.inputs[0].spec.dims == (5, 4)
    bounded = gx.graph(lambda x, y: x - y, SPECS, dims={"n": (1, 64)})
    assert bounded.inputs[0].spec.dims == ("n", 4) and bounded.dims == {"n": (1, 64)}
    with pytest.raises(gx.InputError, match="'m'"):
        gx.graph(lambda x, y: x - y, SPECS, dims={"m": (1, 4)})


DTYPES = [np.dtype(name) for name in ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scalar", [True, 3, 2.5], ids=str)
def test_python_scalars_are_weak(dtype: np.dtype[Any], scalar: Any) -> None:
    x = np.array([0, 1, 1], dtype)
    check(lambda x: (x + scalar, scalar * x, np.where(x > 0, x, scalar), x < scalar, np.maximum(x, scalar)), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_promote_as_numpys(dtype: np.dtype[Any]) -> None:
    x = np.array([1, 0, 1], dtype)
    for other in DTYPES:
        y = np.array([1, 1, 0], other)
        check(lambda x, y: (x * y, x == y, np.maximum(x, y)), x, y)
        check(lambda x, y: np.concatenate([x, y]), x, y)


def test_bfloat16_stays_beside_scalars() -> None:
    x = np.array([1, 2.5, -3], BFLOAT16)
    model = trace(lambda x: (x * 2.0 + 1, x / 3, fn.exp(x), x > 0.5, x.sum()), x)
    assert [port.spec.dtype.name for port in model.outputs] == ["bfloat16"] * 3 + ["bool", "bfloat16"]
    np.testing.assert_array_equal(compute(model, x)[0], x * np.array(2, BFLOAT16) + np.array(1, BFLOAT16))


def test_a_free_extent_is_weak() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.sum(0) / x.shape[0], x.shape[0] * 2 + 1, x * x.shape[0].astype(np.int64)

    model = gx.graph(function, SPECS)
    assert [port.spec.dtype.name for port in model.outputs] == ["float32", "int64", "float64"]
    got = compute(model, X, X[0])
    np.testing.assert_allclose(got[0], X.mean(0))
    assert got[1] == 7


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x, y: x @ x.T, [("n", "n")]),
        (lambda x, y: x.reshape(-1), [(None,)]),
        (lambda x, y: x.reshape(x.shape[0] * 2, 2).reshape(x.shape), [("n", 4)]),
        (lambda x, y: x[:-1], [(None, 4)]),
        (lambda x, y: x[:3], [(None, 4)]),
        (lambda x, y: x[:, :3], [("n", 3)]),
        (lambda x, y: fn.arange(x.shape[0]), [("n",)]),
        (lambda x, y: x[x[:, 0] > 0], [("count(greater_1)", 4)]),
        (lambda x, y: fn.nonzero(y > 0)[0], [("count(greater_1)",)]),
        (lambda x, y: x.sum(0, keepdims=True), [(1, 4)]),
    ],
)
def test_free_dimensions_are_followed(function: Any, dims: Any) -> None:
    assert dims_of(gx.graph(function, SPECS)) == dims


def test_one_program_serves_all_sizes() -> None:
    def function(x: Any, y: Any) -> Any:
        big = x[x > 0]
        return x - x.mean(0), big.sum(), fn.flip(x, 0)[:2], x.reshape(-1, 2)[1::2], fn.pad(x, ((1, 0), (0, 2)))

    model = gx.graph(function, SPECS)
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        for n in (3, 1, 7):
            x = np.sin(np.arange(n * 4, dtype=np.float32)).reshape(n, 4)
            wanted = [
                x - x.mean(0), x[x > 0].sum(), x[::-1][:2], x.reshape(-1, 2)[1::2], np.pad(x, ((1, 0), (0, 2)))
            ]  # fmt: skip
            for got, each in zip(worker.run({"x": x, "y": x[0]}), wanted, strict=True):
                np.testing.assert_allclose(got, each, rtol=1e-5, atol=1e-6)
