"""GridSample."""

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
from gpuexec.ir.spec import COMPUTED, dtypes_of
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.elementwise_cast import convert
from gpuexec.ops.vision.grid_sample import GridSample
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Array, Case, expect, run_case
from tests.ops.specs import parse_spec

FLOATS = dtypes_of("float")
MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Array:
    random = np.random.default_rng([*shape, seed])
    dtype = np.dtype(dtype)
    if dtype.kind in "biu":
        return random.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)
    return random.normal(0, 2, shape).astype(np.float32).astype(dtype)


def positions(*shape: int, dtype: Any = np.float32, reach: float = 1.6) -> Array:
    """Positions within the tensor and around it."""
    return np.random.default_rng([*shape, 7]).uniform(-reach, reach, shape).astype(np.float32).astype(dtype)


def sample(id: str, x: Array, grid: Array, **attributes: Any) -> Case:
    """A case whose answer is the reference's; for doubles and integers, of which it makes floats, that of `weigh`."""
    if x.dtype in FLOATS and x.dtype != np.float64 and grid.dtype != np.float64:
        wide, positions = (array.astype(np.float32) for array in (x, grid))
        (y,) = expect(Case(id, "GridSample", (wide, positions), attributes))
    else:
        y = weigh(x.astype(np.float64), grid, **attributes)
    terms = 8 * (4 if attributes.get("mode") == "cubic" else 2) ** (x.ndim - 2)
    return Case(id, "GridSample", (x, grid), attributes, expected=(convert(y, x.dtype),), terms=terms)


def weigh(x: Array, grid: Array, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0) -> Array:
    """Sum all elements around each position, each by the product of its weights: no padding but zeros."""
    assert padding_mode == "zeros"
    is_single = mode == "nearest" and grid.dtype != np.float64
    grid = grid.astype(np.float32 if is_single else np.float64)
    axes = x.ndim - 2
    y = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for place in np.ndindex(*grid.shape[:-1]):
        weights = np.ones(())
        for axis, extent in enumerate(x.shape[2:]):
            n = grid[place][axes - 1 - axis]
            at = (n + 1) / 2 * (extent - 1) if align_corners else ((n + 1) * extent - 1) / 2
            distance = np.abs(np.arange(extent) - np.float64(np.rint(at) if mode == "nearest" else at))
            near = (1.25 * distance - 2.25) * distance**2 + 1
            far = -0.75 * (distance**3 - 5 * distance**2 + 8 * distance - 4)
            own = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
            own = {"linear": np.maximum(0, 1 - distance), "nearest": distance < 0.5, "cubic": own}[mode]
            weights = np.multiply.outer(weights, own)
        y[(place[0], slice(None), *place[1:])] = (x[place[0]] * weights).reshape(x.shape[1], -1).sum(axis=1)
    return y


def by_hand(id: str, x: Array, grid: Any, y: Any, **attributes: Any) -> Case:
    expected = np.asarray(y).astype(x.dtype)
    return Case(id, "GridSample", (x, np.asarray(grid)), attributes, expected=(expected,), terms=8)


IMAGE, GRID = numbers(2, 3, 5, 4), positions(2, 4, 3, 2)
LINE = np.array([[[1.0, 2, 4, 8]]], np.float32)
NAN, INF = float("nan"), float("inf")

