"""Merging of products that read one input, such as the queries, keys and values of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuexec.errors import name_after
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import Operator, describe
from gpuexec.ir.spec import BFLOAT16
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.tensor.layout import Transpose
from gpuexec.ops.tensor.slice import Split
from gpuexec.system.mapped import find_source, read_content

# Columns of a product that begin at multiples of these lie on 16 bytes in every float type.
_COLUMNS = 8
# Limit of merged weights whose parts are in files: they are read to the host, where the parts stay mapped.
_COPIED_NBYTES = 1 << 28
_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of a value with a constant weight, with the vector that is added to it.

    Attributes:
        node: The product.
        weight: The weight as it is stored.
        axis: Its axis of columns.
        turn: The Transpose that the product reads it through; None: there is none.
        bias: The vector; None: there is none.
        addition: The Add that adds it; None: the product does.
        activation: What alone reads a convolution; None: nothing does, or it is none.
        coded: Of a product with codes, all its inputs behind the first, rows of each column one after the other.
    """

    node: Node
    weight: Value
    axis: int
    turn: Node | None
    bias: Value | None
    addition: Node | None
    activation: Node | None = None
    coded: tuple[Value | None, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """Return its nodes in order."""
        return [node for node in (self.node, self.addition, self.activation) if node is not None]

    @property
    def result(self) -> Value:
        """Return what comes out."""
        result = self.nodes[-1].outputs[0]
        assert result is not None
        return result


def merge_products(graph: Graph) -> Graph:
    """Merge products of one value with constant weights into one, whose parts are its results.

    A launch fills the device better than several, and reads the value once. Each element is the sum of the same terms,
    which kernels may add in another order. Weights are joined along their columns; where there are more in files than
    the host should hold, products stay as they are. Convolutions of single positions are products, too: those with the
    same activation, or with none that their kernel could apply; and so are products with codes (MatMulNBits).
    """
    merging = _Merging(graph)
    found: dict[object, list[_Product]] = {}
    for node in graph.nodes:
        product = merging.read(node)
        if product is not None:
            found.setdefault(merging.describe(product), []).append(product)
    for products in found.values():
        if len(products) > 1:
            merging.merge(products)
    return merging.finish()


class _Merging:
    """The graph under construction."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._constants = graph, dict(graph.constants)
        self._readers, self._makers = graph.consumers(), graph.producers()
        self._outputs = set(graph.outputs)
        self._places = {id(node): place for place, node in enumerate(graph.nodes)}
        self._value_names = {value.name for value in graph.values()}
        self._node_names = {node.name for node in graph.nodes}
        self._left = _COPIED_NBYTES
        self._made: dict[int, tuple[Node, ...]] = {}  # nodes in place of another, by its identity

    def read(self, node: Node) -> _Product | None:
        """Return a node as a product that could be merged; None where it is none."""
        if isinstance(node.operator, Conv):
            return self._read_conv(node, node.operator)
        if isinstance(node.operator, MatMulNBits):
            return self._read_coded(node, node.operator)
        if node.operator.name not in (MatMul.name, Gemm.name) or len(node.inputs) < 2 or node.inputs[0] is None:
            return None
        weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        is_gemm = isinstance(node.operator, Gemm)
        axis = 1 - node.operator.transB if isinstance(node.operator, Gemm) else 1
        turn = self._find_turn(weight)
        if turn is not None:
            weight, axis = turn.inputs[0], 1 - axis
        array = self._constants.get(weight) if weight is not None else None
        if weight is None or array is None or array.ndim != 2 or array.dtype not in _FLOATS:
            return None
        if array.shape[axis] % _COLUMNS or not array.size or (bias is not None and not self._is_row(bias, array, axis)):
            return None
        addition = None if is_gemm else self._find_addition(node, array, axis)
        if addition is not None:
            bias = next(value for value in addition.inputs if value in self._constants)
        return _Product(node, weight, axis, turn, bias, addition)

    def describe(self, product: _Product) -> object:
        """Return what products have in common that can be one."""
        node, array = product.node, self._constants[product.weight]
        if product.coded:
            alike = describe(replace(node.operator, N=0))  # type: ignore[type-var]
            arrays = [None if value is None else self._constants[value] for value in product.coded]
            rows = tuple([None if x is None else (x.dtype, x.shape[1:]) for x in arrays])
            return node.inputs[0], alike, rows, node.part_of
        inner = (*array.shape[: product.axis], *array.shape[product.axis + 1 :])
        activation = None if product.activation is None else describe(product.activation.operator)
        kind = (*describe(node.operator), product.turn is None, product.bias is None, product.addition is None)
        return node.inputs[0], array.dtype, inner, product.axis, kind, activation, node.part_of

    def merge(self, products: Sequence[_Product]) -> None:
        """Put one product and a Split of it in the place of several, where the host has room for their weight."""
        first = products[0]
        if first.coded:
            self._merge_coded(products)
            return
        arrays = [self._constants[each.weight] for each in products]
        widths = [array.shape[each.axis] for array, each in zip(arrays, products, strict=True)]
        if not self._has_room(arrays):
            return
        whole = np.concatenate([read_content(array) for array in arrays], axis=first.axis)
        weight: Value = self._add(first, "weight", whole)
        nodes: list[Node] = []
        if first.turn is not None:
            weight = self._append(nodes, first, first.turn.operator, (weight,), "turned")
        inputs: tuple[Value | None, ...] = (first.node.inputs[0], weight)
        bias = self._join_biases(products)
        if bias is not None and first.addition is None:
            inputs = (*inputs, bias)
        name = "+".join(each.node.name for each in products)
        value = self._append(nodes, first, first.node.operator, inputs, "merged", name)
        if bias is not None and first.addition is not None:
            added = "+".join(each.addition.name for each in products if each.addition is not None)
            value = self._append(nodes, first, first.addition.operator, (value, bias), "added", added)
        if first.activation is not None:
            activated = "+".join(each.activation.name for each in products if each.activation is not None)
            value = self._append(nodes, first, first.activation.operator, (value,), "activated", activated)
        self._divide(products, nodes, value, widths, axis=1 if isinstance(first.node.operator, Conv) else -1)

    def _merge_coded(self, products: Sequence[_Product]) -> None:
        """The same of products with codes."""
        first, widths, inputs = products[0], list[int](), list[Value | None]()
        given = [value for each in products for value in each.coded if value is not None]
        if not self._has_room([self._constants[value] for value in given]):
            return
        for place, value in enumerate(first.coded):
            arrays = [self._constants[own] for each in products if (own := each.coded[place]) is not None]
            whole = None if value is None else np.concatenate([*map(read_content, arrays)])
            inputs.append(None if whole is None else self._add(first, f"input{place + 1}", whole))
        for each in products:
            assert isinstance(each.node.operator, MatMulNBits)
            widths.append(each.node.operator.N)
        operator = replace(first.node.operator, N=sum(widths))  # type: ignore[type-var]
        nodes: list[Node] = []
        name = "+".join(each.node.name for each in products)
        value = self._append(nodes, first, operator, (first.node.inputs[0], *inputs), "merged", name)
        self._divide(products, nodes, value, widths, axis=-1)

    def _has_room(self, arrays: Sequence[Array]) -> bool:
        """Return whether the host has room for copies of weights in files, and count them."""
        copied = sum(array.nbytes for array in arrays if find_source(array) is not None)
        if copied > self._left:
            return False
        self._left -= copied
        return True

    def _divide(
        self, products: Sequence[_Product], nodes: Sequence[Node], value: Value, widths: Sequence[int], *, axis: int
    ) -> None:
        """Put nodes and a Split of what they give in the place of products."""
        first = products[0]
        sizes = self._add(first, "widths", np.array(widths, np.int64))
        split = Node(
            Split(axis), (value, sizes), tuple(each.result for each in products),
            self._take_name(f"{first.node.name}.parts", first), first.node.part_of,
        )  # fmt: skip
        for each in products:
            self._made.update({id(node): () for node in each.nodes})
        self._made[id(first.node)] = (*nodes, split)

    def finish(self) -> Graph:
        """Return the graph; constants that nothing reads any more are left to `remove_dead`."""
        if not self._made:
            return self._graph
        nodes = [made for node in self._graph.nodes for made in self._made.get(id(node), (node,))]
        return replace(self._graph, nodes=tuple(nodes), constants=self._constants)

    def _read_coded(self, node: Node, operator: MatMulNBits) -> _Product | None:
        """Return a product with constant codes as one that could be merged; None where its k have another order."""
        coded = (*node.inputs[1:], *(None,) * 5)[:5]
        weight, groups = coded[0], coded[3]
        given = [value for value in coded if value is not None]
        is_constant = node.inputs[0] is not None and all(value in self._constants for value in given)
        if weight is None or groups is not None or not is_constant or operator.N % _COLUMNS or not operator.N:
            return None
        arrays = [self._constants[value] for value in given]
        if any(array.ndim != 1 and array.shape[:1] != (operator.N,) for array in arrays):
            return None
        return _Product(node, weight, 0, None, None, None, coded=coded)

    def _read_conv(self, node: Node, operator: Conv) -> _Product | None:
        """Return a convolution of single positions as a product that could be merged; None where it is none."""
        weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        array = self._constants.get(weight) if weight is not None else None
        if weight is None or array is None or array.dtype not in _FLOATS or operator.auto_pad == "VALID":
            return None
        is_pointwise = operator.group == 1 and set(operator.strides) <= {1} and not any(operator.pads)
        if not is_pointwise or set(array.shape[2:]) != {1} or array.shape[0] % _COLUMNS or not array.size:
            return None
        if bias is not None and not self._is_row(bias, array, 0):
            return None
        activation = self._find_activation(node)
        product = _Product(node, weight, 0, None, bias, None, activation)
        return product if self._stands_alone(product) else None

    def _find_activation(self, node: Node) -> Node | None:
        """Return the operator on elements of one input that alone reads what a node makes."""
        value = node.outputs[0]
        readers = self._readers.get(value, []) if value is not None else []
        if value in self._outputs or len(readers) != 1:
            return None
        return readers[0] if _is_pointwise(readers[0]) and len(readers[0].inputs) == 1 else None

    def _stands_alone(self, product: _Product) -> bool:
        """Return whether no operator on elements follows that the kernel could apply, and it is no output."""
        own = self._places[id(product.node)]
        for reader in self._readers.get(product.result, []):
            others = [value for value in reader.inputs if value is not None and value is not product.result]
            made = [self._places[id(self._makers[value])] for value in others if value in self._makers]
            if _is_pointwise(reader) and max(made, default=-1) < own:
                return False
        return product.result not in self._outputs

    def _find_turn(self, weight: Value | None) -> Node | None:
        """Return the Transpose of a constant matrix that makes a weight."""
        maker = self._makers.get(weight) if weight is not None else None
        is_turn = maker is not None and isinstance(maker.operator, Transpose) and maker.inputs[0] in self._constants
        return maker if is_turn else None

    def _is_row(self, bias: Value, weight: Array, axis: int) -> bool:
        array = self._constants.get(bias)
        return array is not None and array.shape == (weight.shape[axis],) and array.dtype == weight.dtype

    def _find_addition(self, node: Node, weight: Array, axis: int) -> Node | None:
        """Return the Add of a constant vector that alone reads a product."""
        (value,) = node.outputs
        readers = self._readers.get(value, []) if value is not None else []
        if value is None or value in self._outputs or len(readers) != 1 or readers[0].operator.name != "Add":
            return None
        others = [given for given in readers[0].inputs if given is not value]
        is_row = len(others) == 1 and others[0] is not None and self._is_row(others[0], weight, axis)
        return readers[0] if is_row else None

    def _join_biases(self, products: Sequence[_Product]) -> Value | None:
        biases = [self._constants[each.bias] for each in products if each.bias is not None]
        return self._add(products[0], "bias", np.concatenate([*map(read_content, biases)])) if biases else None

    def _add(self, product: _Product, part: str, array: Array) -> Value:
        """Add a constant under a name of its own."""
        array.flags.writeable = False
        value = Value(take_free(f"{product.node.name}.{part}", self._value_names))
        self._constants[value] = array
        return value

    def _append(
        self, nodes: list[Node], first: _Product, operator: Operator, inputs: Sequence[Value | None], part: str,
        name: str = "",
    ) -> Value:  # fmt: skip
        """Append a node of one output; return that."""
        value = Value(take_free(f"{first.node.name}.{part}", self._value_names))
        own = self._take_name(name or f"{first.node.name}.{part}", first)
        nodes.append(Node(operator, tuple(inputs), (value,), own, first.node.part_of))
        return value

    def _take_name(self, name: str, first: _Product) -> str:
        return name_after(take_free(name, self._node_names), first.node.name)


def _is_pointwise(node: Node) -> bool:
    return type(node.operator).as_pointwise is not Operator.as_pointwise
