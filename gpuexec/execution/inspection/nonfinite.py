"""First non-finite value: the node that made a NaN or infinity, from statistics of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gpuexec.execution.inspection.exposing import Exposed
from gpuexec.execution.inspection.statistics import Statistics, read_words
from gpuexec.ir.graphs import Array, Graph, Node, Value
from gpuexec.ir.precision import LARGEST_FP16, OVERFLOWING
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.reduce.statistics import StatisticsOperator
from gpuexec.system.mapped import read_content
from gpuexec.system.records import Record


@dataclass(frozen=True, slots=True)
class NonFinite(Record):
    """The first node of a run that made a NaN or infinity from finite inputs.

    A NaN counts where no input has one, an infinity where no input has any of both. So infinities of a mask are no
    fault, and the NaN that a node makes of them is.

    Attributes:
        node: Its name; empty where no node made the NaN: an input of the model or a weight has it, and a node passed it
            on.
        operator: Its operator; else ``"input"`` or ``"weight"``.
        output: Statistics of what it gave.
        inputs: Statistics of what it took, but for integers.
        cure: What to do where it is an overflow of a lower precision; else empty.

    Example:
        >>> with gx.Worker(model, backend="cpu", watch="report") as worker:
        ...     found = worker.schedule(np.full((1, 1, 8, 8), np.nan, np.float32)).inspection.find_nonfinite()
        >>> found.kind, found.operator
        ('NaN', 'input')
    """

    node: str
    operator: str
    output: Statistics
    inputs: tuple[Statistics, ...] = ()
    cure: str = ""
    _FOUND: ClassVar = ("kind", "count", "index")

    @property
    def kind(self) -> str:
        """``"NaN"`` or ``"Inf"``."""
        return "NaN" if self.output.nans and not any(each.nans for each in self.inputs) else "Inf"

    @property
    def count(self) -> int:
        """Number of such elements."""
        return self.output.nans if self.kind == "NaN" else self.output.infs

    @property
    def index(self) -> tuple[int, ...]:
        """Index of the first such element."""
        return self.output.locate(self.output.first_nan if self.kind == "NaN" else self.output.first_inf)

    def __str__(self) -> str:
        what = f"{self.count} {self.kind}, the first at {list(self.index)}"
        if self.kind == "NaN" and self.output.infs:
            what += f", and {self.output.infs} Inf"
        if not self.node:
            return f"No node made it: {self.operator} {self.output.value!r} has {what}."
        of = "" if self.output.spec is None else f" of {self.output.spec}"
        took = "; ".join(map(str, self.inputs)) or "nothing of floating point"
        made = f"{self.operator} {self.node!r}: output {self.output.value!r}{of} has {what}, made of {took}."
        return f"{made} {self.cure}".rstrip()


def find_nonfinite(
    exposed: Exposed,
    words: Array,
    given: Collection[Value],
    find_spec: Callable[[int], TensorSpec | None],
) -> NonFinite | None:
    """Return the first node of a graph that made a NaN or infinity, if one did.

    Args:
        exposed: The instrumented graph.
        words: Of its rows, ``[rows, WORDS]``.
        given: The model's inputs: NaN there are the caller's.
        find_spec: Returns shape and dtype of a row's value, where they are known.
    """
    if not words[:, :3].any():
        return None
    places = {row.value: place for place, row in enumerate(exposed.rows)}

    def read(value: Value) -> Statistics | None:
        place = places.get(value)
        if place is not None:
            row = exposed.rows[place]
            return read_words(value.name, row.node.name if row.node else "", find_spec(place), words[place])
        array = exposed.graph.constants.get(value)
        return None if array is None else _take(value.name, array)

    for place, row in enumerate(exposed.rows):
        if row.node is not None and words[place, :3].any():
            found = judge_node(row.node, row.value, read)
            if found is None and words[place, 0]:
                found = _blame_source(row.node, given, exposed.graph.constants, read)
            if found is not None:
                return replace(found, cure=_find_cure(row.node, exposed.graph)) if found.node else found
    return None


def _find_cure(node: Node, graph: Graph) -> str:
    """Return what to do where a node rounds an operand to fp16, and that is what made infinities; else nothing."""
    readers = graph.consumers()
    reached, layers = [value for value in node.outputs if value is not None], list[Node]()
    for value in reached:
        for reader in readers.get(value, ()):
            if reader.operator.makes_views:
                reached += [made for made in reader.outputs if made is not None and made not in reached]
            elif any(reader.inputs[each] is value for each in (*reader.operator.multiplied, *reader.operator.rounded)):
                layers.append(reader)
    own = getattr(node.operator, "to", None)
    is_rounding = own == OVERFLOWING or any(
        node.operator.name == "Cast" and getattr(each.operator, "precision", "") == OVERFLOWING for each in layers
    )
    if not is_rounding or not layers:
        return ""
    names = list(dict.fromkeys(layer.name for layer in layers))
    told = ", ".join(f"{layer.operator.name} {layer.name!r}" for layer in dict.fromkeys(layers))
    return (
        f"It is rounded to {OVERFLOWING}, whose largest number is {LARGEST_FP16}, as an operand of {told}:"
        f" keep={{{', '.join(map(repr, names))}}} leaves that in float, and precision='bf16' has the range of float."
    )


def judge_node(node: Node, output: Value, read: Callable[[Value], Statistics | None]) -> NonFinite | None:
    """Return the non-finite result of a node, if it made one from finite inputs."""
    inputs = [read(value) for value in dict.fromkeys(node.inputs) if value is not None]
    taken = tuple([each for each in inputs if each is not None and _is_float(each)])
    given = read(output)
    if given is None or any(each.nans for each in taken):
        return None
    if given.nans or (given.infs and not any(each.infs for each in taken)):
        return NonFinite(node.name, node.operator.name, given, taken)
    return None


def _blame_source(
    node: Node,
    given: Collection[Value],
    constants: Collection[Value],
    read: Callable[[Value], Statistics | None],
) -> NonFinite | None:
    """Return the model input or weight whose NaN a node passed on, if there is one."""
    for value in node.inputs:
        if value is not None and (value in given or value in constants):
            taken = read(value)
            if taken is not None and taken.nans:
                return NonFinite("", "input" if value in given else "weight", taken)
    return None


def judge_host_node(node: Node, arrays: Mapping[Value, Array | None]) -> NonFinite | None:
    """Return the non-finite result of a node computed on the host, if it made one."""

    def read(value: Value) -> Statistics | None:
        array = arrays.get(value)
        return None if array is None else _take(value.name, array)

    for value in node.outputs:
        found = None if value is None else judge_node(node, value, read)
        if found is not None:
            return found
    return None


def _take(name: str, array: Array) -> Statistics:
    (words,) = StatisticsOperator(moments=0).compute(read_content(array))
    return read_words(name, "", TensorSpec(array.shape, array.dtype), words)


def _is_float(statistics: Statistics) -> bool:
    if statistics.spec is not None:
        return dtype_row(statistics.spec.dtype).is_float
    return bool(statistics.nonfinite) or not np.isnan(statistics.min)
