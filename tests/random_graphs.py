"""Random forked graphs over one free dimension, of every form of lowering the test operators have."""

from __future__ import annotations

import random

import numpy as np

from gpuexec.graph import Graph, Value
from tests.operators import Flip, GraphBuilder, Halves, Join, Scale, Sum


def random_graph(seed: int, nodes: int = 14) -> Graph:
    """Return a graph of one input ``x`` ``[n, 4]`` (n even) whose values are ``[k * n, 4]`` or halves of it."""
    rng = random.Random(seed)
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    # Values by their extent relative to n (in halves), so that the graph fits any even n.
    values: list[tuple[Value, int]] = [(x, 2), (build.constant(np.arange(4, dtype=np.float32).reshape(1, 4)), 0)]
    for _ in range(nodes):
        # Late values are chosen more often, which makes chains; early ones still are, which makes forks.
        value, extent = values[max(rng.randrange(len(values)), rng.randrange(len(values)))]
        kind = rng.random()
        if kind < 0.35 or extent == 0:
            values.append((build.node(Scale(rng.choice([0.5, 2.0, -1.0]), rng.choice([0.0, 1.0])), value), extent))
        elif kind < 0.65:
            same = [v for v, e in values if e in (extent, 0)]
            operands = [value, *rng.choices(same, k=rng.randint(1, 2))]
            values.append((build.node(Sum(), *operands), extent))
        elif kind < 0.8:
            values.append((build.node(Flip(), value), extent))
        elif kind < 0.9:
            other, more = rng.choice([row for row in values if row[1]])
            if extent + more <= 8:
                values.append((build.node(Join(), value, other), extent + more))
        elif extent % 2 == 0:
            first, second = build.nodes(Halves(), value, count=2)
            values += [(first, extent // 2), (second, extent // 2)]
    made = [value for value, _ in values[2:]] or [x]
    return build.graph(*rng.sample(made, min(len(made), rng.randint(1, 3))))
