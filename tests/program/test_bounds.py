"""Bounds of inputs: declared by shapes, reported, and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import TensorSpec
from gpuexec.program.bounds import declare_shapes, find_bounds
from tests.model.small_models import CPU, affine, expect_affine, ramp, two_inputs

F32 = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("dims", "shape", "ranges", "sizes"),
    [
        (("n", 3), ((1, 8), 3), ((1, 8), (3, 3)), (8, 3)),
        (("n", 3), (4, 3), ((4, 4), (3, 3)), (4, 3)),
        (("n", 3), (None, 3), (None, (3, 3)), (None, 3)),
        ((None, None), ((0, 2), [5, 6]), ((0, 2), (5, 6)), (2, 6)),
        ((2, 3), ((1, 4), 3), ((2, 2), (3, 3)), (2, 3)),
    ],
)
def test_shapes_bind_dimensions(dims: Any, shape: Any, ranges: Any, sizes: Any) -> None:
    model = affine(dims)
    bound = declare_shapes(model, {"x": shape})
    (found,) = find_bounds(bound)
    assert (found.ranges, found.sizes) == (ranges, sizes)
    assert found.largest == (None if None in sizes else TensorSpec(sizes, F32))
    assert bound._slabs is model._slabs and bound._lock is model._lock
    assert find_bounds(model)[0].ranges != ranges or bound.dims == model.dims


def test_nameless_dimensions_run_within_their_bounds() -> None:
    bound = declare_shapes(affine((None, None)), {"x": ((1, 8), (2, 3))})
    with gx.Worker(bound, backend=CPU) as worker:
        worker.prepare(ramp(8, 3))
        for rows, columns in ((8, 3), (1, 2), (5, 3)):
            np.testing.assert_array_equal(worker.run(ramp(rows, columns))[0], expect_affine(ramp(rows, columns)))
        assert worker.report().plans == 1
        with pytest.raises(gx.InputError, match="axis 0 must be 1 to 8"):
            worker.run(ramp(9, 3))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 3)}, "no input 'z'; it has left, right"),
        ({"left": (1,)}, "has 1 axes, not 2"),
        ({"left": (1, 4)}, r"'left': axis 1 is 3, the shape says 4"),
        ({"left": ((3, 1), 3)}, r"axis 0 of its shape is \(3, 1\); expected an extent, or a range"),
        ({"left": (-1, 3)}, "axis 0 of its shape is -1"),
        ({"left": ("n", 3)}, "axis 0 of its shape is 'n'"),
        ({"left": (2, 3), "right": (4, 3)}, r"'right': axis 0 \('n'\) is bound to 2, the shape says 4"),
    ],
)
def test_bad_shapes_are_refused(shapes: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        declare_shapes(two_inputs(), shapes)


def test_gap_names_input_axis_and_dimension() -> None:
    assert find_bounds(affine())[0].describe_gap() == "input 'x' has no bound on axis 0 (n)"
