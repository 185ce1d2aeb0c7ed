"""RoiAlign and MaxRoiPool."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import accumulator, dtypes_of
from gpuexec.ops.vision.roi import MaxRoiPool, RoiAlign
from tests.ops.harness import Array, Case, expect, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")
NAN, INF = float("nan"), float("inf")


def image(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    return np.random.default_rng([*shape, seed]).normal(0, 1, shape).astype(np.float32).astype(dtype)


def regions(count: int, reach: float = 12.0, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Regions within an image of that size and around it, some turned round."""
    random = np.random.default_rng([count, seed])
    corners = random.uniform(-0.3, 1.3, (count, 2, 2)) * reach
    return np.concatenate([corners[:, 0], corners[:, 1]], axis=1).astype(np.float32).astype(dtype)


def align(id: str, x: Array, rois: Array, images: Any, **attributes: Any) -> Case:
    """A case whose answer is the reference's in the type to compute in, rounded once."""
    wide = accumulator(x.dtype)
    inputs = (x, rois, np.asarray(images, np.int64))
    attributes = {"output_height": 2, "output_width": 3, **attributes}
    (y,) = expect(Case(id, "RoiAlign", (x.astype(wide), rois.astype(wide), inputs[2]), attributes))
    return Case(id, "RoiAlign", inputs, attributes, expected=(y.astype(x.dtype),), terms=200)


def aligned_by_hand(id: str, x: Array, rois: Any, y: Any, **attributes: Any) -> Case:
    rois = np.asarray(rois, x.dtype)
    inputs = (x, rois, np.zeros(len(rois), np.int64))
    return Case(id, "RoiAlign", inputs, attributes, expected=(np.asarray(y, x.dtype).reshape(-1, 1, 1, 1),), terms=8)


def pool(id: str, x: Array, rois: Array, **attributes: Any) -> Case:
    """A case whose answer is onnxruntime's of the same numbers in float."""
    attributes = {"pooled_shape": [2, 3], **attributes}
    given = (x.astype(np.float32), rois.astype(np.float32))
    (y,) = expect(Case(id, "MaxRoiPool", given, attributes, oracle="onnxruntime", opset=1))
    return Case(id, "MaxRoiPool", (x, rois), attributes, expected=(y.astype(x.dtype),))


def pooled_by_hand(id: str, x: Array, rois: Any, y: Any, **attributes: Any) -> Case:
    attributes = {"pooled_shape": [1, 1], **attributes}
    rois = np.asarray(rois, x.dtype)
    return Case(id, "MaxRoiPool", (x, rois), attributes, expected=(np.asarray(y, x.dtype).reshape(-1, 1, 1, 1),))


def with_image(rois: Array, images: int) -> Array:
    """Put an image's number before each region."""
    return np.concatenate([np.arange(len(rois))[:, None] % images, rois], axis=1).astype(rois.dtype)


