"""Host dependencies of a value: the reads and host computations that make its content known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from gpuexec.ir.content_key import HOST_VALUE_LIMIT
from gpuexec.ir.graphs import Array, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.planner.analyse import ShapeInference

# Pads have two entries for each axis, and few tensors more than eight axes.
_MAX_EXTENTS = 16
# Values to read, and light nodes to compute from them, by value.
Traces = dict[Value, tuple[list[Value], list[Node]]]


class HostTrace:
    """Trace of values back to what is on the host, or small enough to read, over nodes that are light.

    Args:
        inference: Has visited the nodes that are followed.
        producers: The node that makes each value.
        constants: Content of constants.
        inputs: Specs of the graph's inputs, with content where it is on the host.
        on_host: Nodes that the host computes anyway.
    """

    def __init__(
        self,
        inference: ShapeInference,
        producers: Mapping[Value, Node],
        constants: Mapping[Value, Array],
        inputs: Mapping[Value, TensorSpec],
        on_host: AbstractSet[Node],
    ) -> None:
        self._specs, self._known, self._is_light = (
            inference.analysis.specs,
            inference.analysis.known,
            inference.is_light,
        )
        self._producers, self._constants, self._inputs, self._on_host = producers, constants, inputs, on_host

    def find(self, value: Value, traced: Traces | None = None) -> tuple[list[Value], list[Node]]:
        """Return the values to read, and the light nodes to compute from them on the host, for the content of a value.

        ``traced`` caches the results of values in between, which may be visited many times.
        """
        traced = {} if traced is None else traced
        stack = [value]
        while stack:
            before = self._list_before(stack[-1])
            missing = [each for each in before if each not in traced]
            if missing:
                stack += missing
            else:
                each = stack.pop()
                traced[each] = self._trace_one(each, before, traced)
        return traced[value]

    def is_free(self, value: Value, traced: Traces | None = None) -> bool:
        """Return whether a value may be meant for the host, which can compute it without a read."""
        return value in self._specs and self._specs[value].size <= _MAX_EXTENTS and not self.find(value, traced)[0]

    def _list_before(self, value: Value) -> list[Value]:
        """Return the values that the host would compute a value from; none where it would not, or has it."""
        node = self._producers.get(value)
        if value in self._constants or value in self._inputs or node is None:
            return []
        if value in self._known:
            return [v for v in node.inputs if v is not None and v in self._known]
        return [] if node in self._on_host or self._is_much(node) else [v for v in node.inputs if v is not None]

    def _trace_one(self, value: Value, before: Sequence[Value], traced: Traces) -> tuple[list[Value], list[Node]]:
        if value in self._constants:
            return [], []
        given = self._inputs.get(value)
        if given is not None:
            return ([] if given.value is not None else [value]), []
        node = self._producers[value]
        if node in self._on_host and value not in self._known:
            return [], []
        sources = dict.fromkeys(source for each in before for source in traced[each][0])
        chain = dict.fromkeys(link for each in before for link in traced[each][1])
        if value not in self._known and (self._is_much(node) or sum(map(self._nbytes, sources)) > HOST_VALUE_LIMIT):
            return [value], []
        return list(sources), [*chain, node]

    def _is_much(self, node: Node) -> bool:
        """Return whether a node is too much work for the host, or its content too large."""
        values = [v for v in node.inputs if v in self._inputs] + [v for v in node.outputs if v is not None]
        return any(v and self._nbytes(v) > HOST_VALUE_LIMIT for v in values) or not self._is_light(node)

    def _nbytes(self, value: Value) -> int:
        return self._specs[value].nbytes
