"""CenterCropPad."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import COMPUTED, TensorSpec
from gpuexec.ops.tensor.center_crop_pad import CenterCropPad
from tests.ops.harness import Array, Case, run_case
from tests.ops.specs import parse_spec


def arange(*shape: int, dtype: Any = np.float32) -> Array:
    return (1 + np.arange(np.prod(shape, dtype=int)) % 100).reshape(shape).astype(np.float32).astype(dtype)


def center(id: str, x: Array, shape: Any, dtype: Any = np.int64, **attributes: Any) -> Case:
    return Case(id, "CenterCropPad", (x, np.array(shape, dtype)), attributes, const=(1,))


X = arange(4, 5, 6)
CASES = [
    *(center(row.name, arange(3, 4, dtype=row.numpy), (5, 1)) for row in COMPUTED),
    center("crop_even", X, (2, 3, 4)),
    center("crop_odd", X, (1, 2, 3)),
    center("pad_even", X, (6, 7, 8)),
    center("pad_odd", X, (7, 8, 9)),
    center("crop_and_pad", X, (9, 2, 6)),
    center("shape_in_int32", X, (9, 2, 6), np.int32),
    center("some_axes", X, (3, 8), axes=[2, 0]),
    center("negative_axes", X, (3, 8), axes=[-1, -3]),
    center("as_it_is", X, (4, 5, 6)),
    center("to_nothing", X, (0, 5, 6)),
    center("from_nothing", arange(0, 3), (2, 2)),
    center("no_axes", arange(), ()),
    center("eight_axes", arange(2, 1, 2, 3, 1, 2, 3, 2), (3, 2, 1, 2, 2, 3, 1, 3)),
    center("strided", arange(8, 5, 12)[::-2, :, ::2].transpose(2, 0, 1), (3, 5, 9)),
    center("special_values", np.array([np.nan, np.inf, -0.0, -np.inf], np.float32), (3,)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_center_crop_pad(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=5))
def test_any_shape_is_centered_as_the_reference_does(checks: str, axes: list[tuple[int, int]]) -> None:
    extents, wanted = zip(*axes)
    run_case(center("drawn", arange(*extents), wanted), checks)


def test_strings_are_padded_with_empty_ones() -> None:
    x = np.array(["a", "b"], object)
    (y,) = CenterCropPad().compute(x, np.array([5]))
    assert y.tolist() == ["", "a", "b", "", ""]


def test_attributes_are_those_of_the_standard() -> None:
    assert set(onnx.defs.get_schema("CenterCropPad").attributes) == {f.name for f in dataclasses.fields(CenterCropPad)}


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        ((), (1, 2), "an extent of 0 or more for each of 3 axes"),
        ((0, 1), (1,), "for each of 2 axes"),
        ((0,), (-1,), r"got \[-1\]"),
        ((3,), (1,), "expected -3 to 2, got 3"),
        ((0, -3), (1, 1), "axes"),
    ],
)
def test_infer_refuses(axes: tuple[int, ...], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        CenterCropPad(axes).infer(parse_spec("float32[4,5,6]"), TensorSpec.of(np.array(shape)))
