"""TensorScatter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.command import Launch
from gpuexec.ir.operator import build
from gpuexec.ir.spec import DTYPES
from gpuexec.ops.tensor.tensor_scatter import TensorScatter
from gpuexec.planner.template import plan_graph
from tests.devices.execute import run_template
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.harness import Array, Case, expect, run_case
from tests.ops.specs import parse_spec


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape]).integers(0, 2, shape).astype(np.float32).astype(dtype)


def cache(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def scatter(id: str, past: Array, update: Array, indices: Any = None, **attributes: Any) -> Case:
    given = () if indices is None else (np.asarray(indices, np.int64),)
    return Case(id, "TensorScatter", (past, update, *given), attributes)


PAST, UPDATE = cache(3, 2, 5, 4), -1 - cache(3, 2, 2, 4)
ENDLESS = 2**62
CASES = [
    *(Case(row.name, "TensorScatter",
           (numbers(2, 3, 2, dtype=row.numpy), numbers(2, 1, 2, dtype=row.numpy), np.array([2, 0])),
           expected=(np.stack([[*numbers(2, 3, 2, dtype=row.numpy)[0, :2], *numbers(2, 1, 2, dtype=row.numpy)[0]],
                               [*numbers(2, 1, 2, dtype=row.numpy)[1], *numbers(2, 3, 2, dtype=row.numpy)[1, 1:]]]),))
      for row in DTYPES),
    scatter("without_indices", PAST, UPDATE),
    scatter("linear", PAST, UPDATE, [3, 0, 1]),
    scatter("circular", PAST, UPDATE, [4, 0, 13], mode="circular"),
    scatter("circular_from_below", PAST, UPDATE, [-1, -5, -6], mode="circular"),
    scatter("circular_far", PAST, UPDATE, [ENDLESS, -ENDLESS, ENDLESS + 3], mode="circular"),
    replace(scatter("circular_extremes", PAST, UPDATE, [2**63 - 1, -(2**63), 2**63 - 2], mode="circular"),
            expected=expect(scatter("the_same", PAST, UPDATE, [2, 2, 1], mode="circular"))),
    scatter("whole", PAST, -PAST, [0, 0, 0]),
    scatter("whole_turned", PAST, -PAST, [3, 0, 1], mode="circular"),
    scatter("first_of_the_others", cache(2, 5, 3), -cache(2, 1, 3), [4, 2], axis=1),
    scatter("last_axis", cache(2, 3, 5), -cache(2, 3, 2), [1, 3], axis=-1),
    scatter("two_axes", cache(3, 4), -1 - cache(3, 2), [2, 0, 1], axis=1),
    scatter("eight_axes", cache(2, 1, 2, 3, 1, 2, 1, 2), -cache(2, 1, 2, 1, 1, 2, 1, 2), [2, 1], axis=3),
    scatter("strided", cache(6, 4, 5, 4)[::-2, ::2, ::-1], -cache(3, 4, 2, 4)[:, ::-2], np.array([3, 9, 0, 9, 1])[::2]),
    scatter("no_rows", PAST, UPDATE[:, :, :0], [5, 0, 1]),
    scatter("no_batch", PAST[:0], UPDATE[:0], []),
    scatter("no_cache", PAST[:, :, :0], UPDATE[:, :, :0], [0, 0, 0], mode="circular"),
    Case("beyond", "TensorScatter", (cache(2, 3, 1), -1 - cache(2, 2, 1), np.array([2, -1])),
         refusal="got write index 2", expected=(np.array([[[0], [1], [-1]], [[-4], [4], [5]]], np.float32),)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_tensor_scatter(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=5),
    st.integers(1, 4),
    st.sampled_from(["linear", "circular"]),
    st.integers(0, 99),
)
def test_any_cache_is_written_as_the_reference_does(
    checks: str, shape: list[int], axis: int, mode: str, seed: int
) -> None:
    axis = 1 + axis % (len(shape) - 1)
    random = np.random.default_rng(seed)
    rows = int(random.integers(0, shape[axis] + 1))
    update = -1 - cache(*shape[:axis], rows, *shape[axis + 1 :])
    low, high = (0, shape[axis] - rows + 1) if mode == "linear" else (-9, 9)
    indices = random.integers(low, high, shape[0])
    run_case(scatter("drawn", cache(*shape), update, indices, axis=axis, mode=mode), checks)


def test_a_cache_that_nobody_reads_afterwards_is_written_in_place() -> None:
    make, x = GraphBuilder(), np.abs(PAST) + 1
    value, update = make.input("x", *x.shape), make.input("update", *UPDATE.shape)
    past = make.node(build("Sqrt", {}), value)
    graph = make.graph(make.node(TensorScatter(), past, update, make.constant(np.array([3, 0, 1]), "indices")))
    specs = {"x": parse_spec("float32[3,2,5,4]"), "update": parse_spec("float32[3,2,2,4]")}
    device = open_living("simulator")
    template = plan_graph(graph, specs, device.target)
    launches = [each for each in template.plan.segment.commands if isinstance(each, Launch)]
    assert launches[-1].arguments[0] == launches[-1].arguments[3]
    (y,) = run_template(template, graph, {"x": x, "update": UPDATE}, device)
    (expected,) = TensorScatter().compute(np.sqrt(x), UPDATE, np.array([3, 0, 1]))
    np.testing.assert_array_equal(y, expected)


def test_attributes_are_those_of_the_standard() -> None:
    attributes = onnx.defs.get_schema("TensorScatter").attributes
    given = {name: onnx.helper.get_attribute_value(each.default_value) for name, each in attributes.items()}
    assert TensorScatter(axis=given["axis"], mode=given["mode"].decode()) == TensorScatter()


@pytest.mark.parametrize(
    ("attributes", "specs", "message"),
    [
        ({"mode": "ring"}, "float32[1,3,2] float32[1,1,2]", "mode among linear, circular"),
        ({"axis": 0}, "float32[1,3,2] float32[1,1,2]", "any but the first"),
        ({"axis": -3}, "float32[1,3,2] float32[1,1,2]", "any but the first"),
        ({"axis": 3}, "float32[1,3,2] float32[1,1,2]", "axis"),
        ({}, "float32[1,3,2] float16[1,1,2]", "an update of the type of the cache"),
        ({}, "float32[1,3,2] float32[1,4,2]", "at most 3 rows"),
        ({}, "float32[1,3,2] float32[1,1,1]", "as large as the cache"),
        ({}, "float32[1,3,2] float32[1,2]", "as large as the cache"),
        ({}, "float32[1,3,2] float32[1,1,2] int32[1]", "write_indices of type int64"),
        ({}, "float32[1,3,2] float32[1,1,2] int64[2]", "a write index per batch entry"),
    ],
)
def test_infer_refuses(attributes: dict[str, Any], specs: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TensorScatter(**attributes).infer(*map(parse_spec, specs.split()))
