"""Random forked graphs over one free dimension, of every form of lowering the test operators have."""

from __future__ import annotations

import random

import numpy as np

from gpuexec.ir.graphs import Graph, Value
from tests.ir.graph_builder import GraphBuilder
from tests.ops.operators import Flip, Halves, Join, Scale, Sum


def random_graph(seed: int, nodes: int = 20) -> Graph:
    """Return a graph of one input ``x`` ``[n, 4]`` (n even) whose values are ``[k * n, 4]`` or halves of it."""
    rng = random.Random(seed)
    build = GraphBuilder()
    x = build.input("x", "n", 4)
    # Values by their extent relative to n (in halves), so that the graph fits any even n.
    values: list[tuple[Value, int]] = [(x, 2), (build.constant(np.arange(4, dtype=np.float32).reshape(1, 4)), 0)]
    read: set[Value] = set()

    def choose(rows: list[tuple[Value, int]]) -> tuple[Value, int]:
        """Choose mostly values without readers, which makes chains and joins; else anything, which makes forks."""
        unread = [row for row in rows if row[0] not in read]
        row = rng.choice(unread if unread and rng.random() < 0.6 else rows)
        read.add(row[0])
        return row

    for _ in range(nodes):
        value, extent = choose(values)
        kind = rng.random()
        if kind < 0.35 or extent == 0:
            values.append((build.node(Scale(rng.choice([0.5, 2.0, -1.0]), rng.choice([0.0, 1.0])), value), extent))
        elif kind < 0.65:
            same = [row for row in values if row[1] in (extent, 0)]
            operands = [choose(same)[0] for _ in range(rng.randint(1, 2))]
            values.append((build.node(Sum(), value, *operands), extent))
        elif kind < 0.8:
            values.append((build.node(Flip(), value), extent))
        elif kind < 0.9:
            other, more = choose([row for row in values if row[1]])
            if extent + more <= 8:
                values.append((build.node(Join(), value, other), extent + more))
        elif extent % 2 == 0:
            first, second = build.nodes(Halves(), value, count=2)
            values += [(first, extent // 2), (second, extent // 2)]
    # Whatever nobody reads is an output, so that little is dead; and one value that is read besides.
    made = [value for value, _ in values[2:]]
    return build.graph(*(value for value in made if value not in read), rng.choice([*made, x]))
