"""Recognition of activations in the nodes that exporters write them as."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import pi, sqrt
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.passes.formulas import Term, call
from gpuexec.passes.recognition import ARITHMETIC, Cone, Facts, Match, Reader, Recognition, Spelling
from gpuexec.passes.remove_noops import DTypes, find_dtypes


def _gelu(x: Term) -> Term:
    return 0.5 * x * (1 + call("Erf", x * sqrt(0.5)))


def _gelu_tanh(x: Term) -> Term:
    return 0.5 * x * (1 + call("Tanh", sqrt(2 / pi) * (x + 0.044715 * x**3)))


def _swish(x: Term, alpha: float = 1.0) -> Term:
    return x * call("Sigmoid", alpha * x)


def _hard_swish(x: Term) -> Term:
    return x * call("HardSigmoid", x, 1 / 6, 0.5)


def _mish(x: Term) -> Term:
    return x * call("Tanh", call("Softplus", x))


# HardSwish and HardSigmoid that are written with Clip are none of these: near -3 they are off by more than their last
# bits from what the operators give.
_SPELLINGS = (
    Spelling("Gelu", "Erf", _gelu),
    Spelling("Gelu", "Tanh", _gelu_tanh, attributes={"approximate": "tanh"}),
    Spelling("Swish", "Sigmoid", _swish),
    Spelling("Swish", "Sigmoid", _swish, number="alpha"),
    Spelling("HardSwish", "HardSigmoid", _hard_swish),
    Spelling("Mish", "Softplus", _mish),
)
ACTIVATION_ANCHORS = frozenset(each.anchor for each in _SPELLINGS)


def recognise_activations(graph: Graph) -> Graph:
    """Replace the nodes of Gelu, Swish, HardSwish and Mish by one of that operator.

    What is between them must have no other reader. Results differ by the rounding of as many products. Numbers of 16
    bits are rounded after each of the nodes, which one operator would not do, so they stay.
    """
    readers = {**ARITHMETIC, "HardSigmoid": Reader(_read_hard_sigmoid)}
    return Recognition(graph, _SPELLINGS, _DtypesAlone(graph), readers).replace(_place)


def _place(match: Match) -> tuple[list[Node], dict[Value, Array]]:
    last = match.nodes[-1]
    operator = build(match.spelling.operator, dict(match.attributes))
    return [Node(operator, (match.x,), last.outputs, last.name, last.part_of)], {}


class _DtypesAlone(Facts):
    """The types of values, which follow without shapes."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def find_dtype(self, value: Value) -> np.dtype[Any] | None:
        return self._dtypes.get(value)

    @cached_property
    def _dtypes(self) -> DTypes:
        return find_dtypes(self._graph)


def _read_hard_sigmoid(cone: Cone, node: Node, terms: Sequence[Term]) -> Term:
    operator: Any = node.operator
    return call("HardSigmoid", terms[0], operator.alpha, operator.beta)
