"""Prepared calls that depend on the content of inputs, or on outputs in the memory of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import TensorSpec

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def prepare(name: str, attributes: dict[str, Any], inputs: list[Array], y: Array) -> list[Any]:
    """Return the calls of an operator none of whose inputs is constant."""
    op = build(name, attributes)
    specs = [TensorSpec(x.shape, x.dtype) for x in inputs]
    scratch = [np.empty(nbytes, np.uint8) for nbytes in op.count_scratch(specs, (TensorSpec(y.shape, y.dtype),))]
    calls = op.prepare(inputs, (y,), [False] * len(inputs), scratch)
    assert calls is not None
    return list(calls)


@pytest.mark.parametrize(
    ("name", "attributes", "small", "shape"),
    [
        ("Pad", {}, [[0, 1, 0, 1], [1, 0, 0, 1], [0, 2, 0, 0]], (3, 6)),
        ("Tile", {}, [[2, 1], [1, 2]], None),
        ("CumSum", {}, [[0], [1], [-1]], (3, 4)),
        ("ReduceSum", {"keepdims": 1}, [[0], [1]], None),
        ("Trilu", {}, [[0], [1], [-1]], (3, 4)),
        ("TopK", {}, [[2], [2]], (3, 2)),
    ],
)
def test_calls_follow_the_content_of_small_inputs(
    name: str, attributes: dict[str, Any], small: list[list[int]], shape: tuple[int, ...] | None
) -> None:
    given = np.zeros(len(small[0]), np.int64)
    op = build(name, attributes)
    by_shape: dict[tuple[int, ...], tuple[Array, list[Any]]] = {}
    for content in [*small, *small]:
        given[:] = content
        (expected, *_) = op.compute(X, given)
        assert expected is not None
        if shape is not None and expected.shape != shape:
            continue
        if expected.shape not in by_shape:
            y = np.empty(expected.shape, expected.dtype)
            by_shape[expected.shape] = y, prepare(name, attributes, [X, given], y)
        y, calls = by_shape[expected.shape]
        for call in calls:
            call()
        np.testing.assert_array_equal(y, expected)


def test_bad_content_is_refused_by_the_calls() -> None:
    indices = np.array([0, 1])
    (call,) = prepare("Gather", {}, [X, indices], np.empty((2, 4), np.float32))
    call()
    indices[1] = 3
    with pytest.raises(InputError, match="index 3 is out of range for axis 0 of extent 3"):
        call()


def test_calls_read_a_scalar_that_changes() -> None:
    x, y = np.zeros((), np.float32), np.empty((), np.float32)
    for name, more in (("Tile", 0), ("Pad", 0)):
        calls = prepare(name, {}, [x, np.zeros(more, np.int64)], y)
        for value in (2, 3):
            x[...] = value
            for call in calls:
                call()
            assert y == value


@pytest.mark.parametrize("own", [1, 2])
def test_where_may_write_over_what_it_chooses_from(own: int) -> None:
    condition = X % 3 == 0
    for shape in ((3, 4), (4,), ()):
        other = np.full(shape, -1, np.float32)
        inputs = [condition, *((X.copy(), other) if own == 1 else (other, X.copy()))]
        expected = np.where(*inputs)
        for call in prepare("Where", {}, inputs, inputs[own]):
            call()
        np.testing.assert_array_equal(inputs[own], expected)


def test_rotation_may_write_over_its_input() -> None:
    x, angles = np.arange(24, dtype=np.float32).reshape(1, 1, 3, 8), np.linspace(0, 1, 12, dtype=np.float32)
    inputs = [x.copy(), np.cos(angles).reshape(1, 3, 4), np.sin(angles).reshape(1, 3, 4)]
    (expected,) = build("RotaryEmbedding", {}).compute(*inputs)
    for call in prepare("RotaryEmbedding", {}, inputs, inputs[0]):
        call()
    np.testing.assert_array_equal(inputs[0], expected)


def test_attention_works_out_anew_what_is_not_finite() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, rows, 4)).astype(np.float32) for rows in (1, 3, 3))
    mask = np.array([[[[0, 0, -np.inf]]]], np.float32)
    y = np.empty((1, 2, 1, 4), np.float32)
    calls = prepare("gpuexec.AttentionOverCache", {}, [q, k, v, mask], y)
    for value in (1, np.inf, np.nan, 2):
        v[:, :, 2] = value
        with np.errstate(all="ignore"):
            for call in calls:
                call()
        assert np.isfinite(y).all()
        (expected, *_) = build("gpuexec.AttentionOverCache", {}).compute(q, k, v, mask)
        np.testing.assert_array_equal(y, expected)
