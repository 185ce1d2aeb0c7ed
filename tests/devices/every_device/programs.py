"""Random programs of the package's own elementwise operators, with forks and joins, views, in-place work and Concat."""

from __future__ import annotations

import random

import numpy as np

from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import build
from tests.ir.graph_builder import GraphBuilder

_ONE = ("Neg", "Abs", "Relu", "Floor")
_TWO = ("Add", "Sub", "Mul", "Max")


def make_program(seed: int, nodes: int = 14) -> Graph:
    """Return a graph of exact operators over one input ``x``, float32 ``[n, 8]`` for even n."""
    rng, graph = random.Random(seed), GraphBuilder()
    x = graph.input("x", "n", 8)
    weight = graph.constant(np.arange(-4, 4, dtype=np.float32) / 4)
    # Each value with its rows, in halves of n.
    values: list[tuple[Value, int]] = [(x, 2)]
    for _ in range(nodes):
        # The later of two draws makes chains, the other draw forks.
        value, rows = values[max(rng.randrange(len(values)), rng.randrange(len(values)))]
        kind = rng.random()
        if kind < 0.3:
            values.append((graph.node(build(rng.choice(_ONE), {}), value), rows))
        elif kind < 0.7:
            other = rng.choice([v for v, r in values if r == rows] + [weight])
            values.append((graph.node(build(rng.choice(_TWO), {}), value, other), rows))
        elif kind < 0.85:
            other, more = rng.choice(values)
            if rows + more <= 8:
                values.append((graph.node(build("Concat", {"axis": 0}), value, other), rows + more))
        elif rows % 2 == 0:
            split = build("Split", {"axis": 0, "num_outputs": 2})
            values += [(half, rows // 2) for half in graph.nodes(split, value, count=2)]
    made = [value for value, _ in values[1:]]
    return graph.graph(*rng.sample(made, min(len(made), rng.randint(1, 3))))


def make_input(seed: int, rows: int) -> dict[str, np.ndarray]:
    """Return an input of small multiples of 1/8."""
    rng = np.random.default_rng(seed)
    return {"x": (rng.integers(-16, 16, (rows, 8)) / 8).astype(np.float32)}
