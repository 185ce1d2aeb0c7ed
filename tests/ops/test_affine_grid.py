"""AffineGrid."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import TensorSpec, dtypes_of
from gpuexec.ops.vision.affine_grid import AffineGrid
from tests.ops.harness import Array, Case, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")
PLANE, VOLUME = (2, 3, 4, 5), (2, 3, 2, 3, 4)


def matrices(batch: int, axes: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return (
        np.random.default_rng([batch, axes, seed])
        .normal(0, 1, (batch, axes, axes + 1))
        .astype(np.float32)
        .astype(dtype)
    )


def transform(id: str, theta: Array, size: tuple[int, ...], align: int = 0) -> Case:
    """A case whose answer is one product of matrices in double: positions with a 1 behind them, by theta."""
    axes = [np.linspace(-1, 1, n) if align and n > 1 else (2 * np.arange(n) + 1) / n - 1 for n in size[2:]]
    places = np.stack([*np.meshgrid(*axes, indexing="ij")[::-1], np.ones(size[2:])], axis=-1)
    wide = theta.astype(np.float64).reshape(theta.shape[0], *(1,) * (len(axes) - 1), *theta.shape[1:])
    y = places @ np.swapaxes(wide, -1, -2)
    inputs = (theta, np.array(size, np.int64))
    attributes = {"align_corners": align}
    return Case(id, "AffineGrid", inputs, attributes, const=(1,), expected=(y.astype(theta.dtype),), terms=8)


CASES = [
    *(
        transform(f"{len(size) - 2}d_{dtype.name}_{align}", matrices(2, len(size) - 2, dtype), size, align)
        for size, dtype, align in product((PLANE, VOLUME), FLOATS, (0, 1))
    ),
    Case("reference", "AffineGrid", (matrices(2, 2), np.array(PLANE)), {"align_corners": 1}, const=(1,), terms=8),
    transform("one_element", matrices(1, 2), (1, 1, 1, 1)),
    transform("one_element_aligned", matrices(1, 3), (1, 1, 1, 4, 1), 1),
    transform("many", matrices(3, 2), (3, 1, 20, 30)),
    transform("no_batch", matrices(0, 2), (0, 1, 2, 3)),
    transform("no_rows", matrices(2, 3), (2, 1, 0, 2, 3)),
    transform("strided", matrices(4, 3)[::-2, :2, ::-1][:, :, :3], (2, 1, 3, 2)),
    transform("moved_without_end", np.array([[[1, 0, np.inf], [0, 1, -np.inf]]], np.float32), (1, 1, 2, 2)),
    transform("not_finite", np.array([[[np.inf, 0, 0], [0, np.nan, 1]]], np.float32), (1, 1, 2, 2)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_affine_grid(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(1, 3), st.integers(0, 1), st.integers(0, 99))
def test_any_size_is_one_product(checks: str, extents: list[int], batch: int, align: int, seed: int) -> None:
    run_case(transform("drawn", matrices(batch, len(extents), seed=seed), (batch, 1, *extents), align), checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("AffineGrid").attributes
    assert AffineGrid(**{name: each.default_value.i for name, each in attributes.items()}) == AffineGrid()


@pytest.mark.parametrize(
    ("theta", "size", "message"),
    [
        ("int32[1,2,3]", (1, 1, 2, 2), "expects theta of type"),
        ("float32[1,2,3]", (1, 1, 2), "expects a size"),
        ("float32[1,2,3]", (1, 1, 2, 2, 2), r"theta \[1, 2, 3\]"),
        ("float32[2,2,3]", (1, 1, 2, 2), r"got size \[1, 1, 2, 2\] and theta \[2, 2, 3\]"),
        ("float32[1,2,3]", (1, 1, -2, 2), "sizes of 0 or more"),
    ],
)
def test_infer_refuses(theta: str, size: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        AffineGrid().infer(parse_spec(theta), TensorSpec.of(np.array(size)))
