"""Quantisation of products and convolutions: QuantizeLinear and DequantizeLinear in front of what they multiply.

Constants become int8 with a scale for each channel, symmetric about zero, behind a DequantizeLinear; activations go
through a QuantizeLinear and a DequantizeLinear with the scale that calibration found, once for all that read one. A
bias stays float: it is added to sums that are scaled back already, where rounding it would gain nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import build
from gpuexec.ir.spec import smallest_of
from gpuexec.ops.quant.quantize import WIDE
from gpuexec.passes.compress_weights import to_int8
from gpuexec.passes.narrow_weights import add_constant

# Of an operator that names one input alone, the other factor goes by other rules, such as a cache's.
_FACTORS = 2
# A weight, and the axis that its scales run along; None: there is one scale.
_Channels = tuple[Value, int | None]


@dataclass(frozen=True, slots=True, eq=False)
class QuantizableProduct:
    """A product or convolution: positions of those of its factors that are weights, and of its activations."""

    node: Node
    weights: tuple[int, ...]
    activations: tuple[int, ...]

    def list_activations(self) -> tuple[Value, ...]:
        """Return the activations it multiplies."""
        return tuple([value for i in self.activations if (value := self.node.inputs[i]) is not None])


@dataclass(frozen=True, slots=True, eq=False)
class ActivationScale:
    """Scale and zero point of an activation: scalars, of its own type and of the integers it is stored in."""

    scale: Array
    zero: Array


def find_products(graph: Graph) -> tuple[QuantizableProduct, ...]:
    """Return the products and convolutions of a graph, of its bodies none, that multiply an activation.

    A factor that is quantised already, or made of constants by nodes that are left, takes its product off the list.
    """
    producers = graph.producers()
    fixed: set[Value | None] = {None, *graph.constants}
    found = []
    for node in graph.nodes:
        if fixed.issuperset(node.inputs) and not node.operator.is_random:
            fixed.update(node.outputs)
        places = node.operator.multiplied
        factors = [node.inputs[i] if i < len(node.inputs) else None for i in places]
        if len(places) < _FACTORS or any(
            value is None or _is_stored(value, graph, producers, fixed) for value in factors
        ):
            continue
        weights = tuple([i for i, value in zip(places, factors, strict=True) if value in graph.constants])
        if len(weights) < len(places):
            found.append(QuantizableProduct(node, weights, tuple([i for i in places if i not in weights])))
    return tuple(found)


def quantize_products(
    graph: Graph,
    products: Sequence[QuantizableProduct],
    scales: Mapping[Value, ActivationScale],
    *,
    per_channel: bool = True,
) -> tuple[Graph, tuple[QuantizableProduct, ...]]:
    """Return a graph with products of quantised factors, and these.

    A product stays as it is where an activation has no scale, or a weight is not finite or of another type.

    Args:
        graph: The graph.
        products: Those to quantise, of `find_products`.
        scales: Of activations.
        per_channel: Weights have a scale for each channel, else one.
    """
    writer = _Writer(graph, scales)
    changed: dict[Node, QuantizableProduct] = {}
    for product in products:
        narrow = [writer.add_weight(product.node, i, per_channel) for i in product.weights]
        if all(narrow) and all(value in scales for value in product.list_activations()):
            changed[product.node] = product
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in changed:
            nodes.append(node)
            continue
        inputs, product = list(node.inputs), changed[node]
        for i in product.weights:
            inputs[i] = writer.read_weight(node, i, per_channel, nodes)
        for i in product.activations:
            inputs[i] = writer.read_activation(inputs[i], nodes)
        nodes.append(replace(node, inputs=tuple(inputs)))
    used = {value for node in nodes for value in node.inputs} | set(graph.outputs)
    constants = {value: array for value, array in writer.constants.items() if value in used}
    return replace(graph, nodes=tuple(nodes), constants=constants), tuple(changed.values())


def make_scale(least: float, most: float, float_type: np.dtype[Any], integer_type: np.dtype[Any]) -> ActivationScale:
    """Return the scale and zero point of a range that holds zero.

    int8 is symmetric: the zero point is 0, and -128 is left to what lies beyond. uint8 begins at the least element, and
    zero is one of its numbers.
    """
    if integer_type.kind == "i":
        levels, width = 127, max(-least, most)
    else:
        levels, width = 255, max(most, 0.0) - min(least, 0.0)
    scale = np.asarray(max(width / levels, smallest_of(float_type))).astype(float_type)
    place = 0 if integer_type.kind == "i" else round(-min(least, 0.0) / float(scale))
    zero = np.asarray(min(max(place, 0), 255), integer_type)
    scale.flags.writeable = zero.flags.writeable = False
    return ActivationScale(scale, zero)


class _Writer:
    """Quantised constants of a graph, and the nodes that dequantise: each made once, before its first reader."""

    def __init__(self, graph: Graph, scales: Mapping[Value, ActivationScale]) -> None:
        self.constants = dict(graph.constants)
        self._scales = scales
        self._names = {value.name for value in graph.values()}
        self._taken = {node.name for node in graph.nodes}
        self._narrow: dict[_Channels, tuple[Array, Array] | None] = {}
        self._made: dict[Value | _Channels, Value] = {}

    def add_weight(self, node: Node, factor: int, per_channel: bool) -> bool:
        """Quantise a weight; return whether that can be done."""
        key = value, axis = self._find_channels(node, factor, per_channel)
        if key not in self._narrow:
            array = self.constants[value]
            is_fit = array.dtype in WIDE and array.size > 0
            self._narrow[key] = to_int8(array, axis) if is_fit else None
        return self._narrow[key] is not None

    def read_weight(self, node: Node, factor: int, per_channel: bool, nodes: list[Node]) -> Value:
        """Return a weight dequantised."""
        key = value, axis = self._find_channels(node, factor, per_channel)
        if key not in self._made:
            narrow = self._narrow[key]
            assert narrow is not None, "the weight was quantised before"
            parts = zip((f"{value.name}.int8", f"{value.name}.scale"), narrow, strict=True)
            inputs = [add_constant(name, array, self.constants, self._names) for name, array in parts]
            attributes = {} if axis is None else {"axis": axis}
            self._made[key] = self._add("DequantizeLinear", attributes, inputs, f"{value.name}.dequantized", nodes)
        return self._made[key]

    def read_activation(self, value: Value | None, nodes: list[Node]) -> Value:
        """Return an activation quantised and dequantised."""
        assert value is not None, "factors are given"
        if value not in self._made:
            found = self._scales[value]
            scale = add_constant(f"{value.name}.scale", found.scale, self.constants, self._names)
            zero = add_constant(f"{value.name}.zero", found.zero, self.constants, self._names)
            stored = self._add("QuantizeLinear", {}, [value, scale, zero], f"{value.name}.quantized", nodes)
            self._made[value] = self._add(
                "DequantizeLinear", {}, [stored, scale, zero], f"{value.name}.dequantized", nodes
            )
        return self._made[value]

    def _find_channels(self, node: Node, factor: int, per_channel: bool) -> _Channels:
        value = node.inputs[factor]
        assert value is not None, "factors are given"
        rank = self.constants[value].ndim
        return value, node.operator.channel_axis(factor, rank) if per_channel else None

    def _add(
        self, operator: str, attributes: Mapping[str, Any], inputs: Sequence[Value], name: str, nodes: list[Node]
    ) -> Value:
        made = Value(take_free(name, self._names))
        nodes.append(Node(build(operator, attributes), tuple(inputs), (made,), take_free(made.name, self._taken)))
        return made


def _is_stored(value: Value, graph: Graph, producers: Mapping[Value, Node], fixed: set[Value | None]) -> bool:
    """Return whether a factor is quantised already, or made of constants by nodes that no pass could fold."""
    producer = producers.get(value)
    is_dequantized = producer is not None and producer.operator.name == "DequantizeLinear"
    return is_dequantized or (value in fixed and value not in graph.constants)
