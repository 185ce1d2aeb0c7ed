"""Lower precision of products and convolutions: operands rounded at the borders, sums in float.

What an operator multiplies is a fact of its class (`multiplied` and `rounded` of `Operator`). An operand that is made
is rounded right behind what makes it, in front of views and of what moves elements, so that the rounding may join an
epilogue. Where the reader
takes operands of a narrow type (`Operator.takes_narrow`) it is a Cast, else a `RoundOperand`, from float to float,
which a plan leaves out where kernels round for themselves (`gpuexec.planner.own_rounding`). Other readers go on with
the float: a residual would have to be widened again, by a launch as well. Where one tensor will do for all, for types
of 16 bits in front of convolutions that take floats, they take what is rounded. A weight is rounded by `RoundWeight`,
once. In fp8 it has a scale for each output channel, and what is made one for all of it, found in each run: nothing need
be calibrated. Products take what is stored in 8 bits and the scales (`ScaledMatMul`); convolutions and Einsum take
floats, rounded and scaled back. Weights that a model has in few bits are multiplied as they are; what they are
multiplied with is rounded to types of 16 bits, for which there are kernels, and to no others.

Attention over keys and values that are made in the run takes all three in a narrow type (`RoundedAttention`); keys and
values that are given are mostly a memory's, which would be rounded anew in each run, and stay float. Attention that is
spelled out is rounded here as two products, and recognised later with its roundings; of few queries over a memory, it
rounds what it reads (`gpuexec.ops.nn.attention_few`).

Types decide here, and no shapes, so the pass runs before graphs are partitioned and before values are exposed to be
looked at: numbers don't depend on who looks, and casts are looked at too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Graph, Node, Value, bodies, take_free, walk, with_bodies
from gpuexec.ir.operator import Operator, build, describe
from gpuexec.ir.precision import FP8, INT8, REFERENCE, ROUNDED, STORED, Precision, has_name
from gpuexec.ir.spec import dtype_row
from gpuexec.ops.nn.attention import Attention, AttentionOverCache, RoundedAttention
from gpuexec.ops.quant.rounded_weight import DOMAIN, RoundWeight
from gpuexec.ops.tensor.slice import Split
from gpuexec.passes.remove_noops import find_dtypes

_FLOAT = np.dtype(np.float32)
_FIELD = "precision"
_QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "QLinear", "QGemm", "Integer", "QAttention")


def lower_precision(graph: Graph, precision: Precision) -> Graph:
    """Round what products and convolutions of float multiply to a precision, or keep the order of their sums.

    Args:
        graph: The graph as loaded.
        precision: Which, and the names of nodes that stay as they are.

    Raises:
        InputError: A name to keep is that of no node, or there is nothing that says how to compute in int8.
    """
    _check_kept(graph, precision)
    if precision.name == INT8:
        _check_quantized(graph)
    if precision.name == REFERENCE:
        return _keep_order(graph)
    return _round(graph, precision) if precision.name in ROUNDED else graph


def list_known(graph: Graph, keep: Collection[str]) -> list[str]:
    """Return those of some names or patterns that there are nodes of."""
    names = {node.name for each in walk(graph) for node in each.nodes}
    return [each for each in keep if any(has_name(each, name) for name in names)]


def _check_kept(graph: Graph, precision: Precision) -> None:
    lost = sorted(precision.keep - {*list_known(graph, precision.keep)})
    if lost:
        raise InputError(f"keep names {', '.join(map(repr, lost))}, and the model has no node of such a name.")


def _check_quantized(graph: Graph) -> None:
    """Check that a graph says how to compute in int8.

    Raises:
        InputError: It does not.
    """
    names = {node.operator.name.rpartition(".")[2] for each in walk(graph) for node in each.nodes}
    if not any(part in name for name in names for part in _QUANTIZED):
        raise InputError(
            "precision='int8' takes a model that says by QuantizeLinear and DequantizeLinear how its values are"
            f" scaled; {graph.name!r} has none. gpuexec.calibrate(model, batches) makes one of it."
        )


def _keep_order(graph: Graph) -> Graph:
    """Return a graph whose products and convolutions are told to keep the order of sums; those of bodies, too."""
    nodes = []
    for node in graph.nodes:
        inner = [_keep_order(each) for each in bodies(node.operator)]
        operator = with_bodies(node.operator, inner) if inner else _tell(node.operator, REFERENCE)
        nodes.append(node if operator is node.operator else replace(node, operator=operator))
    return replace(graph, nodes=tuple(nodes))


def _tell(operator: Operator, precision: str) -> Operator:
    """Return an operator with its attribute for a precision set, where it has one."""
    if (operator.multiplied or operator.takes_narrow) and hasattr(operator, _FIELD):
        name, attributes = describe(operator)
        return build(name, {**dict(attributes), _FIELD: precision})
    return operator


@dataclass(frozen=True, slots=True)
class _Rounded:
    """How a value is rounded: whether it is stored in a narrow type, and the axis of a weight that scales run along."""

    is_stored: bool
    axis: int | None = None


@dataclass(slots=True)
class _Demand:
    """What is wanted of the values of a graph: forms that they are rounded to, and reads as they are."""

    forms: dict[Value, set[_Rounded]] = field(default_factory=dict)
    plain_reads: Counter[Value] = field(default_factory=Counter)
    # Forms of operands by node and position: of what products multiply, and of what views show that is one.
    reads: dict[tuple[Node, int], _Rounded] = field(default_factory=dict)
    carriers: set[Node] = field(default_factory=set)
    # Splits of values that are read rounded and as they are: there is another one, of the rounded value.
    twins: dict[Node, _Rounded] = field(default_factory=dict)


def _round(graph: Graph, precision: Precision) -> Graph:
    """Return a graph with rounded operands, and its bodies alike."""
    if precision.name in STORED:
        graph = _separate_attention(graph)
    dtypes = find_dtypes(graph)
    chosen = {node for node in graph.nodes if _is_eligible(node, dtypes, precision)}
    rounding = _Rounding(graph, precision, chosen, _find_demand(graph, precision, chosen))
    for value in graph.inputs:
        rounding.make(value)
    for node in graph.nodes:
        inner = [_round(each, precision) for each in bodies(node.operator)]
        rounding.add(node, inner)
    return rounding.finish()


def _separate_attention(graph: Graph) -> Graph:
    """Return a graph whose attention without a cache is such by its operator, which takes keys and values rounded."""
    given = {*graph.inputs, *graph.constants}
    nodes = [_find_whole(node, given) or node for node in graph.nodes]
    is_same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    return graph if is_same else replace(graph, nodes=tuple(nodes))


def _find_whole(node: Node, given: Collection[Value]) -> Node | None:
    """Return a node of attention over keys and values that nodes make in the run; None where it is none.

    What is given is mostly a memory, which would be rounded anew in each run.
    """
    op = node.operator
    inputs, outputs = (*node.inputs, *(None,) * 7)[:7], (*node.outputs, *(None,) * 4)[:4]
    q, k, v, mask, *rest = inputs
    if isinstance(op, Attention):
        lengths, sinks, scores = rest[2], None, outputs[3]
        cached = (*rest[:2], *outputs[1:3])
    elif isinstance(op, AttentionOverCache):
        lengths, sinks, scores = rest[1], rest[2], outputs[1]
        cached = (rest[0], lengths)
    else:
        return None
    if any(each is not None for each in cached) or k in given or v in given:
        return None
    whole = RoundedAttention(**{each.name: getattr(op, each.name) for each in fields(op)})
    return replace(node, operator=whole, inputs=(q, k, v, mask, lengths, sinks), outputs=(outputs[0], scores))


def _is_eligible(node: Node, dtypes: Mapping[Value | None, np.dtype[Any]], precision: Precision) -> bool:
    """Return whether all that a node multiplies is float, and it is not kept."""
    multiplied = _list_operands(node)
    if not multiplied or len(node.inputs) <= max(multiplied):
        return False
    # They are of one type, so that of one of them will do.
    known = [dtypes.get(node.inputs[each], _FLOAT) for each in multiplied if node.inputs[each] in dtypes]
    is_float = bool(known) and all(each == _FLOAT for each in known)
    is_whole = all(node.inputs[each] is not None for each in multiplied)
    return is_float and is_whole and not precision.keeps(node.name) and _fits_others(node, dtypes, precision)


def _fits_others(node: Node, dtypes: Mapping[Value | None, np.dtype[Any]], precision: Precision) -> bool:
    """Return whether what a node does not round, where that has a type of its own, goes with a precision.

    Integers go with types of 16 bits, which hold them, and a weight of one of these with its own.
    """
    if not (node.operator.rounded and node.operator.takes_narrow):
        return True
    if precision.name not in STORED:
        return False
    others = {dtypes.get(value) for place, value in enumerate(node.inputs) if place not in node.operator.rounded}
    stored = {dtype_row(each).numpy for each in STORED.values()}
    return others & stored <= {dtype_row(STORED[precision.name]).numpy}


def _list_operands(node: Node) -> tuple[int, ...]:
    """Return the positions of what a precision rounds."""
    return node.operator.multiplied or node.operator.rounded


def _find_demand(graph: Graph, precision: Precision, chosen: Collection[Node]) -> _Demand:
    demand, outputs, readers = _Demand(), set(graph.outputs), graph.consumers()
    finishing: set[Value | None] = set()
    for node in graph.nodes:
        if _takes_roundings(node.operator) or (node.operator.name == Split.name and node.inputs[0] in finishing):
            finishing.update(node.outputs)
    for node in reversed(graph.nodes):
        positions = _list_carried(node, precision, finishing)
        carried = _find_carried(node, demand, outputs, readers) if positions else None
        if carried is not None:
            demand.carriers.add(node)
        elif node.operator.name == Split.name and node.inputs[0] in finishing and precision.name != FP8:
            parts = [value for value in node.outputs if value is not None]
            forms = {form for value in parts for form in demand.forms.get(value, ())}
            # Heads of queries, keys and values, which views make of parts, are rounded together or not at all: kernels
            # of attention read caches as they are.
            has_views = any(each.operator.makes_views for value in parts for each in readers.get(value, ()))
            if len(forms) == 1 and node.inputs[0] is not None and not has_views:
                demand.twins[node] = next(iter(forms))
                demand.forms.setdefault(node.inputs[0], set()).update(forms)
        is_stored = node.operator.takes_narrow and precision.name in STORED
        if precision.name == FP8:
            is_stored = node.operator.scaled_product is not None
        for position, value in enumerate(node.inputs):
            if value is None:
                continue
            form = carried if position in positions else None
            if node in chosen and position in _list_operands(node):
                form = _Rounded(is_stored)
                if precision.name == FP8 and value in graph.constants and node.operator.multiplied:
                    rank = graph.constants[value].ndim
                    form = _Rounded(is_stored, node.operator.channel_axis(position, rank))
            if form is None:
                demand.plain_reads[value] += 1
            else:
                demand.reads[node, position] = form
                demand.forms.setdefault(value, set()).add(form)
    return demand


def _takes_roundings(operator: Operator) -> bool:
    """Return whether a rounding of what an operator makes costs no launch of its own, as a rule."""
    return operator.takes_epilogue or type(operator).as_pointwise is not Operator.as_pointwise


def _list_carried(node: Node, precision: Precision, finishing: Collection[Value | None]) -> tuple[int, ...]:
    """Return the positions of inputs whose elements a node moves: what reads these may have them rounded before.

    A view moves none. To copy what is rounded is cheaper, where those that make it round it.
    """
    operator = node.operator
    if operator.makes_views and operator.keeps_dtype:
        return (0,)
    moved = operator.moved_inputs(len(node.inputs))
    is_cheaper = precision.name != FP8 and all(node.inputs[position] in finishing for position in moved)
    return moved if is_cheaper else ()


def _find_carried(
    node: Node, demand: _Demand, outputs: set[Value], readers: Mapping[Value, list[Node]]
) -> _Rounded | None:
    """Return the form in which all that read what a node moves want it; None where they differ."""
    shown = [value for value in node.outputs if value is not None and (value in readers or value in outputs)]
    if not shown or any(value in outputs or demand.plain_reads[value] for value in shown):
        return None
    wanted = {form for value in shown for form in demand.forms.get(value, ())}
    return wanted.pop() if len(wanted) == 1 and all(value in demand.forms for value in shown) else None


class _Rounding:
    """Nodes of a graph under construction, with the values that stand for others."""

    def __init__(self, graph: Graph, precision: Precision, chosen: Collection[Node], demand: _Demand) -> None:
        self._has_changed = False
        self._graph, self._precision, self._chosen, self._demand = graph, precision, chosen, demand
        self._nodes: list[Node] = []
        self._rounded: dict[tuple[Value, _Rounded], Value] = {}
        self._shown: dict[Value, Value] = {}  # what views of rounded values give, of another type
        # Scales of values that are stored in fp8, and what is made of a value with one scale: narrow, and the scale.
        self._scales: dict[Value, Value] = {}
        self._narrow: dict[Value, tuple[Value, Value]] = {}
        self._outputs = set(graph.outputs)
        self._given, self._constants = {*graph.inputs, *graph.constants}, dict(graph.constants)
        self._value_names = {value.name for value in graph.values()}
        self._node_names = {node.name for node in graph.nodes}

    def add(self, node: Node, inner: Sequence[Graph]) -> None:
        """Add a node, reading what is rounded, and the roundings of what it makes.

        Args:
            node: The node.
            inner: Its bodies, rounded.
        """
        for value in node.inputs:
            if value is not None and value in self._graph.constants:
                self.make(value)
        inputs = tuple([self._read(node, position, value) for position, value in enumerate(node.inputs)])
        operator, outputs = node.operator, node.outputs
        if any(new is not old for new, old in zip(inner, bodies(operator), strict=True)):
            operator = with_bodies(operator, inner)
        if node in self._chosen:
            operator = _tell(operator, self._precision.name)
            if self._precision.name == FP8 and operator.scaled_product is not None:
                operator, inputs = self._multiply_scaled(operator, inputs)
        if node in self._demand.carriers:
            self._shown.update({value: Value(value.name) for value in outputs if value is not None})
            outputs = tuple([None if value is None else self._shown[value] for value in outputs])
            source = inputs[0]
            if source is not None and source in self._scales:
                self._scales.update({value: self._scales[source] for value in outputs if value is not None})
        if operator is not node.operator or inputs != node.inputs:
            self._has_changed = True
            node = replace(node, operator=operator, inputs=inputs, outputs=outputs)
        self._nodes.append(node)
        if node in self._demand.twins:
            self._add_twin(node, self._demand.twins[node])
        for value in outputs:
            if value is not None:
                self.make(value)

    def make(self, value: Value) -> None:
        """Add the roundings that are wanted of a value."""
        for form in sorted(self._demand.forms.get(value, ()), key=lambda form: (form.is_stored, form.axis or 0)):
            if (value, form) not in self._rounded:
                self._rounded[value, form] = self._add_rounding(value, form)

    def _add_twin(self, node: Node, form: _Rounded) -> None:
        """Add the same Split of the rounded value, whose parts stand for the rounded parts."""
        source, *others = node.inputs
        assert source is not None
        made: list[Value | None] = []
        for value in node.outputs:
            name = self._precision.name
            part = None if value is None else Value(take_free(f"{value.name}.{name}", self._value_names))
            made.append(part)
            if value is not None and part is not None:
                self._rounded[value, form] = part
        own = take_free(f"{node.name}.{self._precision.name}", self._node_names)
        self._nodes.append(replace(node, inputs=(self._rounded[source, form], *others), outputs=tuple(made), name=own))
        self._has_changed = True

    def finish(self) -> Graph:
        """Return the graph; the one that it was made of where nothing changed."""
        if not self._has_changed:
            return self._graph
        return replace(self._graph, nodes=tuple(self._nodes), constants=self._constants)

    def _read(self, node: Node, position: int, value: Value | None) -> Value | None:
        """Return what a node reads in place of a value."""
        if value is None or value in self._shown:
            return value if value is None else self._shown[value]
        form = self._demand.reads.get((node, position))
        if form is not None:
            return self._rounded[value, form]
        is_kept = value in self._given or value in self._outputs or self._precision.name not in STORED
        return value if is_kept else self._rounded.get((value, _Rounded(is_stored=False)), value)

    def _add_rounding(self, value: Value, form: _Rounded) -> Value:
        """Add what rounds a value, and return what that gives."""
        name = self._precision.name
        if value not in self._constants:
            if name == FP8:
                return self._scale(value, form)
            operator = build(f"{DOMAIN}.RoundOperand", {"to": name})
            if form.is_stored:
                operator = build("Cast", {"to": dtype_row(STORED[name]).code})
            return self._add(operator, value)
        rounding = RoundWeight(name, int(form.is_stored), form.axis)
        if name != FP8 or not form.is_stored:
            return self._add(rounding, value)
        made, scales = self._add_node(rounding, (value,), (name, f"{name}_scales"))
        self._scales[made] = scales
        return made

    def _multiply_scaled(
        self, operator: Operator, inputs: tuple[Value | None, ...]
    ) -> tuple[Operator, tuple[Value | None, ...]]:
        """Return the product of operands with scales that stands for a product, and its inputs."""
        a, b, *addend = inputs
        assert a is not None and b is not None and operator.scaled_product is not None
        made = build(f"{DOMAIN}.ScaledMatMul", operator.scaled_product)
        return made, (a, b, self._scales[a], self._scales[b], *addend)

    def _add(self, operator: Operator, *inputs: Value) -> Value:
        """Add a node that rounds a value, the first input, or works out how; return its output."""
        return self._add_node(operator, inputs, (self._precision.name,))[0]

    def _add_node(self, operator: Operator, inputs: tuple[Value, ...], names: Sequence[str]) -> tuple[Value, ...]:
        """Add a node, and return its outputs, whose names stand behind that of the first input."""
        source = inputs[0].name
        made = tuple([Value(take_free(f"{source}.{each}", self._value_names)) for each in names])
        own = take_free(f"{source}.to_{self._precision.name}", self._node_names)
        self._nodes.append(Node(operator, inputs, made, own))
        return made

    def _scale(self, value: Value, form: _Rounded) -> Value:
        """Round a value to fp8 by a scale of its own, found in each run; in float, it has the scale in it again."""
        if value not in self._narrow:
            names = (self._precision.name, f"{self._precision.name}_scale")
            narrow, scale = self._add_node(build(f"{DOMAIN}.ScaleToFloat8", {}), (value,), names)
            self._narrow[value] = narrow, scale
        narrow, scale = self._narrow[value]
        if form.is_stored:
            self._scales[narrow] = scale
            return narrow
        wide = self._add(build("Cast", {"to": dtype_row(_FLOAT).code}), narrow)
        return self._add(build("Mul", {}), wide, scale)