CASES = [
    *(
        sample(f"{mode}_{padding}_{align}", IMAGE, GRID, mode=mode, padding_mode=padding, align_corners=align)
        for mode, padding, align in product(MODES, PADDINGS, (0, 1))
    ),
    sample("defaults", IMAGE, GRID),
    *(sample(f"nearest_{row.name}", numbers(1, 2, 3, 4, dtype=row.numpy), positions(1, 2, 3, 2), mode="nearest")
      for row in COMPUTED),
    *(sample(f"linear_{row.name}", numbers(1, 2, 3, 4, dtype=row.numpy), positions(1, 2, 3, 2)) for row in COMPUTED),
    *(sample(f"cubic_{dtype.name}", numbers(1, 2, 5, 4, dtype=dtype), positions(1, 2, 3, 2), mode="cubic")
      for dtype in (*FLOATS, np.dtype(np.int16))),
    *(sample(f"{mode}_grid_{dtype.name}", IMAGE, positions(2, 4, 3, 2, dtype=dtype), mode=mode)
      for mode, dtype in product(("linear", "nearest"), FLOATS)),
    sample("double_by_half_grid", IMAGE.astype(np.float64), positions(2, 4, 3, 2, dtype=np.float16)),
    *(sample(f"{mode}_one_axis", numbers(2, 3, 7), positions(2, 5, 1), mode=mode) for mode in MODES),
    *(sample(f"{mode}_volume_{padding}", numbers(1, 2, 3, 4, 5), positions(1, 2, 2, 3, 3), mode=mode,
             padding_mode=padding) for mode, padding in product(MODES, ("zeros", "reflection"))),
    sample("four_axes", numbers(1, 2, 2, 3, 2, 3), positions(1, 1, 2, 2, 1, 4)),
    *(sample(f"five_axes_{dtype.name}", numbers(1, 1, 2, 1, 2, 1, 2, dtype=dtype), positions(1, 1, 2, 1, 1, 1, 5))
      for dtype in FLOATS),
    sample("six_axes", numbers(1, 1, 2, 1, 2, 2, 1, 2), positions(1, 1, 2, 1, 1, 1, 2, 6)),
    sample("six_axes_nearest", numbers(1, 1, 2, 1, 2, 2, 1, 2), positions(1, 1, 2, 1, 1, 1, 2, 6), mode="nearest"),
    sample("many_channels", numbers(1, 19, 3, 3), positions(1, 3, 3, 2)),
    sample("many_positions", numbers(1, 2, 3, 3), positions(1, 30, 31, 2)),
    sample("strided", numbers(6, 8, 4, 5)[::-3, 1::4, ::-1, ::2], positions(4, 2, 3, 4)[::2, :, ::-1, ::2]),
    sample("strided_nearest", numbers(6, 8, 4, 5)[::-3, 1::4, ::-1, ::-2], positions(2, 2, 3, 2), mode="nearest"),
    sample("far_outside", IMAGE, positions(2, 4, 3, 2, reach=9.0), padding_mode="reflection"),
    sample("far_outside_cubic", IMAGE, positions(2, 4, 3, 2, reach=9.0), padding_mode="reflection", mode="cubic",
           align_corners=1),
    sample("one_element_wide", numbers(1, 2, 4, 1), positions(1, 3, 3, 2), padding_mode="border", align_corners=1),
    replace(sample("opset_16_bilinear", IMAGE, GRID), attributes={"mode": "bilinear"}, opset=16),
    replace(sample("opset_16_bicubic", IMAGE, GRID, mode="cubic"), attributes={"mode": "bicubic"}, opset=16),
    replace(sample("opset_16_nearest", IMAGE, GRID, mode="nearest"), opset=16),
    replace(sample("opset_16_default", IMAGE, GRID), opset=16),
    replace(sample("opset_20", IMAGE, GRID, mode="cubic"), opset=20),
    # Halfway between elements of 4 and beyond them; positions are ((x + 1) * 4 - 1) / 2.
    by_hand("between", LINE, [[[-0.5], [0.0], [0.5]]], [[[1.5, 3, 6]]]),
    by_hand("nearest_half_way", LINE, [[[-0.5], [0.0], [0.5]]], [[[1, 4, 4]]], mode="nearest"),
    sample("edges_of_border", LINE, np.array([[[-1], [1]]], np.float32), padding_mode="border", mode="cubic"),
    by_hand("edges_of_zeros", LINE, [[[-1.0], [1.0], [1.25], [1.26]]], [[[0.5, 4, 0, 0]]]),
    by_hand("reflected", LINE, [[[-1.25], [1.25], [2.75], [5.25]]], [[[1, 8, 1, 8]]], padding_mode="reflection"),
    by_hand("reflected_corners", LINE, [[[-5 / 3], [5 / 3], [3.0]]], [[[2, 4, 1]]], padding_mode="reflection",
            align_corners=1),
    by_hand("one_reflected", LINE[..., :1], [[[-3.0], [0.0], [0.7]]], [[[1, 1, 1]]], padding_mode="reflection",
            align_corners=1),
    by_hand("one_reflected_often", LINE[..., :1], [[[0.0], [0.7]]], [[[1, 1]]], padding_mode="reflection",
            mode="cubic"),
    *(by_hand(f"no_number_{mode}_zeros", LINE, [[[NAN], [INF], [-INF], [1e30], [-1e30]]], [[[0] * 5]], mode=mode)
      for mode in MODES),
    *(by_hand(f"no_number_{mode}_border", LINE, [[[NAN], [INF], [-INF], [1e30], [-1e30]]], [[[1, 8, 1, 8, 1]]],
              mode=mode, padding_mode="border") for mode in MODES),
    *(by_hand(f"no_number_{mode}_reflection", LINE, np.array([[[NAN], [INF], [-INF]]], np.float32), [[[1, 1, 1]]],
              mode=mode, padding_mode="reflection", align_corners=1) for mode in MODES),
    by_hand("special_values", np.array([[[INF, 1, NAN, -INF]]], np.float32), [[[-0.25], [0.25], [0.75]]],
            [[[1, NAN, -INF]]], mode="nearest"),
    # Integers are truncated at the end, and what a cubic overshoots keeps its low bits.
    by_hand("truncated", LINE.astype(np.int32), [[[-0.5], [-0.375], [0.25]]], [[[1, 1, 4]]]),
    by_hand("extremes", np.array([[[-128, 127]]], np.int8), [[[-0.5], [0.5], [0.0]]], [[[-128, 127, 0]]]),
    by_hand("no_batch", np.zeros((0, 2, 3, 3), np.float32), np.zeros((0, 2, 2, 2), np.float32), np.zeros((0, 2, 2, 2))),
    by_hand("no_channels", np.zeros((1, 0, 3), np.float32), np.zeros((1, 2, 1), np.float32), np.zeros((1, 0, 2))),
    by_hand("no_positions", np.zeros((1, 2, 3), np.float32), np.zeros((1, 0, 1), np.float32), np.zeros((1, 2, 0))),
    by_hand("nothing_at_all", np.zeros((1, 2, 0), np.float32), np.zeros((1, 0, 1), np.float32), np.zeros((1, 2, 0))),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_grid_sample(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from(MODES),
    st.sampled_from(PADDINGS),
    st.integers(0, 1),
    st.integers(0, 99),
)
def test_any_shape_is_sampled_as_the_reference_does(
    checks: str, extents: list[int], mode: str, padding: str, align: int, seed: int
) -> None:
    if padding == "reflection" and align and 1 in extents:
        extents = [extent + 1 for extent in extents]  # the reference divides by 0
    x = numbers(1, 2, *extents, seed=seed)
    grid = positions(1, *extents[::-1], len(extents), reach=1 + seed / 50)
    run_case(sample("drawn", x, grid, mode=mode, padding_mode=padding, align_corners=align), checks)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("GridSample").attributes
    given = {name: onnx.helper.get_attribute_value(each.default_value) for name, each in attributes.items()}
    texts = {name: value.decode() if isinstance(value, bytes) else value for name, value in given.items()}
    assert build("GridSample", texts) == GridSample()


@pytest.mark.parametrize(
    ("attributes", "x", "grid", "message"),
    [
        ({"mode": "bilinear"}, "float32[1,1,2,2]", "float32[1,1,1,2]", "mode among nearest, linear, cubic"),
        ({"padding_mode": "wrap"}, "float32[1,1,2,2]", "float32[1,1,1,2]", "padding_mode among zeros, border"),
        ({}, "float32[1,1,2,2]", "int64[1,1,1,2]", "expects grid of type"),
        ({}, "float32[1,1,2,2]", "float32[1,1,1,3]", "batch, positions..., 2"),
        ({}, "float32[1,1,2,2]", "float32[2,1,1,2]", "of the same rank"),
        ({}, "float32[1,1]", "float32[1,1]", r"\[batch, channels, spatial...\]"),
        ({}, "float32[1,1,2]", "float32[1,1,1,1]", "of the same rank"),
        ({}, "float32[1,1,0]", "float32[1,1,1]", "expects elements to sample"),
    ],
)
def test_infer_refuses(attributes: dict[str, str], x: str, grid: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build("GridSample", attributes).infer(parse_spec(x), parse_spec(grid))


def test_seven_spatial_axes_are_refused_on_a_device() -> None:
    make = GraphBuilder()
    x, grid = make.input("x", *(1,) * 9), make.input("grid", *(1,) * 8, 7)
    graph = make.graph(make.node(GridSample(), x, grid))
    specs = {"x": parse_spec("float32[" + "1," * 8 + "1]"), "grid": parse_spec("float32[" + "1," * 8 + "7]")}
    with pytest.raises(InputError, match="at most 6 spatial axes"):
        plan_graph(graph, specs, Target.named("sm_90"))
