"""Inferences kept while a graph is planned: its partition, passes and analysis ask for the same ones."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from gpuexec.ir.apply import infer_specs
from gpuexec.ir.content_key import are_same
from gpuexec.ir.graphs import Node
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import MemoTable

Array = np.ndarray[Any, Any]
Specs = Sequence[TensorSpec | None]
Made = tuple[TensorSpec, ...]


class Inferences:
    """What operators and nodes were last found to make, each of specs without symbolic extents.

    Specs are compared object by object first: where those before a node are the ones that were kept, its own are.
    Content whose reads are noted is never taken from here.
    """

    def __init__(self) -> None:
        self._constants: dict[int, tuple[Array, TensorSpec]] = {}
        self._operators: dict[int, tuple[Operator, Specs, Made]] = {}
        self._nodes: dict[Node, tuple[bool, Specs, Made]] = {}
        # By operator and specs: layers repeat.
        self.alike: MemoTable[Hashable, Made] = MemoTable()

    def clear(self) -> None:
        """Forget all."""
        self._constants.clear()
        self._operators.clear()
        self._nodes.clear()
        self.alike = MemoTable()

    def describe(self, constant: Array) -> TensorSpec:
        """Return the spec of a constant, the same one each time."""
        known = self._constants.get(id(constant))
        if known is None:
            known = self._constants[id(constant)] = constant, TensorSpec.of(constant)
        return known[1]

    def infer(self, operator: Operator, inputs: Specs) -> Made:
        """Return the specs of an operator's outputs.

        Raises:
            GpuexecError: As `infer_specs`.
        """
        kept = self._operators.get(id(operator))
        if kept is not None and _are_kept(kept[1], inputs):
            return kept[2]
        made = infer_specs(operator, inputs)
        if not any(map(is_logged, inputs)):
            self._operators[id(operator)] = operator, tuple(inputs), made
        return made

    def find(self, node: Node, inputs: Specs, *, has_content: bool) -> Made | None:
        """Return the specs of a node's outputs as they were kept; None: of other inputs, or not.

        Args:
            node: The node.
            inputs: Specs of its inputs.
            has_content: Whether outputs may have content.
        """
        kept = self._nodes.get(node)
        if kept is None or kept[0] is not has_content or not _are_kept(kept[1], inputs):
            return None
        return kept[2]

    def keep(self, node: Node, inputs: Specs, made: Made, *, has_content: bool) -> None:
        """Keep the specs of a node's outputs; no read of its inputs' content is noted."""
        self._nodes[node] = has_content, inputs, made


def is_logged(spec: TensorSpec | None) -> bool:
    """Return whether reads of a spec's content are noted."""
    return spec is not None and spec.value is not None and spec.value.log is not None


def _are_kept(kept: Specs, inputs: Specs) -> bool:
    if len(kept) != len(inputs):
        return False
    for one, other in zip(kept, inputs, strict=True):
        if one is not other:
            return not any(map(is_logged, inputs)) and are_same(kept, inputs)
    return True
