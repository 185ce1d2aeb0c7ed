"""Recognition of attention in the products and the softmax that exporters write it as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuexec.ir.geometry import Shape, normalize_axis
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.ir.operator import Operator
from gpuexec.ir.precision import STORED
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import Cast
from gpuexec.ops.elementwise.fused import PRODUCERS
from gpuexec.ops.linalg.einsum import Einsum
from gpuexec.ops.linalg.matmul import MatMul, find_narrow
from gpuexec.ops.nn.attention_few import FEW_QUERIES
from gpuexec.ops.nn.dot_product_attention import FLOATS, ScaledDotProductAttention
from gpuexec.ops.nn.heads import GroupHeads, join_groups
from gpuexec.ops.nn.softmax import Softmax
from gpuexec.ops.tensor.layout import Expand, Reshape, Transpose
from gpuexec.passes.known_specs import infer_known
from gpuexec.system.mapped import read_content

_PRODUCTS = (MatMul.name, Einsum.name)
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
# What may stand between a softmax and its products that no attention here has; it is looked through for the reason.
_FOREIGN = ("Cast", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Dropout", "Clip", "Max", "Min", "Neg", "Identity")
_MAX_STEPS = 10
_FLOAT = np.dtype(np.float32)
Operands = tuple[Value, ...]


def recognise_attention(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Replace two products around a softmax over the last axis by one attention, scale and masks included.

    Products that a precision has given operands of 16 bits are taken with it: the roundings of weights and of the
    result become the attention's own, and so do those of Q, K and V where queries are few.

    Scores and weights must have no other reader. Also taken are factors of Q and K, the guard that makes weights 0 that
    are NaN, and the order that heads are joined in. Heads of K and V that an Expand repeats are not copied. Results
    differ by the rounding of products; 16-bit numbers, which the nodes round one by one, stay as they are.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    search = _AttentionSearch(graph, specs)
    found = [each for each in map(search.match, _list_softmaxes(graph)) if isinstance(each, _FoundAttention)]
    return search.replace(found) if found else graph


def explain_softmaxes(graph: Graph, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Return why softmaxes between products are left as they are, by name of their node."""
    search = _AttentionSearch(graph, specs)
    reasons = {node.name: search.match(node) for node in _list_softmaxes(graph)}
    return {name: reason for name, reason in reasons.items() if isinstance(reason, str)}


def _list_softmaxes(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.operator.name == Softmax.name]


@dataclass(slots=True)
class _FoundAttention:
    """What one node is to compute.

    Attributes:
        inputs: Q, K transposed, V.
        scale: Factor of the scores.
        steps: Steps of `ScaledDotProductAttention` with their operands.
        is_guarded: Whether weights that are NaN become 0.
        perm: Order of the result's axes.
        precision: Of its products.
        is_narrow: Whether the result is rounded to the type of Q.
        result: The value that is made.
        last: The node in whose place it is made.
        gone: The nodes that nothing needs then.
        before: Nodes that it needs in front.
    """

    inputs: list[Value]
    scale: float
    steps: list[tuple[str, Operands]]
    is_guarded: bool
    perm: tuple[int, ...] | None
    precision: str
    is_narrow: bool
    result: Value
    last: Node
    gone: list[Node]
    before: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class _Scores:
    """The way from a product to the softmax.

    Attributes:
        product: The product of Q and K.
        steps: What is done to it, with operands.
        nodes: The nodes of the steps.
        reason: Why it is no step of attention; empty where all are.
    """

    product: Node
    steps: list[tuple[str, Operands]]
    nodes: list[Node]
    reason: str = ""


