"""Size classes: buckets, upper ends, declared dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.classes import (
    DeclaredDims,
    bucket_end,
    check_declared,
    find_ends,
    free_axes,
    range_ends,
    upper_ends,
)
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import FLOAT, Scale


@pytest.mark.parametrize(
    ("extent", "end"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (5, 8), (128, 128), (129, 256), (256, 256), (257, 512), (512, 512), (513, 768)],
)
def test_bucket_ends_at_powers_of_two_then_at_multiples_of_256(extent: int, end: int) -> None:
    assert bucket_end(extent) == end


def graph() -> Graph:
    build = GraphBuilder()
    x = build.input("x", "past", 4)
    build.input("y", "total", None)
    return build.graph(build.node(Scale(), x))


def ends(past: int, total: int, last: int = 1, declared: DeclaredDims | None = None) -> list[tuple[int, ...]]:
    specs = {"x": TensorSpec((past, 4), FLOAT), "y": TensorSpec((total, last), FLOAT)}
    return [(*e["x"].shape, *e["y"].shape) for e in upper_ends(graph(), specs, declared or {})]


def test_free_axes_are_named_or_nameless() -> None:
    assert free_axes(graph(), {}) == {("x", 0): "past", ("y", 0): "total", ("y", 1): ""}
    assert free_axes(graph(), {"past": 3}) == {("y", 0): "total", ("y", 1): ""}


@pytest.mark.parametrize(
    ("past", "total", "declared", "expected"),
    [
        (19, 20, {}, [(32, 4, 32, 1), (31, 4, 32, 1), (19, 4, 20, 1)]),
        (32, 33, {}, [(32, 4, 64, 1), (63, 4, 64, 1), (32, 4, 33, 1)]),
        (64, 128, {}, [(64, 4, 128, 1)]),
        (1, 0, {}, [(1, 4, 0, 1)]),
        (3, 20, {"past": 3}, [(3, 4, 32, 1), (3, 4, 20, 1)]),
        (19, 20, {"past": (0, 128), "total": (0, 128)}, [(128, 4, 128, 1), (127, 4, 128, 1), (19, 4, 20, 1)]),
        (0, 1, {"past": (0, 8)}, [(8, 4, 1, 1), (0, 4, 1, 1)]),
    ],
)
def test_upper_ends_come_alone_together_and_exact(
    past: int, total: int, declared: DeclaredDims, expected: list[tuple[int, ...]]
) -> None:
    assert ends(past, total, declared=declared) == expected


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ((1, 64), (1, 4, 16, 64)),
        ((0, 3), (1, 3)),
        ((1, 1), (1,)),
        ((5, 600), (16, 64, 128, 256, 512, 600)),
        ((70, 100), (100,)),
        ((64, 128), (64, 128)),
    ],
)
def test_classes_of_a_range_end_at_1_4_16_64_and_powers_of_two(
    bound: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert range_ends(*bound) == expected


@pytest.mark.parametrize(("extent", "end"), [(0, 1), (1, 1), (2, 4), (17, 64), (65, 100), (100, 100)])
def test_an_extent_of_a_range_is_in_the_class_that_ends_next(extent: int, end: int) -> None:
    specs = {"x": TensorSpec((extent, 4), FLOAT), "y": TensorSpec((20, 1), FLOAT)}
    declared: DeclaredDims = {"past": (0, 100)}
    assert find_ends(graph(), specs, declared, is_whole=False) == {("x", 0): end, ("y", 0): 32}
    assert find_ends(graph(), specs, declared, is_whole=True) == {("x", 0): 100, ("y", 0): 32}


def test_extent_outside_its_declared_range_is_refused() -> None:
    with pytest.raises(InputError, match=r"'x': axis 0 has extent 129, outside 0 to 128 declared of 'past'"):
        ends(129, 130, declared={"past": (0, 128)})


@pytest.mark.parametrize(
    "declared",
    [{"pas": 3}, {"past": -1}, {"past": (5, 2)}, {"past": "3"}, {"past": True}, {"past": (0, 2.5)}, {"past": (1,)}],
)
def test_declared_dimensions_are_checked(declared: Any) -> None:
    with pytest.raises(InputError, match="past"):
        check_declared(graph(), declared)


def test_declared_dimensions_are_ints_whatever_they_came_as() -> None:
    declared = check_declared(graph(), {"past": np.int64(3), "total": [np.int32(0), 9]})
    assert declared == {"past": 3, "total": (0, 9)} and type(declared["past"]) is int
