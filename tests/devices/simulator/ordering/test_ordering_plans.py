"""Edges of plans under the order checker, which agrees with ``verify`` on removed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.operations import Access, Operation
from gpuexec.devices.simulator.ordering import Ordering
from gpuexec.errors import OrderError, PlanError
from gpuexec.ir.plan import Plan, Segment
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.edges import Edge, find_paths
from gpuexec.planner.template import plan_graph
from gpuexec.planner.verify import verify
from tests.ir.random_graphs import random_graph

SEEDS = range(40)
_ARENA, _STEP = 1 << 40, 1 << 30


def make_plan(seed: int) -> tuple[Plan, Segment]:
    spec = TensorSpec((16, 4), np.dtype(np.float32))
    plan = plan_graph(random_graph(seed), {"x": spec}, Target.named("sm_80")).plan
    segment = plan.segment
    return plan, segment


def list_operations(plan: Plan, segment: Segment) -> tuple[AddressMap, list[Operation]]:
    """Return memory for a plan, the arena being one allocation, and its commands as operations on that."""
    blocks = AddressMap()
    places = {buffer: _ARENA + offset for buffer, offset in plan.layout.offsets}
    blocks.add(_ARENA, plan.layout.nbytes)
    for buffer in plan.buffers:
        if buffer.id not in places:
            places[buffer.id] = (1 + buffer.id) * _STEP
            blocks.add(places[buffer.id], buffer.nbytes)
    operations = []
    for command in segment.commands:
        used = [(slot, False) for slot in command.reads_from()] + [(slot, True) for slot in command.writes_to()]
        accesses = []
        for slot, is_write in used:
            low, high = slot.byte_range()
            if low < high:
                accesses.append(Access(places[slot.buffer] + low, high - low, is_write))
        operations.append(Operation("command", lambda: None, tuple(accesses)))
    return blocks, operations


def is_refused(blocks: AddressMap, operations: Sequence[Operation], edges: Sequence[Edge]) -> bool:
    """Return whether a stream refuses a graph of the operations, launched twice."""
    ordering = Ordering({"memory": blocks}, lambda: True, is_on=True)
    timeline = ordering.open_timeline()
    try:
        for _ in range(2):
            ordering.add_graph(timeline, operations, range(len(operations)), find_paths(len(operations), edges))
    except OrderError:
        return True
    return False


def has_conflict(operations: Sequence[Operation], edges: Sequence[Edge]) -> bool:
    """Return whether two operations that no path joins use a common byte, one of them writing."""
    paths = find_paths(len(operations), edges)
    return any(
        a.address < b.address + b.nbytes and b.address < a.address + a.nbytes and (a.is_write or b.is_write)
        for first, second in combinations(range(len(operations)), 2)
        if not paths[second] >> first & 1
        for a in operations[first].accesses
        for b in operations[second].accesses
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_removed_edge_is_found_where_it_kept_uses_of_a_byte_apart(seed: int) -> None:
    """``verify`` refuses more: buffers that take over another's bytes are kept apart for every size of the class."""
    plan, segment = make_plan(seed)
    blocks, operations = list_operations(plan, segment)
    assert not is_refused(blocks, operations, segment.edges)
    for edge in segment.edges:
        left = tuple(each for each in segment.edges if each != edge)
        with pytest.raises(PlanError):
            verify(replace(plan, segment=replace(segment, edges=left)))
        assert is_refused(blocks, operations, left) == has_conflict(operations, left)


def test_nearly_every_edge_keeps_uses_of_a_byte_apart() -> None:
    found = []
    for seed in SEEDS:
        plan, segment = make_plan(seed)
        blocks, operations = list_operations(plan, segment)
        found += [is_refused(blocks, operations, [e for e in segment.edges if e != edge]) for edge in segment.edges]
    assert len(found) > 300 and found.count(False) < len(found) // 20
