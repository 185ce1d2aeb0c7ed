"""Col2Im."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.spec import COMPUTED, TensorSpec, accumulator
from gpuexec.ir.target import Target
from gpuexec.ops.vision.col2im import Col2Im
from gpuexec.planner.template import plan_graph
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Array, Case, expect, run_case
from tests.ops.specs import parse_spec


def count_blocks(image: Any, block: Any, attributes: dict[str, Any]) -> int:
    axes = len(image)
    strides, dilations = (attributes.get(name, [1] * axes) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * axes)
    spans = [(n - 1) * d + 1 for n, d in zip(block, dilations)]
    return int(np.prod([(image[k] + pads[k] + pads[axes + k] - spans[k]) // strides[k] + 1 for k in range(axes)]))


def columns(
    batch: int, channels: int, image: Any, block: Any, attributes: dict[str, Any], dtype: Any, seed: int
) -> Array:
    shape = (batch, channels * int(np.prod(block)), count_blocks(image, block, attributes))
    random = np.random.default_rng([*shape, seed])
    if np.dtype(dtype).kind in "biu":
        return random.integers(0, 2 if np.dtype(dtype).kind == "b" else 120, shape).astype(dtype)
    return random.normal(0, 1, shape).astype(np.float32).astype(dtype)


def fold(id: str, image: Any, block: Any, batch: int = 2, channels: int = 2, dtype: Any = np.float32, seed: int = 0,
         **attributes: Any) -> Case:  # fmt: skip
    """A case whose answer is the reference's in the type to add in, rounded once."""
    x = columns(batch, channels, image, block, attributes, dtype, seed)
    return answer(id, x, image, block, **attributes)


def answer(id: str, x: Array, image: Any, block: Any, **attributes: Any) -> Case:
    shapes = (np.array(image, np.int64), np.array(block, np.int64))
    with np.errstate(all="ignore"):
        (y,) = expect(Case(id, "Col2Im", (x.astype(accumulator(x.dtype)), *shapes), attributes))
    expected = (y.astype(x.dtype),)
    terms = 2 * int(np.prod(block))
    return Case(id, "Col2Im", (x, *shapes), attributes, const=(1, 2), expected=expected, terms=terms)


CASES = [
    *(fold(row.name, (4, 3), (2, 2), dtype=row.numpy) for row in COMPUTED),
    fold("strides", (5, 6), (2, 3), strides=[2, 1]),
    fold("dilations", (6, 6), (2, 3), dilations=[3, 2]),
    fold("pads", (4, 5), (3, 2), pads=[1, 0, 2, 1]),
    fold("all_of_them", (7, 8), (3, 2), strides=[2, 3], dilations=[2, 1], pads=[1, 2, 0, 1]),
    fold("gaps", (7, 7), (2, 2), strides=[5, 5]),
    fold("line", (9,), (3,), strides=[2]),
    fold("volume", (3, 4, 5), (2, 1, 3), strides=[1, 2, 1]),
    fold("six_axes", (2, 1, 3, 2, 1, 2), (1, 1, 2, 2, 1, 1), channels=1),
    fold("whole_image", (3, 4), (3, 4)),
    fold("many", (30, 20), (3, 3), pads=[1, 1, 1, 1]),
    answer("wrapping", np.full((1, 4, 4), 100, np.int8), (3, 3), (2, 2)),
    answer("or", np.ones((1, 4, 4), np.bool_), (3, 3), (2, 2)),
    answer("special_values", np.array([[[np.inf, 1], [-np.inf, np.nan]]], np.float32), (3,), (2,)),
    answer("strided", columns(4, 2, (4, 3), (2, 2), {}, np.float32, 0)[::-2, ::-1, ::-1], (4, 3), (2, 2)),
    Case("no_batch", "Col2Im", (np.zeros((0, 4, 4), np.float32), np.array([3, 3]), np.array([2, 2])), const=(1, 2),
         expected=(np.zeros((0, 1, 3, 3), np.float32),)),
    Case("no_channels", "Col2Im", (np.zeros((2, 0, 4), np.float32), np.array([3, 3]), np.array([2, 2])), const=(1, 2),
         expected=(np.zeros((2, 0, 3, 3), np.float32),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_col2im(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(*[st.integers(1, 3)] * 4, st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_any_blocks_are_added_as_the_reference_does(checks: str, axes: list[tuple[int, ...]], seed: int) -> None:
    extra, block, strides, dilations, begins, ends = zip(*axes)
    image = [max(1, (k - 1) * d + e - b - f) for k, d, e, b, f in zip(block, dilations, extra, begins, ends)]
    pads = [*begins, *ends]
    if any((k - 1) * d + 1 > n + b + f for n, k, d, b, f in zip(image, block, dilations, begins, ends)):
        image = [n + 4 for n in image]
    run_case(
        fold("drawn", image, block, 1, 2, seed=seed, strides=list(strides), dilations=list(dilations), pads=pads),
        checks,
    )


def test_attributes_are_those_of_the_standard() -> None:
    assert set(onnx.defs.get_schema("Col2Im").attributes) == {f.name for f in dataclasses.fields(Col2Im)}


@pytest.mark.parametrize(
    ("attributes", "x", "image", "block", "message"),
    [
        ({}, "float32[4,4]", (3, 3), (2, 2), r"\[batch, channels \* taps, blocks\]"),
        ({}, "float32[1,4,4]", (3, 3), (2,), "extents of image and block"),
        ({}, "float32[1,4,4]", (3, 0), (2, 2), "of 1 or more"),
        ({}, "float32[1,5,4]", (3, 3), (2, 2), "a multiple of 4 rows"),
        ({}, "float32[1,4,5]", (3, 3), (2, 2), r"4 columns \(blocks \[2, 2\]"),
        ({"strides": (1,)}, "float32[1,4,4]", (3, 3), (2, 2), "strides"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], x: str, image: Any, block: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Col2Im(**attributes).infer(parse_spec(x), *(TensorSpec.of(np.array(each, np.int64)) for each in (image, block)))


def test_seven_spatial_axes_are_refused_on_a_device() -> None:
    build = GraphBuilder()
    ones = np.ones(7, np.int64)
    x = build.input("x", 1, 1, 1)
    graph = build.graph(build.node(Col2Im(), x, build.constant(ones, "image"), build.constant(ones, "block")))
    with pytest.raises(InputError, match="at most 6 spatial axes"):
        plan_graph(graph, {"x": parse_spec("float32[1,1,1]")}, Target.named("sm_90"))