class _AttentionSearch:
    """Search of a graph for attention."""

    def __init__(self, graph: Graph, specs: Mapping[str, TensorSpec]) -> None:
        self._graph, self._inputs = graph, specs
        self._producers, self._consumers = graph.producers(), graph.consumers()
        self._outputs = set(graph.outputs)
        self._names = {value.name for value in graph.values()}
        self._known: dict[Value, TensorSpec] | None = None

    def match(self, softmax: Node) -> _FoundAttention | str | None:
        """Return the attention around a softmax, why it is none, or None where no products are around it."""
        source, weights = softmax.inputs[0], softmax.outputs[0]
        if source is None or weights is None:
            return None
        scores, mixing = self._climb(source, 0), self._descend(weights)
        if scores is None or mixing is None:
            return None
        nodes, product, is_guarded, reason = mixing
        reason = scores.reason or reason
        precision = _find_precision(product)
        if _find_precision(scores.product) != precision:
            reason = reason or "its two products have different precisions"
        if precision and not any(map(self._is_rounding, nodes)):
            reason = reason or f"its weights come to a product of {precision} as they are"
        inner = [softmax, *scores.nodes, scores.product, *nodes]
        if not reason:
            reason = self._find_reason(softmax, scores, inner, is_guarded=is_guarded)
        if reason:
            return reason
        made = [node.outputs[0] for node in (softmax, *nodes)]
        return self._draw(scores, softmax, made, product, [*inner, product], is_guarded)

    def replace(self, found: Sequence[_FoundAttention]) -> Graph:
        """Return the graph with these as one node each."""
        gone = {id(node) for each in found for node in each.gone}
        made = {id(each.last): each for each in found}
        nodes: list[Node] = []
        for node in self._graph.nodes:
            attention = made.get(id(node))
            if attention is not None:
                operator = ScaledDotProductAttention(
                    attention.scale,
                    tuple(step for step, _ in attention.steps),
                    int(attention.is_guarded),
                    attention.perm,
                    attention.precision,
                    int(attention.is_narrow),
                )
                operands = [operand for _, given in attention.steps for operand in given]
                nodes += attention.before
                inputs = (*attention.inputs, *operands)
                nodes.append(Node(operator, inputs, (attention.result,), node.name, node.part_of))
            elif id(node) not in gone:
                nodes.append(node)
        return replace(self._graph, nodes=tuple(nodes))

    def _spec(self, value: Value | None) -> TensorSpec | None:
        if self._known is None:
            self._known = infer_known(self._graph, self._inputs)
        return None if value is None else self._known.get(value)

    def _note(self, value: Value, shape: Shape) -> None:
        """Note the shape of floats that a view shows."""
        assert self._known is not None
        self._known[value] = TensorSpec(shape, _FLOAT)

    def _climb(self, value: Value, depth: int) -> _Scores | None:
        """Return the way up to a product."""
        node = self._producers.get(value)
        if node is None or depth > _MAX_STEPS:
            return None
        if _is_product(node):
            return _Scores(node, [], [])
        for source, step, operands in self._list_steps(node):
            found = self._climb(source, depth + 1)
            if found is not None:
                found.nodes.append(node)
                if step:
                    found.steps.append((step, operands))
                else:
                    label = f"{node.operator.name} {node.name!r}"
                    found.reason = found.reason or f"{label} stands between the product and the softmax"
                return found
        return None

    @staticmethod
    def _list_steps(node: Node) -> list[tuple[Value, str, Operands]]:
        """Return what a node may be to each of its inputs: the source of scores, step and operands."""
        name = node.operator.name
        given = [value for value in node.inputs if value is not None]
        if name in _ARITHMETIC and len(given) == 2:
            first, second = given
            found: list[tuple[Value, str, Operands]] = [(first, name, (second,))]
            return [*found, (second, name, (first,))] if name in ("Add", "Mul") else found
        if name == "Where" and len(given) == 3:
            mask, first, second = given
            return [(first, "Where", (mask, second)), (second, "Fill", (mask, first))]
        if name == "Tanh" and given:
            return [(given[0], "Tanh", ())]
        return [(given[0], "", ())] if name in _FOREIGN and given else []

    def _descend(self, weights: Value) -> tuple[list[Node], Node, bool, str] | None:
        """Return the nodes between the softmax and the product with V, that product, a guard, and why it is none."""
        nodes: list[Node] = []
        value, reason, is_guarded = weights, "", False
        for _ in range(_MAX_STEPS):
            readers = self._consumers.get(value, [])
            products = [node for node in readers if _is_product(node)]
            if products:
                product = products[0]
                if product.operator.name == MatMul.name and product.inputs[0] is not value:
                    reason = reason or "its weights are the right operand of a product"
                return nodes, product, is_guarded, reason
            guard = self._find_guard(value, readers)
            if guard is not None and not is_guarded:
                nodes += guard
                is_guarded, value = True, _first(guard[-1])
                continue
            foreign = [node for node in readers if node.operator.name in (*_FOREIGN, *_ARITHMETIC, "Where")]
            if len(foreign) != 1:
                return None
            node = foreign[0]
            if self._is_rounding(node):
                nodes.append(node)
                value = _first(node)
                continue
            reason = reason or f"{node.operator.name} {node.name!r} stands between the softmax and the product"
            nodes.append(node)
            value = _first(node)
        return None

    def _is_rounding(self, node: Node) -> bool:
        """Return whether a node rounds to the type of a precision for the one product that reads it."""
        readers = self._consumers.get(_first(node), [])
        narrow = find_narrow(_find_precision(readers[0])) if len(readers) == 1 and _is_product(readers[0]) else None
        return narrow is not None and isinstance(node.operator, Cast) and dtype_row(node.operator.to).numpy == narrow

    def _find_guard(self, value: Value, readers: Sequence[Node]) -> list[Node] | None:
        """Return IsNaN and Where, which makes 0 of what is NaN."""
        test = next((node for node in readers if node.operator.name == "IsNaN"), None)
        choice = next((node for node in readers if node.operator.name == "Where"), None)
        if test is None or choice is None or len(readers) != 2:
            return None
        mask, zero, other = (*choice.inputs, None, None, None)[:3]
        if mask is not _first(test) or other is not value or self._consumers.get(_first(test)) != [choice]:
            return None
        return [test, choice] if self._read_number(zero) == 0 else None

    def _find_reason(self, softmax: Node, scores: _Scores, inner: Sequence[Node], *, is_guarded: bool) -> str:
        """Return why what stands around a softmax can't become one node; empty where it can."""
        spec = self._spec(softmax.inputs[0])
        if spec is None:
            return "its shape is not known before the model runs"
        if spec.dtype not in FLOATS:
            return f"each of its nodes rounds to {spec.dtype.name}, which one operator would not do"
        operator = softmax.operator
        assert isinstance(operator, Softmax)
        if not spec.rank or normalize_axis(operator.axis, spec.rank) != spec.rank - 1:
            return f"it is over axis {operator.axis} of {spec.rank}, not the last one"
        for node in inner:
            value = _first(node)
            readers = self._consumers.get(value, [])
            if value in self._outputs:
                return f"{value} is an output"
            if len(set(map(id, readers))) > 1 and not (is_guarded and node is softmax):
                return f"{value} has other readers"
        if any(self._spec(operand) is None for _, given in scores.steps for operand in given):
            return "a shape of its masks is not known before the model runs"
        return ""

    def _draw(
        self,
        scores: _Scores,
        softmax: Node,
        made: Sequence[Value | None],
        product: Node,
        gone: list[Node],
        is_guarded: bool,
    ) -> _FoundAttention | str:
        """Return the attention that products, steps and a softmax make."""
        before: list[Node] = []
        factors: list[tuple[str, Operands]] = []
        first = self._read_scores(scores.product, factors, before)
        last = self._read_sums(product, made[-1], before)
        if first is None or last is None:
            return f"Einsum {(scores.product if first is None else product).name!r} is no product of heads"
        (query, keys), (values, perm) = first, last
        specs = [self._spec(each) for each in (*scores.product.inputs, *product.inputs)]
        if any(spec is None or spec.rank < 2 for spec in specs):
            return "its operands have fewer than two axes, or shapes that are not known before the model runs"
        ranks = [spec.rank for spec in specs if spec is not None]
        if len(set(ranks)) > 1 and max(ranks) > 4:
            return "its operands have more than four axes, and some have fewer"
        precision = _find_precision(product)
        query, keys, values = self._widen((query, keys, values), precision, gone, before)
        keys, values = self._group(query, keys, values, before)
        scale, steps = self._fold(factors + scores.steps)
        used = {query, keys, values, *(operand for _, given in steps for operand in given)}
        if not used.isdisjoint(_first(node) for node in gone):
            return "its scores are read twice"
        result = _first(product)
        rounding = self._find_rounding(result, precision)
        if rounding is not None:
            gone.append(rounding)
            result = _first(rounding)
        if perm is None:
            perm, transpose = self._find_order(result)
            if transpose is not None:
                gone.append(transpose)
                result = _first(transpose)
        elif perm == tuple(range(len(perm))):
            perm = None
        is_narrow = rounding is not None
        return _FoundAttention(
            [query, keys, values], scale, steps, is_guarded, perm, precision, is_narrow, result, product, gone, before
        )

    def _read_scores(
        self, product: Node, factors: list[tuple[str, Operands]], before: list[Node]
    ) -> tuple[Value, Value] | None:
        """Return Q and K transposed, as a MatMul has them, without factors; None where an Einsum is none."""
        operands = [self._strip(value, factors, before) for value in product.inputs if value is not None]
        if isinstance(product.operator, MatMul):
            return operands[0], operands[1]
        split = _split_equation(product)
        if split is None:
            return None
        (left, right), out = split
        if out[-1] in left:
            (left, right), operands = (right, left), operands[::-1]
        lead, row, key = out[:-2], out[-2], out[-1]
        summed = [label for label in left if label not in out]
        if len(summed) != 1 or set(left) != {*lead, row, *summed} or set(right) != {*lead, key, *summed}:
            return None
        return (
            self._permute(operands[0], left, lead + row + summed[0], before),
            self._permute(operands[1], right, lead + summed[0] + key, before),
        )

    def _read_sums(
        self, product: Node, weights: Value | None, before: list[Node]
    ) -> tuple[Value, tuple[int, ...] | None] | None:
        """Return V as a MatMul has it, and the order of the result's axes; None where an Einsum is none."""
        operands = [value for value in product.inputs if value is not None]
        if isinstance(product.operator, MatMul):
            return operands[1], None
        split = _split_equation(product)
        if split is None or (operands[0] is weights) == (operands[1] is weights):
            return None
        (left, right), out = split
        if operands[1] is weights:
            (left, right), operands = (right, left), operands[::-1]
        lead, row, key = left[:-2], left[-2], left[-1]
        columns = [label for label in right if label not in left]
        if len(columns) != 1 or set(right) != {*lead, key, *columns} or set(out) != {*lead, row, *columns}:
            return None
        if out[-1] != columns[0]:
            return None
        order = lead + row + columns[0]
        values = self._permute(operands[1], right, lead + key + columns[0], before)
        return values, tuple(order.index(label) for label in out)

    def _permute(self, value: Value, labels: str, wanted: str, before: list[Node]) -> Value:
        """Return a value with its axes in another order."""
        if labels == wanted:
            return value
        return self._add(value, Transpose(tuple(labels.index(label) for label in wanted)), (), before)

    def _add(self, value: Value, operator: Operator, more: Sequence[Value | None], before: list[Node]) -> Value:
        """Return what a view makes of a value."""
        made = Value(take_free(f"{value.name}.{operator.name.rpartition('.')[2].lower()}", self._names))
        before.append(Node(operator, (value, *more), (made,), made.name))
        self._producers[made] = before[-1]
        return made

    def _strip(self, value: Value, factors: list[tuple[str, Operands]], before: list[Node]) -> Value:
        """Return an operand without the number that it was multiplied by, which is added to the factors."""
        node = self._producers.get(value)
        if node is not None and isinstance(node.operator, Transpose) and node.inputs[0] is not None:
            source = self._strip(node.inputs[0], factors, before)
            return value if source is node.inputs[0] else self._add(source, node.operator, (), before)
        if node is None or node.operator.name not in ("Mul", "Div"):
            return value
        first, second = (*node.inputs, None, None)[:2]
        pairs = [(first, second), (second, first)] if node.operator.name == "Mul" else [(first, second)]
        for whole, factor in pairs:
            if whole is not None and factor is not None and self._is_number(factor) and self._spec(whole) is not None:
                factors.append((node.operator.name, (factor,)))
                return whole
        return value

    def _is_number(self, value: Value) -> bool:
        """Return whether a value is one number at all sizes: a constant, has no axes, or follows from shapes."""
        spec = self._spec(value)
        if spec is None or spec.size != 1 or spec.rank > 2:
            return False
        return value in self._graph.constants or not spec.rank or spec.value is not None

    def _fold(self, steps: Sequence[tuple[str, Operands]]) -> tuple[float, list[tuple[str, Operands]]]:
        """Return the product of the constants that the first steps multiply by, and the other steps."""
        scale, rest = 1.0, list(steps)
        place = 0
        while place < len(rest) and rest[place][0] in ("Mul", "Div"):
            step, (operand,) = rest[place]
            number, spec = self._read_number(operand), self._spec(operand)
            if number is None or spec is None or (step == "Div" and not number):
                place += 1
                continue
            scale = scale * number if step == "Mul" else scale / number
            del rest[place]
        return scale, rest

    def _group(self, query: Value, keys: Value, values: Value, before: list[Node]) -> tuple[Value, Value]:
        """Return K and V without the copies of repeated heads, where both have them."""
        transpose = self._producers.get(keys)
        if transpose is None or transpose.operator != Transpose((0, 1, 3, 2)) or transpose.inputs[0] is None:
            return keys, values
        found = [self._find_repeated(value) for value in (transpose.inputs[0], values)]
        spec = self._spec(query)
        if spec is None or spec.rank != 4 or None in found:
            return keys, values
        grouped = []
        for reshape in found:
            assert reshape is not None
            source, shape = reshape.inputs
            assert source is not None and shape is not None
            operator = reshape.operator
            assert isinstance(operator, Reshape)
            grouped.append(self._add(source, GroupHeads(operator.allowzero), (shape,), before))
        return self._add(grouped[0], Transpose((0, 1, 2, 4, 3)), (), before), grouped[1]

    def _widen(
        self, operands: tuple[Value, Value, Value], precision: str, gone: list[Node], before: list[Node]
    ) -> tuple[Value, Value, Value]:
        """Return Q, K and V as the floats that they are rounded of, where queries are few and K and V are held as such.

        Attention rounds them while it reads them, without a launch and a tensor for each. What nothing else reads as
        float is better rounded by the kernel that makes it.
        """
        spec, narrow = self._spec(operands[0]), find_narrow(precision)
        if narrow is None or spec is None or spec.shape[-2] > FEW_QUERIES:
            return operands
        climbs = [self._climb_views(each, narrow) for each in operands]
        if any(climb is None for climb in climbs) or not all(self._is_held(climb[-1]) for climb in climbs[1:] if climb):
            return operands
        found = []
        for *views, cast in [climb for climb in climbs if climb is not None]:
            value = cast.inputs[0]
            assert value is not None
            for node in reversed(views):
                value, seen = self._add(value, node.operator, node.inputs[1:], before), self._spec(_first(node))
                if seen is not None:
                    self._note(value, seen.shape)
            found.append(value)
            for node in (*views, cast):  # but what others read, too
                if len(self._consumers.get(_first(node), [])) > 1 or _first(node) in self._outputs:
                    break
                gone.append(node)
        return found[0], found[1], found[2]

    def _climb_views(self, value: Value, narrow: np.dtype[Any]) -> list[Node] | None:
        """Return the views that show a rounded value, the last one first, and the Cast that rounds it."""
        nodes: list[Node] = []
        for _ in range(_MAX_STEPS):
            node = self._producers.get(value)
            if node is None or node.inputs[0] is None:
                return None
            nodes.append(node)
            if isinstance(node.operator, Cast):
                return nodes if dtype_row(node.operator.to).numpy == narrow else None
            if not (node.operator.makes_views and node.operator.keeps_dtype) or len(node.outputs) != 1:
                return None
            value = node.inputs[0]
        return None

    def _is_held(self, cast: Node) -> bool:
        """Return whether the float that a Cast rounds is there anyway, and what it gives is read once."""
        source = cast.inputs[0]
        assert source is not None
        if len(self._consumers.get(_first(cast), [])) > 1:
            return False
        producer = self._producers.get(source)
        is_read = source in self._outputs or len(self._consumers.get(source, [])) > 1
        return is_read or producer is None or producer.operator.name not in PRODUCERS

    def _find_repeated(self, value: Value) -> Node | None:
        """Return the Reshape that joins heads with the axis that an Expand repeats them along."""
        reshape = self._producers.get(value)
        if reshape is None or not isinstance(reshape.operator, Reshape) or reshape.inputs[0] is None:
            return None
        expand = self._producers.get(reshape.inputs[0])
        if expand is None or not isinstance(expand.operator, Expand):
            return None
        whole, joined, single = self._spec(reshape.inputs[0]), self._spec(value), self._spec(expand.inputs[0])
        if whole is None or joined is None or single is None or whole.rank != 5 or single.rank != 5:
            return None
        return reshape if joined.shape == join_groups(whole.shape) and single.shape[2] == 1 else None

    def _find_order(self, value: Value) -> tuple[tuple[int, ...] | None, Node | None]:
        """Return the order in which the only reader of the result wants its axes, the columns last, and that reader."""
        readers = self._consumers.get(value, [])
        if value in self._outputs or len(readers) != 1 or not isinstance(readers[0].operator, Transpose):
            return None, None
        perm = readers[0].operator.perm
        return (perm, readers[0]) if perm is not None and perm[-1] == len(perm) - 1 else (None, None)

    def _find_rounding(self, value: Value, precision: str) -> Node | None:
        """Return the only reader of the result where that rounds it to the type of a precision."""
        readers, narrow = self._consumers.get(value, []), find_narrow(precision)
        if narrow is None or value in self._outputs or len(readers) != 1 or not isinstance(readers[0].operator, Cast):
            return None
        return readers[0] if dtype_row(readers[0].operator.to).numpy == narrow else None

    def _read_number(self, value: Value | None) -> float | None:
        """Return a constant of one element that stretches nothing."""
        array = None if value is None else self._graph.constants.get(value)
        if array is None or array.size != 1 or array.ndim > 2 or array.dtype.kind not in "fV":
            return None
        return float(np.asarray(read_content(array)).reshape(()))


def _first(node: Node) -> Value:
    value = node.outputs[0]
    assert value is not None
    return value


def _split_equation(node: Node) -> tuple[tuple[str, str], str] | None:
    """Return the labels of both operands and of the result of an Einsum; None where it has others, or an ellipsis."""
    operator = node.operator
    assert isinstance(operator, Einsum)
    inputs, arrow, out = operator.equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not arrow or len(terms) != 2 or "." in inputs + out or len(out) < 2:
        return None
    if any(len(set(term)) != len(term) for term in (*terms, out)):
        return None
    return (terms[0], terms[1]), out


def _find_precision(node: Node) -> str:
    """Return the precision of a product's operands; empty: they are as they come."""
    return node.operator.precision if isinstance(node.operator, MatMul) else ""


def _is_product(node: Node) -> bool:
    """Return whether a node is a product of matrices that may add in any order, of operands that attention takes."""
    return node.operator.name in _PRODUCTS and _find_precision(node) in ("", *STORED)
