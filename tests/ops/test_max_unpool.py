"""MaxUnpool."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec, dtypes_of
from gpuexec.ops.nn.max_unpool import MaxUnpool
from tests.ops.harness import Array, Case, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape]).normal(0, 1, shape).astype(np.float32).astype(dtype)


def places(shape: tuple[int, ...], total: int, seed: int = 0) -> Array:
    """Indices without duplicates."""
    count = int(np.prod(shape, dtype=int))
    return np.random.default_rng([total, seed]).permutation(total)[:count].reshape(shape).astype(np.int64)


def unpool(id: str, x: Array, indices: Any, kernel: list[int], output_shape: Any = None, **attributes: Any) -> Case:
    shape = () if output_shape is None else (np.array(output_shape, np.int64),)
    const = () if output_shape is None else (2,)
    return Case(id, "MaxUnpool", (x, np.asarray(indices), *shape), {"kernel_shape": kernel, **attributes}, const=const)


def pooled(*shape: int, **attributes: Any) -> Case:
    """A case of what MaxPool took from a tensor, with zeros where it took nothing."""
    x = numbers(*shape)
    pool = build("MaxPool", attributes)
    y, indices = pool.compute(x)
    assert y is not None and indices is not None
    taken = np.zeros(x.size, np.float32)
    taken[indices.reshape(-1)] = y.reshape(-1)
    return Case("pooled", "MaxUnpool", (y, indices), attributes, expected=(taken.reshape(shape),))


X = numbers(2, 3, 2, 4)
CASES = [
    *(unpool(dtype.name, numbers(1, 2, 2, 3, dtype=dtype), places((1, 2, 2, 3), 1 * 2 * 4 * 6), [2, 2], strides=[2, 2])
      for dtype in FLOATS),
    unpool("plane", X, places(X.shape, 6 * 4 * 8), [2, 2], strides=[2, 2]),
    unpool("strides_of_one", X, places(X.shape, 6 * 3 * 5), [2, 2]),
    unpool("pads", X, places(X.shape, 6 * 3 * 9), [3, 4], strides=[2, 2], pads=[1, 0, 1, 1]),
    unpool("line", numbers(2, 3, 5), places((2, 3, 5), 6 * 10), [2], strides=[2]),
    unpool("volume", numbers(1, 2, 2, 1, 3), places((1, 2, 2, 1, 3), 2 * 4 * 2 * 6), [2, 2, 2], strides=[2, 2, 2]),
    unpool("output_shape", X, places(X.shape, 6 * 4 * 8), [2, 2], (2, 3, 5, 9), strides=[2, 2]),
    unpool("output_shape_as_it_would_be", X, places(X.shape, 6 * 4 * 8), [2, 2], (2, 3, 4, 8), strides=[2, 2]),
    unpool("the_last_stays", numbers(1, 1, 3, 3), np.arange(9).reshape(1, 1, 3, 3) % 4, [1, 1]),
    unpool("negative", X, places(X.shape, 6 * 4 * 8) - 6 * 4 * 8, [2, 2], strides=[2, 2]),
    unpool("strided", numbers(4, 3, 4, 4)[::-2, :, ::2], places((4, 3, 2, 8), 6 * 4 * 8)[::2, :, :, ::-2], [2, 2],
           strides=[2, 2]),
    unpool("no_batch", X[:0], places((0, 3, 2, 4), 0), [2, 2], strides=[2, 2]),
    unpool("special_values", np.array([[[np.nan, -np.inf, -0.0]]], np.float32), [[[4, 2, 0]]], [2], strides=[2]),
    replace(unpool("opset_9", X, places(X.shape, 6 * 4 * 8), [2, 2], strides=[2, 2]), opset=9),
    replace(unpool("opset_11", X, places(X.shape, 6 * 4 * 8), [2, 2], strides=[2, 2]), opset=11),
    pooled(2, 3, 4, 6, kernel_shape=(2, 3), strides=(2, 3)),
    pooled(1, 1, 6, 6, kernel_shape=(2, 2), strides=(2, 2)),
    Case("out_of_range", "MaxUnpool", (np.ones((1, 1, 2), np.float32), np.array([[[1, 9]]])),
         {"kernel_shape": [1]}, refusal="index 9 is out of range", expected=(np.array([[[0, 1]]], np.float32),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_max_unpool(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.tuples(*[st.integers(1, 3)] * 3), min_size=1, max_size=3), st.booleans(), st.integers(0, 99))
def test_any_form_is_written_as_the_reference_does(
    checks: str, axes: list[tuple[int, ...]], has_shape: bool, seed: int
) -> None:
    extents, kernel, strides = (list(each) for each in zip(*axes))
    inner = [(n - 1) * s + k for n, k, s in zip(extents, kernel, strides)]
    indices = np.random.default_rng(seed).integers(0, 2 * int(np.prod(inner)), (1, 2, *extents))
    wanted = (1, 2, *(n + seed % 2 for n in inner)) if has_shape else None
    run_case(unpool("drawn", numbers(1, 2, *extents), indices, kernel, wanted, strides=strides), checks)


def test_attributes_are_those_of_the_standard() -> None:
    assert set(onnx.defs.get_schema("MaxUnpool").attributes) == {f.name for f in dataclasses.fields(MaxUnpool)}


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({}, "int32[1,1,2,2] int64[1,1,2,2]", "expects input of type"),
        ({}, "float32[1,1,2,2] int32[1,1,2,2]", "indices of type int64"),
        ({}, "float32[1,1,2,2] int64[1,1,2,3]", "an index for each element"),
        ({}, "float32[1,1,2] int64[1,1,2]", "with kernel_shape and strides of 1 or more"),
        ({"strides": (1,)}, "float32[1,1,2,2] int64[1,1,2,2]", "for each spatial axis"),
        ({"strides": (1, 0)}, "float32[1,1,2,2] int64[1,1,2,2]", "strides of 1 or more"),
        ({"pads": (2, 2, 2, 2)}, "float32[1,1,2,2] int64[1,1,2,2]", "pads no larger"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], specs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaxUnpool((2, 2), **attributes).infer(*map(parse_spec, specs.split()))


@pytest.mark.parametrize("wanted", [(1, 1, 2, 3), (1, 1, 3), (0, 1, 3, 3)], ids=str)
def test_an_output_shape_that_does_not_hold_the_tensor_is_refused(wanted: tuple[int, ...]) -> None:
    x, indices = (parse_spec(text) for text in ("float32[1,1,2,2]", "int64[1,1,2,2]"))
    with pytest.raises(InputError, match=r"at least \[1, 1, 3, 3\]") as error:
        MaxUnpool((2, 2)).infer(x, indices, TensorSpec.of(np.array(wanted)))
    assert str(list(wanted)) in str(error.value)
