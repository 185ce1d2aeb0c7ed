"""Random programs over streams, events, graphs and the host, against a slow oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.operations import Access, Operation
from gpuexec.devices.simulator.ordering import Ordering
from gpuexec.errors import OrderError

NBYTES = 32
HOST = -1


@dataclass
class Oracle:
    """Every action with all those before it, found by following each edge; and every byte used, for ever."""

    before: list[set[int]] = field(default_factory=list)
    uses: list[tuple[int, int, bool]] = field(default_factory=list)

    def act(self, *after: int) -> int:
        self.before.append(set(after).union(*(self.before[other] for other in after)))
        return len(self.before) - 1

    def use(self, action: int, first: int, last: int, is_write: bool) -> bool:
        """Return whether the use is in order, and note it if so."""
        for byte in range(first, last):
            for other, used, was_write in self.uses:
                if used == byte and (is_write or was_write) and other != action and other not in self.before[action]:
                    return False
        self.uses += [(action, byte, is_write) for byte in range(first, last)]
        return True


class Program:
    """Random program, given to the order checker and to the oracle."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        blocks = AddressMap()
        blocks.add(1000, NBYTES)
        self.ordering = Ordering({"memory": blocks}, lambda: True, True)
        self.oracle = Oracle()
        count = self.random.randint(2, 4)
        self.timelines = [self.ordering.open_timeline() for _ in range(count)]
        # The last action of each stream, and of the host.
        self.last = {stream: self.oracle.act() for stream in (HOST, *range(count))}
        self.marks: list[tuple[int, object]] = []
        self.outcomes: list[tuple[bool, bool]] = []

    def draw_access(self) -> tuple[int, int, bool]:
        first, last = sorted(self.random.sample(range(NBYTES + 1), 2))
        return first, min(last, first + 8), self.random.random() < 0.5

    def step(self) -> None:
        stream = self.random.randrange(len(self.timelines))
        getattr(self, self.random.choice(["operate", "operate", "operate", "graph", "record", "wait", "see", "touch"]))(
            stream
        )

    def operate(self, stream: int) -> None:
        accesses = [self.draw_access() for _ in range(self.random.randint(1, 2))]
        action = self.oracle.act(self.last[stream], self.last[HOST])
        self.put(stream, [(action, accesses)], [0], [action])

    def graph(self, stream: int) -> None:
        count = self.random.randint(2, 4)
        before, nodes = [0] * count, list[tuple[int, list[tuple[int, int, bool]]]]()
        for node in range(count):
            after = [other for other in range(node) if self.random.random() < 0.6]
            for other in after:
                before[node] |= before[other] | 1 << other
            action = self.oracle.act(self.last[stream], self.last[HOST], *(nodes[other][0] for other in after))
            nodes.append((action, [self.draw_access()]))
        self.put(stream, nodes, before, [action for action, _ in nodes])

    def put(
        self,
        stream: int,
        nodes: list[tuple[int, list[tuple[int, int, bool]]]],
        before: list[int],
        actions: list[int],
    ) -> None:
        kept = list(self.oracle.uses)
        is_right = all(self.oracle.use(action, *access) for action, accesses in nodes for access in accesses)
        operations = [
            Operation("op", lambda: None, tuple(Access(1000 + first, last - first, w) for first, last, w in accesses))
            for _, accesses in nodes
        ]
        try:
            self.ordering.add_graph(self.timelines[stream], operations, range(len(nodes)), before)
        except OrderError:
            self.outcomes.append((False, is_right))
        else:
            self.outcomes.append((True, is_right))
        if is_right:
            self.last[stream] = self.oracle.act(self.last[stream], *actions)
        else:
            self.oracle.uses = kept

    def record(self, stream: int) -> None:
        self.marks.append((self.last[stream], self.ordering.mark(self.timelines[stream])))

    def wait(self, stream: int) -> None:
        if self.marks:
            action, mark = self.random.choice(self.marks)
            self.ordering.wait(self.timelines[stream], mark)  # type: ignore[arg-type]
            self.last[stream] = self.oracle.act(self.last[stream], action)

    def see(self, _: int) -> None:
        if self.marks and self.random.random() < 0.5:
            action, mark = self.random.choice(self.marks)
            self.ordering.see(mark)  # type: ignore[arg-type]
            self.last[HOST] = self.oracle.act(self.last[HOST], action)

    def touch(self, _: int) -> None:
        first, last, is_write = self.draw_access()
        action = self.oracle.act(self.last[HOST])
        kept = list(self.oracle.uses)
        is_right = self.oracle.use(action, first, last, is_write)
        if is_right:
            self.last[HOST] = action
        else:
            self.oracle.uses = kept
        try:
            self.ordering.check_host(1000 + first, last - first, is_write)
        except OrderError:
            self.outcomes.append((False, is_right))
        else:
            self.outcomes.append((True, is_right))


@pytest.mark.parametrize("seed", range(60))
def test_random_program_is_refused_just_where_the_oracle_finds_no_path(seed: int) -> None:
    program = Program(seed)
    for _ in range(80):
        program.step()
    assert [got for got, _ in program.outcomes] == [expected for _, expected in program.outcomes]


def test_random_programs_are_both_right_and_wrong() -> None:
    outcomes = []
    for seed in range(60):
        program = Program(seed)
        for _ in range(60):
            program.step()
        outcomes += [expected for _, expected in program.outcomes]
    assert min(outcomes.count(True), outcomes.count(False)) > 200
