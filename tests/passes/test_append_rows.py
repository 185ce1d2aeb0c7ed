"""The pass append_rows: a Concat of a memory with new rows becomes an Append, and nothing else does."""

from __future__ import annotations

import numpy as np
import pytest

from gpuexec.ir.graphs import Graph, check
from gpuexec.ops.tensor.append import Append
from gpuexec.passes.append_rows import append_rows, find_growth
from tests.devices.execute import run_graph
from tests.passes.harness import load, operators

HEAD = "g (float[2, past] held, float[2, n] x) => (float[2, all] joined, float[2, all] y)"


def grow(text: str, capacity: int = 9) -> Graph | None:
    graph = load(text)
    held, output = graph.inputs[0], graph.outputs[0]
    growth = find_growth(graph, held, output)
    return None if growth is None else append_rows(graph, held, output, growth, capacity)


@pytest.mark.parametrize(
    "body",
    [
        "joined = Concat <axis = 1> (held, x) y = Neg (joined)",
        "joined = Concat <axis = -1> (held, x) y = Neg (joined)",
        "a = Concat <axis = 1> (held, x) joined = Identity (a) y = Neg (a)",
        "a = Concat <axis = 1> (held, x) b = Identity (a) joined = Identity (b) y = Neg (b)",
    ],
)
def test_concat_of_the_memory_and_rows_is_an_append(body: str) -> None:
    graph = grow(f"{HEAD} {{ {body} }}")
    assert graph is not None
    check(graph)
    assert operators(graph) == ["gpuexec.Append", "Neg"]
    assert graph.nodes[0].operator == Append(1, 9, "held")
    held, x = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)
    joined, y = run_graph(graph, {"held": held, "x": x})
    np.testing.assert_array_equal(joined, np.concatenate([held, x], 1))
    np.testing.assert_array_equal(y, -joined)


@pytest.mark.parametrize(
    "body",
    [
        "joined = Concat <axis = 1> (x, held) y = Neg (joined)",
        "joined = Concat <axis = 1> (held, x, x) y = Neg (joined)",
        "joined = Concat <axis = 1> (x, x) y = Neg (held)",
        "a = Concat <axis = 1> (held, x) joined = Abs (a) y = Neg (a)",
        "y = Concat <axis = 1> (held, x) joined = Identity (y)",
    ],
)
def test_other_ways_to_make_an_output_are_none(body: str) -> None:
    assert grow(f"{HEAD} {{ {body} }}") is None
