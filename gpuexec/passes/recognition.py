"""Search of a graph for operators that it spells out: what nodes compute is compared with formulas.

From a value on, as `x`, nodes are evaluated as terms (`gpuexec.passes.formulas`) as long as they are arithmetic. What
they make is compared with each formula, so neither the order of factors nor the operators that a number goes through
matter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from math import isfinite
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.spec import BFLOAT16
from gpuexec.passes.formulas import Algebra, Term, TooLongError, call
from gpuexec.system.mapped import read_content

# How far a formula's `x` may be above the node that it is looked for at; nodes that are evaluated from there on.
_MAX_CLIMB, _MAX_NODES = 6, 28
_ULPS = 4  # that numbers of a formula differ by between spellings
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_NARROW = (np.dtype(np.float16), BFLOAT16)


@dataclass(frozen=True, slots=True)
class Reader:
    """What an operator makes of terms.

    Attributes:
        read: Returns it, given the node and the terms of its inputs; None: it is no term.
        inputs: How many inputs are terms, the first ones; others are for the reader to look up. None: all.
    """

    read: Callable[[Cone, Node, Sequence[Term]], Term | None]
    inputs: int | None = None


@dataclass(frozen=True, slots=True)
class Spelling:
    """An operator, and the formula that graphs spell it as.

    Attributes:
        operator: Its name.
        anchor: An operator that is in each spelling; the formula is looked for around it.
        formula: Gives the result as a term of the inputs, and of the number.
        others: Names of the inputs behind ``x``.
        number: Name of the number that the graph has and the operator takes; empty: there is none.
        attributes: What the operator has beside.
    """

    operator: str
    anchor: str
    formula: Callable[..., Term]
    others: tuple[str, ...] = ()
    number: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Match:
    """Nodes that compute what an operator does.

    Attributes:
        spelling: The formula.
        anchor: The node that it was looked for at.
        x: The first input.
        others: The inputs behind it, by name.
        attributes: Of the operator.
        result: What is made.
        nodes: The nodes, in order; all but the last one make what nothing else reads.
    """

    spelling: Spelling
    anchor: Node
    x: Value
    others: Mapping[str, Value]
    attributes: Mapping[str, Any]
    result: Value
    nodes: tuple[Node, ...]


Place = Callable[[Match], tuple[Sequence[Node], Mapping[Value, Array]] | None]


def _read_power(_: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    exponent = terms[1].as_number
    return None if exponent is None else terms[0] ** exponent


def _read_function(_: Cone, node: Node, terms: Sequence[Term]) -> Term:
    return call(node.operator.name, *terms)


# The operators of arithmetic, by name.
ARITHMETIC: Mapping[str, Reader] = {
    "Add": Reader(lambda cone, node, terms: terms[0] + terms[1]),
    "Sub": Reader(lambda cone, node, terms: terms[0] - terms[1]),
    "Mul": Reader(lambda cone, node, terms: terms[0] * terms[1]),
    "Div": Reader(lambda cone, node, terms: terms[0] / terms[1]),
    "Neg": Reader(lambda cone, node, terms: -terms[0]),
    "Reciprocal": Reader(lambda cone, node, terms: 1.0 / terms[0]),
    "Sqrt": Reader(lambda cone, node, terms: terms[0] ** 0.5),
    "Pow": Reader(_read_power),
    **dict.fromkeys(("Erf", "Tanh", "Sigmoid", "Softplus", "Exp", "Log"), Reader(_read_function)),
}


class Facts:
    """What a search knows of values; by default nothing."""

    def find_dtype(self, value: Value) -> np.dtype[Any] | None:
        """Return the type of a value; None: it is not known."""
        return None

    def find_rank(self, value: Value) -> int:
        """Return how many axes a value has at least."""
        return 0

    def is_input(self, value: Value, x: Value) -> bool:
        """Return whether a value that is none of x may be an input of a formula of it."""
        return False


class Recognition:
    """Search of a graph.

    Args:
        graph: The graph.
        spellings: What to look for.
        facts: What is known of values.
        readers: Operators that are evaluated, by name.
        narrow: Those of them whose results may be of 16 bits; others would round where the formula doesn't.
        climbed: Those that may stand between ``x`` and the node that a formula is looked for at; empty: all.
    """

    def __init__(
        self,
        graph: Graph,
        spellings: Sequence[Spelling],
        facts: Facts,
        readers: Mapping[str, Reader] = ARITHMETIC,
        narrow: Sequence[str] = (),
        climbed: Sequence[str] = (),
    ) -> None:
        self.graph, self.facts, self.readers, self.narrow = graph, facts, readers, narrow
        self._climbed = climbed or tuple(readers)
        self.producers, self.consumers = graph.producers(), graph.consumers()
        self.positions = {id(node): position for position, node in enumerate(graph.nodes)}
        self._outputs = set(graph.outputs)
        self._spellings: dict[str, list[Spelling]] = {}
        for spelling in spellings:
            self._spellings.setdefault(spelling.anchor, []).append(spelling)
        self._algebras: dict[np.dtype[Any], Algebra] = {}
        self._known: dict[object, Term] = {}  # formulas that were evaluated

    def replace(self, place: Place) -> Graph:
        """Return the graph with nodes in place of what is found, the longest spelling at each place.

        Args:
            place: Returns the nodes that compute a match, the last one its result, and the constants that they read
                beside; None: it is none after all.
        """
        gone: set[int] = set()
        put: dict[int, Sequence[Node]] = {}
        constants: dict[Value, Array] = {}
        for anchor in self.graph.nodes:
            if anchor.operator.name not in self._spellings or id(anchor) in gone:
                continue
            matches = [match for x in self._list_sources(anchor) for match in self._explore(anchor, x)]
            for match in sorted(matches, key=lambda match: -len(match.nodes)):
                inside = set(map(id, match.nodes))
                placed = place(match) if gone.isdisjoint(inside) else None
                if placed is not None:
                    put[id(match.nodes[-1])], added = placed
                    constants.update(added)
                    gone |= inside
                    break
        if not gone:
            return self.graph
        nodes: list[Node] = []
        for node in self.graph.nodes:
            nodes += put.get(id(node), ())
            if id(node) not in gone:
                nodes.append(node)
        return replace(self.graph, nodes=tuple(nodes), constants={**self.graph.constants, **constants})

    def read_number(self, value: Value, rank: int) -> float | None:
        """Return a constant of one element that stretches nothing of that many axes."""
        array = self.graph.constants.get(value)
        if array is None or array.size != 1 or array.ndim > rank:
            return None
        if array.dtype.kind not in "iu" and array.dtype not in (_FLOAT, _DOUBLE, *_NARROW):
            return None
        return float(np.asarray(read_content(array)).reshape(()))

    def _list_sources(self, anchor: Node) -> list[Value]:
        """Return the values above a node that the formula may be one of, the nearest first."""
        found: dict[Value, None] = {}
        level = [value for value in anchor.inputs[:1] if value is not None]
        for _ in range(_MAX_CLIMB):
            found.update(dict.fromkeys(level))
            makers = [node for value in level if (node := self.producers.get(value)) is not None]
            above = [value for node in makers if node.operator.name in self._climbed for value in node.inputs]
            level = [value for value in dict.fromkeys(above) if value is not None and value not in found]
            level = [value for value in level if value not in self.graph.constants]
        return list(found)

    def _explore(self, anchor: Node, x: Value) -> list[Match]:
        """Return the matches around a node whose formulas are of one value."""
        dtype = self.facts.find_dtype(x)
        if dtype not in (_FLOAT, _DOUBLE, *_NARROW):
            return []
        wide = _DOUBLE if dtype == _DOUBLE else _FLOAT
        if wide not in self._algebras:
            self._algebras[wide] = Algebra(_ULPS * float(np.finfo(wide).eps))
        cone = Cone(self, anchor, x, self._algebras[wide])
        return [match for value in cone.results for match in self._compare(cone, value)]

    def _compare(self, cone: Cone, value: Value) -> list[Match]:
        """Return the formulas that a value is the result of."""
        nodes, found = cone.list_nodes(value), []
        others = cone.list_others(nodes)
        able = [each for each in self._spellings[cone.anchor.operator.name] if len(each.others) == len(others)]
        if not able or not self._is_closed(nodes, value):
            return []
        for spelling in able:
            for order in permutations(others):
                for number in cone.numbers if spelling.number else (None,):
                    if self._evaluate(spelling, cone, order, number).equals(cone.terms[value]):
                        inputs = dict(zip(spelling.others, order, strict=True))
                        named = {**spelling.attributes, **({} if number is None else {spelling.number: number})}
                        found.append(Match(spelling, cone.anchor, cone.x, inputs, named, value, nodes))
        return found

    def _evaluate(self, spelling: Spelling, cone: Cone, order: Sequence[Value], number: float | None) -> Term:
        indices = tuple([cone.others[value] for value in order])
        key = id(spelling), id(cone.algebra), indices, number
        if key not in self._known:
            inputs = [cone.algebra.input(0), *map(cone.algebra.input, indices)]
            self._known[key] = spelling.formula(*inputs, *(() if number is None else (number,)))
        return self._known[key]

    def _is_closed(self, nodes: Sequence[Node], result: Value) -> bool:
        """Return whether nothing else reads what nodes make, but for the result."""
        inside = set(map(id, nodes))
        made = [value for node in nodes for value in node.outputs if value is not None and value is not result]
        readers = [reader for value in made for reader in self.consumers.get(value, ())]
        return self._outputs.isdisjoint(made) and inside.issuperset(map(id, readers))


class Cone:
    """What is made of a value by nodes that are evaluated.

    Attributes:
        search: What evaluates them.
        anchor: The node that is looked around.
        x: The value.
        terms: By value.
        results: The values that the anchor has part in, in order.
        others: Numbers of the inputs beside x.
        numbers: Constants of one element.
        aside: Values whose axes don't line up with those of x, as those of a reduction that drops axes.
    """

    def __init__(self, search: Recognition, anchor: Node, x: Value, algebra: Algebra) -> None:
        self.search, self.anchor, self.x, self.algebra = search, anchor, x, algebra
        self.terms: dict[Value, Term] = {x: algebra.input(0)}
        self.results: list[Value] = []
        self.others: dict[Value, int] = {}
        self.numbers: dict[float, None] = {}
        self.aside: set[Value] = set()
        self._nodes: dict[Value, Node] = {}
        self._grow()

    def list_nodes(self, value: Value) -> tuple[Node, ...]:
        """Return the nodes that lead from x to a value, in order."""
        found: dict[int, Node] = {}
        stack: list[Value | None] = [value]
        while stack:
            each = stack.pop()
            node = self._nodes.get(each) if each is not None else None
            if node is not None and self.search.positions[id(node)] not in found:
                found[self.search.positions[id(node)]] = node
                stack += node.inputs
        return tuple([found[position] for position in sorted(found)])

    def list_others(self, nodes: Sequence[Node]) -> list[Value]:
        """Return the inputs beside x that nodes read."""
        return list(dict.fromkeys(value for node in nodes for value in node.inputs if value in self.others))

    def _grow(self) -> None:
        """Evaluate the readers of x, and those of what they make, in the order of the graph."""
        search, waiting, seen = self.search, list[int](), set[int]()
        behind: set[Value] = set()
        self._await(self.x, waiting, seen)
        while waiting and len(self._nodes) < _MAX_NODES:
            node = search.graph.nodes[heapq.heappop(waiting)]
            made = node.outputs[0] if len(node.outputs) == 1 else None
            if made is None or (term := self._evaluate(node, made)) is None:
                continue
            self.terms[made], self._nodes[made] = term, node
            if node is self.anchor or not behind.isdisjoint(node.inputs):
                behind.add(made)
                self.results.append(made)
            self._await(made, waiting, seen)

    def _await(self, value: Value, waiting: list[int], seen: set[int]) -> None:
        for reader in self.search.consumers.get(value, ()):
            position = self.search.positions[id(reader)]
            if position not in seen and reader.operator.name in self.search.readers:
                seen.add(position)
                heapq.heappush(waiting, position)

    def _evaluate(self, node: Node, made: Value) -> Term | None:
        """Return what a node makes; None where it is no term."""
        name, dtype = node.operator.name, self.search.facts.find_dtype(made)
        if dtype not in (_FLOAT, _DOUBLE) and not (dtype in _NARROW and name in self.search.narrow):
            return None
        reader = self.search.readers[name]
        inputs = node.inputs[: reader.inputs]
        terms = self._read_inputs(inputs)
        read = {value for value in inputs if value in self.terms or value in self.others}
        if terms is None or not (self.aside.isdisjoint(read) or self.aside.issuperset(read)):
            return None
        if not self.aside.isdisjoint(read):
            self.aside.add(made)
        try:
            return reader.read(self, node, terms)
        except (TooLongError, ArithmeticError):
            return None

    def _read_inputs(self, inputs: Sequence[Value | None]) -> list[Term] | None:
        terms = []
        ranks = [self.search.facts.find_rank(value) for value in inputs if value is not None and value in self.terms]
        for value in inputs:
            term = None if value is None else self.terms.get(value) or self._read_other(value, max(ranks, default=0))
            if term is None:
                return None
            terms.append(term)
        return terms

    def _read_other(self, value: Value, rank: int) -> Term | None:
        number = self.search.read_number(value, rank)
        if number is not None:
            if isfinite(number):
                self.numbers[number] = None
            return self.algebra.number(number)
        if not self.search.facts.is_input(value, self.x):
            return None
        return self.algebra.input(self.others.setdefault(value, 1 + len(self.others)))