X = image(3, 5, 9, 12)
ROIS, IMAGES = regions(8), np.arange(8) % 3
RAMP = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
WHOLE = np.array([[0, 0, 3, 3]] * 3, np.float32)
MODES = ("avg", "max")
CASES = [
    *(
        align(f"{mode}_{transformation}_{ratio}", X, ROIS, IMAGES, mode=mode, sampling_ratio=ratio,
              coordinate_transformation_mode=transformation)
        for mode, transformation, ratio in product(MODES, ("half_pixel", "output_half_pixel"), (0, 2))
    ),
    *(align(f"{mode}_{dtype.name}", image(2, 3, 6, 8, dtype=dtype), regions(4, 8, dtype), [0, 1, 1, 0], mode=mode)
      for mode, dtype in product(MODES, FLOATS)),
    Case("defaults", "RoiAlign", (X, ROIS, IMAGES), terms=200),
    align("scaled", X, ROIS * 4, IMAGES, spatial_scale=0.25),
    align("one_sample", X, ROIS, IMAGES, sampling_ratio=1),
    align("larger_than_the_image", X, ROIS * 3 - 10, IMAGES),
    align("larger_than_the_image_max", X, ROIS * 3 - 10, IMAGES, mode="max"),
    align("many_bins", X, regions(20), np.arange(20) % 3, output_height=5, output_width=7),
    align("strided", image(6, 5, 9, 24)[::-2, :, ::-1, ::2], regions(16)[::2], np.arange(16)[::2] % 3),
    replace(align("opset_10", X, ROIS, IMAGES, coordinate_transformation_mode="output_half_pixel"), opset=10,
            attributes={"output_height": 2, "output_width": 3}),
    replace(align("opset_16", X, ROIS, IMAGES), opset=16),
    aligned_by_hand("between", RAMP, [[1, 1, 3, 3]], [7.5], sampling_ratio=1),
    aligned_by_hand("at_the_edges", RAMP + 1, [[4.5] * 4, [-0.5] * 4], [16, 1], sampling_ratio=1),
    aligned_by_hand("no_numbers", RAMP, [[NAN] * 4, [0, 0, NAN, 2]], [0, 0]),
    aligned_by_hand("no_numbers_max", RAMP, [[NAN] * 4, [0, 0, NAN, 2]], [0, 0], mode="max", sampling_ratio=2),
    aligned_by_hand("endless", RAMP, [[-INF, 0, INF, 2], [0, 0, INF, INF]], [0, 0]),
    aligned_by_hand("turned_round", RAMP, [[3, 3, 1, 1]], [0]),
    aligned_by_hand("greatest_is_nan", np.array([[[[NAN, 1]]]], np.float32), [[0.5, 0.5, 1.5, 0.5]], [NAN], mode="max",
                    sampling_ratio=1),
    align("huge", RAMP, np.array([[-5000, 0, 5000, 4]], np.float32), [0], output_height=1, output_width=1),
    Case("no_regions", "RoiAlign", (X, ROIS[:0], IMAGES[:0]), expected=(np.zeros((0, 5, 1, 1), np.float32),)),
    Case("no_channels", "RoiAlign", (X[:, :0], ROIS, IMAGES), expected=(np.zeros((8, 0, 1, 1), np.float32),)),
    Case("no_rows", "RoiAlign", (X[:, :, :0], ROIS, IMAGES), expected=(np.zeros((8, 5, 1, 1), np.float32),)),
    Case("no_such_image", "RoiAlign", (RAMP, WHOLE, np.array([1, -1, 2])), refusal="a region is of image 1",
         expected=(np.zeros((3, 1, 1, 1), np.float32),)),
    *(pool(f"pool_{dtype.name}", image(2, 3, 6, 8, dtype=dtype), with_image(regions(6, 8).round(), 2).astype(dtype))
      for dtype in FLOATS),
    pool("pool_scaled", X, with_image(ROIS * 4, 3), spatial_scale=0.25),
    pool("pool_larger_than_the_image", X, with_image(ROIS * 3 - 10, 3)),
    pool("pool_half_way", X, np.array([[0, 0.5, 1.5, 2.5, 3.5], [1, -0.5, -1.5, 4.5, 6.5]], np.float32)),
    pool("pool_many_bins", X, with_image(regions(20), 3), pooled_shape=[7, 5]),
    pool("pool_strided", image(6, 5, 9, 24)[::-2, :, ::-1, ::2], with_image(regions(16), 3)[::2]),
    replace(pool("pool_opset_1", X, with_image(ROIS, 3)), opset=1),
    pooled_by_hand("pool_whole", RAMP, [[0, 0, 0, 3, 3]], [15]),
    pooled_by_hand("pool_nan_wins", np.array([[[[1, NAN, 2]]]], np.float32), [[0, 0, 0, 2, 0]], [NAN]),
    pooled_by_hand("pool_of_nothing_but_minus_inf", np.full((1, 1, 2, 2), -INF, np.float32), [[0, 0, 0, 1, 1]], [-INF]),
    pooled_by_hand("pool_outside", RAMP, [[0, 10, 10, 12, 12], [0, 0, 10, 3, 12], [0, 1e30, 0, 1e30, 3]], [0] * 3),
    pooled_by_hand("pool_no_numbers", RAMP, [[0, NAN, NAN, NAN, NAN], [0, -INF, -INF, INF, INF]], [0, 15]),
    Case("pool_no_regions", "MaxRoiPool", (X, with_image(ROIS, 3)[:0]), {"pooled_shape": [2, 2]},
         expected=(np.zeros((0, 5, 2, 2), np.float32),)),
    Case("pool_no_rows", "MaxRoiPool", (X[:, :, :0], with_image(ROIS, 3)), {"pooled_shape": [1, 2]},
         expected=(np.zeros((8, 5, 1, 2), np.float32),)),
    Case("pool_no_such_image", "MaxRoiPool", (RAMP, with_image(WHOLE, 3) + np.array([1, 0, 0, 0, 0], np.float32)),
         {"pooled_shape": [1, 1]}, refusal="a region is of image 1", expected=(np.zeros((3, 1, 1, 1), np.float32),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_roi(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from(MODES),
    st.integers(0, 3),
    st.integers(0, 99),
)
def test_any_region_is_aligned_and_pooled(
    checks: str, extents: tuple[int, int], bins: tuple[int, int], mode: str, ratio: int, seed: int
) -> None:
    x, rois = image(2, 2, *extents, seed=seed), regions(3, max(extents) * 1.5, seed=seed)
    sizes = {"output_height": bins[0], "output_width": bins[1]}
    run_case(align("drawn", x, rois, [0, 1, 0], mode=mode, sampling_ratio=ratio, **sizes), checks)
    run_case(pool("drawn_pool", x, with_image(rois, 2), pooled_shape=list(bins)), checks)


@pytest.mark.parametrize("name", ["RoiAlign", "MaxRoiPool"])
def test_attributes_are_those_of_the_standard(name: str) -> None:
    attributes = onnx.defs.get_schema(name).attributes
    defaults = {k: onnx.helper.get_attribute_value(a.default_value) for k, a in attributes.items() if not a.required}
    given = {k: v.decode() if isinstance(v, bytes) else v for k, v in defaults.items()}
    required = {k: (2, 2) for k, a in attributes.items() if a.required}
    assert build(name, {**given, **required}) == build(name, required)


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({"mode": "sum"}, "float32[1,1,2,2] float32[3,4] int64[3]", "mode among avg, max"),
        ({"coordinate_transformation_mode": "x"}, "float32[1,1,2,2] float32[3,4] int64[3]", "output_half_pixel, half"),
        ({"output_width": 0}, "float32[1,1,2,2] float32[3,4] int64[3]", "at least one bin"),
        ({"sampling_ratio": -1}, "float32[1,1,2,2] float32[3,4] int64[3]", "sampling_ratio of 0 or more"),
        ({}, "float32[1,1,2,2] float32[3,4] int32[3]", "batch_indices of type int64"),
        ({}, "float32[1,1,2,2] float32[3,4] int64[2]", "a batch index for each"),
        ({}, "float32[1,1,2,2] float32[3,5] int64[3]", r"rois \[regions, 4\]"),
        ({}, "float32[1,1,2] float32[3,4] int64[3]", r"\[batch, channels, height, width\]"),
        ({}, "float32[1,1,2,2] float64[3,4] int64[3]", "rois of the type of its input"),
        ({}, "int32[1,1,2,2] int32[3,4] int64[3]", "expects input of type"),
    ],
)
def test_align_refuses(attributes: dict[str, Any], specs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RoiAlign(**attributes).infer(*map(parse_spec, specs.split()))


@pytest.mark.parametrize(
    ("shape", "specs", "message"),
    [
        ((2,), "float32[1,1,2,2] float32[3,5]", r"pooled_shape \(height, width\)"),
        ((2, 0), "float32[1,1,2,2] float32[3,5]", r"got \[2, 0\]"),
        ((2, 2), "float32[1,1,2,2] float32[3,4]", r"rois \[regions, 5\]"),
        ((2, 2), "float32[1,1,2,2] float16[3,5]", "rois of the type of its input"),
    ],
)
def test_pool_refuses(shape: tuple[int, ...], specs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaxRoiPool(shape).infer(*map(parse_spec, specs.split()))
