"""NumPy functions on symbolic arrays, compared with NumPy: dtypes, shapes, content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from gpuexec.importer import to_model
from gpuexec.model.tracing.elementwise import UFUNCS
from tests.model.tracing.tracing import Array, check, compute, trace

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((3, 4)).astype(np.float32)
Y = RANDOM.standard_normal((3, 4)).astype(np.float32)
T = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)
S = RANDOM.standard_normal((4, 4)).astype(np.float32)
V = RANDOM.standard_normal(5).astype(np.float32)
I = RANDOM.integers(-5, 6, (3, 4))
J = RANDOM.integers(1, 5, (3, 4)).astype(np.int32)
GAPS = np.array([[np.inf, np.nan, 1], [-2, np.nan, np.inf]])
B, U = X > 0, np.abs(I).astype(np.uint8)
SAMPLES = [X, I, J, B, U, X.astype(np.float16), X.astype(np.float64), I.astype(np.int16)]
NARROW = {"arcsin", "arccos", "arctanh"}


def prepare(name: str, array: Array) -> Array:
    """Return an array within what a function is defined on."""
    if name in NARROW:
        return np.clip(array, -0.9, 0.9) if array.dtype.kind == "f" else np.zeros_like(array)
    if name == "power":
        return np.abs(array)
    return np.where(array == 0, 1, array).astype(array.dtype) if name == "reciprocal" else array


@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda ufunc: ufunc.__name__)
def test_elementwise_function_is_numpys_for_every_dtype(ufunc: Any) -> None:
    tried = 0
    for first in SAMPLES:
        for second in (Y, J, U, B, X.astype(np.float16)) if ufunc.nin == 2 else (None,):
            arrays = [prepare(ufunc.__name__, each) for each in (first, second) if each is not None]
            try:
                with np.errstate(all="ignore"):
                    expected = ufunc(*arrays)
            except (TypeError, ValueError):
                continue  # NumPy has no such loop, or no such power
            check(ufunc, *arrays, expected=expected, rtol=2e-3 if expected.dtype == np.float16 else 1e-5)
            onnx.checker.check_model(to_model(trace(ufunc, *arrays).info.graph), full_check=True)
            tried += 1
    assert tried >= 3


@pytest.mark.parametrize("keywords", [{}, {"axis": 0}, {"axis": -1, "keepdims": True}], ids=str)
@pytest.mark.parametrize(
    "name",
    ["sum", "prod", "mean", "max", "min", "any", "all", "std", "var", "argmax", "argmin", "ptp", "count_nonzero"],
)
def test_reduction_is_numpys_for_every_dtype(name: str, keywords: dict[str, Any]) -> None:
    function = getattr(np, name)
    for array in (*SAMPLES, T):
        if array.dtype == bool and name in ("ptp", "std", "var"):
            continue
        rtol = 5e-3 if array.dtype == np.float16 else 1e-5
        check(lambda x: function(x, **keywords), array, rtol=rtol)
        model = to_model(trace(lambda x: function(x, **keywords), array).info.graph)
        onnx.checker.check_model(model, full_check=True)


CASES: list[tuple[str, Callable[..., Any], tuple[Array, ...]]] = [
    ("sum_axes", lambda x: np.sum(x, (0, 2)), (T,)),
    ("var_ddof", lambda x: (np.var(x, axis=1, ddof=1), np.std(x, ddof=1)), (X,)),
    ("cumsum", lambda x: (np.cumsum(x, 1), np.cumsum(x), np.cumprod(x, 0)), (I,)),
    ("cumsum_small", lambda x: np.cumsum(x, 1), (U,)),
    ("norm", lambda x: (np.linalg.norm(x, axis=1), np.linalg.norm(x)), (X,)),
    ("norm_vectors", lambda x: tuple(np.linalg.norm(x, p, 1) for p in (0, 1, 2, 3, 0.5, np.inf, -np.inf)), (X,)),
    ("norm_matrices", lambda x: tuple(np.linalg.norm(x, p) for p in (None, "fro", 1, -1, np.inf, -np.inf)), (X,)),
    ("norm_axes", lambda x: (np.linalg.norm(x, 1, (0, 2)), np.linalg.norm(x, np.inf, (1, 2), True)), (T,)),
    ("linalg_diagonals", lambda x: (np.linalg.diagonal(x), np.linalg.trace(x)), (T,)),
    ("average", lambda x, w: np.average(x, axis=1, weights=w), (X, np.abs(Y) + 1)),
    ("average_row", lambda x, w: (np.average(x, 0, w), np.average(x, 1, w)), (S, np.arange(1, 5, dtype=np.float32))),
    ("average_infinite", lambda x, w: np.average(x, 1, w), (np.array([[1, np.inf]]), np.array([[1, 2]]))),
    ("compare_with_more", lambda x: (x == 300, x < -1, x != 300, x <= 256, x > -1, x <= 255), (U,)),
    ("select", lambda x, y: (np.select([x > 1, x < 0], [x, -y], 5), np.select([y > 0], [x])), (X, Y)),
    ("positions", lambda x: (np.std(x, 0, None, None, 1), np.max(x, 0, None, True), np.argmax(x, 0, None)), (X,)),
    ("method_positions", lambda x: (x.std(0, None, None, 1), x.mean(0, None, None, True), x.sum(0, out=None)), (X,)),
    ("digitize", lambda x: (np.digitize(x, [-1.0, 0, 1]), np.digitize(x, [-1.0, 0, 1], right=True)), (I,)),
    ("diff", lambda x: (np.diff(x), np.diff(x, 2, 0), np.diff(x > 0, axis=0)), (X,)),
    (
        "isclose",
        lambda x, y: (np.isclose(x, x + 1e-9), np.isclose(x, y, 0.1), np.allclose(x, x), np.allclose(x, y)),
        (X, Y),
    ),
    (
        "isclose_special",
        lambda x: (np.isclose(x, x), np.isclose(x, x, equal_nan=True)),
        (np.array([np.inf, np.nan, 1]),),
    ),
    (
        "ignoring_nan",
        lambda x: (np.nanmax(x, 0), np.nanmin(x), np.nanmean(x, 1), np.nansum(x)),
        (np.where(X > 1, np.nan, X),),
    ),
    ("median", lambda x, y: (np.median(x, 0), np.median(x), np.median(y, 1, keepdims=True)), (X, I)),
    ("column_stack", lambda x, y: (np.column_stack([x, y]), np.append(x, x, 0), np.append(x, y)), (X, V[:3])),
    ("concatenate", lambda x, i: (np.concatenate([x, i]), np.concatenate([x, i], axis=None)), (X, I)),
    ("stack", lambda x, y: (np.stack([x, y], 1), np.dstack([x, y]), np.hstack([x, y])), (X, Y)),
    ("vstack", lambda x: np.vstack([x, x]), (V,)),
    ("split", lambda x: (*np.split(x, [1, 3], 1), *np.split(x, 2, 1)), (X,)),
    ("flip", lambda x: (np.flip(x), np.flip(x, 1), np.fliplr(x), np.flipud(x)), (T,)),
    ("roll", lambda x: (np.roll(x, 3), np.roll(x, (-1, 2), (0, 1))), (X,)),
    ("tile", lambda x: (np.tile(x, (2, 1, 3)), np.tile(x, 2)), (X,)),
    ("repeat", lambda x: (np.repeat(x, 2, 1), np.repeat(x, 3), np.repeat(x, [1, 0, 2], 0)), (X,)),
    ("pad", lambda x: (np.pad(x, ((1, 2), (0, 1))), np.pad(x, 2, constant_values=3)), (X,)),
    ("pad_modes", lambda x: (np.pad(x, 1, mode="reflect"), np.pad(x, 1, "edge"), np.pad(x, 1, "wrap")), (X,)),
    ("triangles", lambda x: (np.tril(x, 1), np.triu(x)), (T,)),
    ("transpose", lambda x: (np.transpose(x), x.transpose(1, 0, 2), x.T, np.swapaxes(x, 0, 2)), (T,)),
    ("moveaxis", lambda x: (np.moveaxis(x, 0, -1), np.moveaxis(x, (0, 1), (2, 0))), (T,)),
    ("reshape", lambda x: (np.reshape(x, (4, -1)), x.reshape(-1, 2), np.ravel(x)), (X,)),
    ("expand_dims", lambda x: (np.expand_dims(x, (0, 2)), np.squeeze(x[None])), (X,)),
    ("atleast", lambda x: (np.atleast_2d(x), np.atleast_3d(x)), (V,)),
    ("meshgrid", lambda x, y: (*np.meshgrid(x, y), *np.meshgrid(x, y, indexing="ij")), (V, V[:3])),
    ("take", lambda x: (np.take(x, [2, 0], 1), np.take(x, [[2, 0], [5, -1]])), (X,)),
    ("take_along_axis", lambda x: np.take_along_axis(x, np.argsort(x, 1), 1), (X,)),
    ("nonzero", lambda x: (*np.nonzero(x), np.argwhere(x), np.flatnonzero(x), *np.where(x)), (B,)),
    ("where", lambda x, y: (np.where(x > 0, x, 0), np.where(x > y, x, y)), (X, Y)),
    ("sort", lambda x: (np.sort(x, 0), np.sort(x, None), np.argsort(x, kind="stable"), np.unique(x)), (I,)),
    ("compress", lambda x: np.compress([True, False, True], x, axis=0), (X,)),
    ("searchsorted", lambda x, y: (np.searchsorted(x, y), np.searchsorted(x, y, side="right")), (np.sort(V), X)),
    ("clip", lambda x: (np.clip(x, -0.5, 0.5), x.clip(0, None)), (X,)),
    ("round", lambda x: (np.round(x, 2), np.round(x * 3), x.round(-1)), (X,)),
    ("round_integers", lambda x: (np.round(x, -1), np.round(x)), (I * 7,)),
    ("matmul", lambda x, y: (x @ y, x @ y[0], y @ y), (T, S)),
    ("matmul_integers", lambda x: x @ x.T, (I,)),
    ("dot", lambda x, y: (np.dot(x, y), np.inner(x, y), np.vdot(x, x)), (X, S)),
    ("outer", lambda x: np.outer(x, x), (V,)),
    ("tensordot", lambda x, y: (np.tensordot(x, y, ([1, 2], [0, 1])), np.tensordot(y, x, ([0], [1]))), (T, X)),
    ("cross", lambda x: np.cross(x[:, :3], x[:, 1:]), (X,)),
    ("einsum", lambda x, y: (np.einsum("ij,jk->ik", x, y), np.einsum("ij,jk,kl->il", x, y, y)), (X, S)),
    ("einsum_batch", lambda x, y: (np.einsum("bij,jk->bki", x, y), np.einsum("bij,bkj", x, x)), (T, S)),
    ("einsum_one", lambda x: (np.einsum("ii->i", x), np.einsum("ii", x), np.einsum("ij->ji", x)), (S,)),
    ("einsum_dots", lambda x, y: np.einsum("...ij,...j->...i", x, y), (T, S[:2].reshape(2, 4))),
    ("einsum_no_sum", lambda x, y: (np.einsum("i,j->ij", x[0], y[0]), np.einsum("ij,ij->i", x, y)), (X, Y)),
    ("diagonals", lambda x: (np.diag(x), np.diagonal(x, 1), np.diagonal(x, -1), np.trace(x)), (S,)),
    ("diag", lambda x: (np.diag(x), np.diag(x, 1), np.diag(x, -2)), (V,)),
    ("nan_to_num", lambda x: np.nan_to_num(x / np.maximum(x, 0), posinf=9), (X,)),
    ("likes", lambda x: (np.zeros_like(x), np.ones_like(x), np.full_like(x, 7)), (I,)),
    ("astype", lambda x: (x.astype(np.int8), x.astype(bool), x.astype("float16")), (X,)),
    ("divmod", lambda x: (*divmod(x, 3), *divmod(7, x * 0 + 2)), (I,)),
    ("reflected", lambda x: (1 - x, 2**x, 3 / x, 1.5 // x, 4 % x, X @ x.T), (X,)),
    ("reduce", lambda x: (np.add.reduce(x, axis=1), np.maximum.reduce(x), np.logical_or.reduce(x > 1)), (X,)),
    ("nothing", lambda x: (np.all(x[:0], 0), np.any(x[:0], 0), np.sum(x[:0], 0)), (B,)),
    ("methods", lambda x: (x.sum(1), x.mean(), x.max(0), x.argmax(), x.std(1), x.dot(x[0]), x.trace()), (S,)),
]
# Where a fixed array or shape meets an extent that is free, the extent can't be free.
FIXED = {"reflected"}


@pytest.mark.parametrize(("name", "function", "arrays"), CASES, ids=[name for name, *_ in CASES])
def test_function_is_numpys(name: str, function: Callable[..., Any], arrays: tuple[Array, ...]) -> None:
    with np.errstate(all="ignore"):
        check(function, *arrays, rtol=1e-5, may_be_free=name not in FIXED)


def test_array_split_and_broadcast_to_take_fixed_extents() -> None:
    check(lambda x: (*np.array_split(x, 3, 1), np.broadcast_to(x, (2, 3, 4)), np.arange(4) + x), X, may_be_free=False)


def test_a_shape_may_have_an_extent_of_0() -> None:
    check(lambda x: (x.reshape(0, 3), np.concatenate([x, x], 1)), np.zeros((2, 0), np.float32), may_be_free=False)


def test_functions_that_lose_digits_elsewhere_keep_them() -> None:
    tiny = np.array([1e-9, -1e-7, 1e-20, 0.5, 80.0, -80.0, 0.0], np.float32)
    functions = (lambda x: np.log1p(np.abs(x)), np.expm1)
    for function in functions:
        (got,) = compute(trace(function, tiny), tiny)
        np.testing.assert_allclose(got, function(tiny.astype(np.float64)), rtol=3e-7, atol=0)
    big = np.array([1e30, 3e38, 0.0, 1e-30], np.float32)
    for got, wanted in ((np.hypot, np.hypot(big, big[::-1])), (np.logaddexp, np.logaddexp(big, big[::-1]))):
        check(lambda x, f=got: f(x, x[::-1]), big, expected=wanted)


def test_special_numbers_go_as_in_numpy() -> None:
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -1.5, 2.0], np.float32)
    y = np.array([2.0, 2.0, 1.0, np.nan, np.inf, -np.inf], np.float32)
    with np.errstate(all="ignore"):
        check(lambda x: (np.expm1(x), np.log1p(x), np.isnan(x), np.isfinite(x), np.trunc(x), np.abs(x)), x)
        check(lambda x, y: (np.fmax(x, y), np.fmin(x, y), np.maximum(x, y), x > y, x != y), x, y)
        check(lambda x: (np.copysign(x, -x), np.copysign(2, x[3:] * -1), np.heaviside(x, 0.5)), x)
        check(lambda x: (np.floor_divide(x, 0.0), np.logaddexp(x, x), np.exp(x), np.nan_to_num(x)), x)
