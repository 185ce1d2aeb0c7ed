"""Recognition of normalizations and softmax in the reductions and arithmetic that exporters write them as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from math import inf, prod
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.geometry import Shape, normalize_axes
from gpuexec.ir.graphs import Array, Graph, Node, Value, take_free
from gpuexec.ir.operator import build
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ops.nn.norm_channels import InstanceNormalization
from gpuexec.ops.reduce.reduce import Reduction
from gpuexec.passes.formulas import Term, call
from gpuexec.passes.known_specs import infer_known
from gpuexec.passes.recognition import ARITHMETIC, Cone, Facts, Match, Reader, Recognition, Spelling
from gpuexec.system.mapped import read_content

# What a block normalizes well by itself. Where groups or rows are larger, their nodes have more blocks for one.
_MAX_GROUP, _MAX_ROW = 1 << 12, 1 << 16
_CAST = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
# Operators whose results may be of 16 bits: the last ones of a normalization that is computed in float.
_NARROW = ("Add", "Mul", "Cast", "Reshape", "InstanceNormalization")

# What the first reduction is of: x, its square, wider or in groups.
_CLIMBED = ("Pow", "Mul", "Cast", "Reshape")


def recognise_normalizations(graph: Graph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Replace the nodes of layer, RMS, instance and group normalization, softmax and its logarithm by one operator.

    What is between them must have no other reader. Results differ by the rounding of as many nodes. What is reduced in
    16 bits stays, since nodes round it one by one.

    Args:
        graph: The graph as loaded.
        specs: Specs of the inputs, by name.
    """
    placing = _Placing(graph, _Specs(graph, specs))
    search = Recognition(graph, _SPELLINGS, placing.specs, {**ARITHMETIC, **_READERS}, _NARROW, _CLIMBED)
    return search.replace(placing.place)


def _standardize(x: Term, epsilon: float) -> Term:
    centered = x - call("ReduceMean", x)
    return centered * (call("ReduceMean", centered**2) + epsilon) ** -0.5


def _layer(x: Term, scale: Term | float, bias: Term | float, epsilon: float) -> Term:
    return _standardize(x, epsilon) * scale + bias


def _rms(x: Term, scale: Term | float, epsilon: float) -> Term:
    return x * (call("ReduceMean", x**2) + epsilon) ** -0.5 * scale


def _group(x: Term, scale: Term, bias: Term, epsilon: float) -> Term:
    return call("join", call("InstanceNormalization", call("split", x), epsilon)) * scale + bias


def _group_apart(x: Term, scale: Term, bias: Term, epsilon: float) -> Term:
    return call("join", _standardize(call("split", x), epsilon)) * scale + bias


def _softmax(x: Term) -> Term:
    powers = call("Exp", x - call("ReduceMax", x))
    return powers / call("ReduceSum", powers)


def _log_softmax(x: Term) -> Term:
    shifted = x - call("ReduceMax", x)
    return shifted - call("Log", call("ReduceSum", call("Exp", shifted)))


# Softmax without the maximum is none: it overflows where Softmax doesn't.
_LAYER = partial(Spelling, "LayerNormalization", "ReduceMean", number="epsilon")
_SPELLINGS = (
    _LAYER(_layer, ("scale", "bias")),
    _LAYER(lambda x, scale, epsilon: _layer(x, scale, 0, epsilon), ("scale",)),
    _LAYER(lambda x, bias, epsilon: _layer(x, 1, bias, epsilon), ("bias",)),
    _LAYER(lambda x, epsilon: _layer(x, 1, 0, epsilon)),
    Spelling("RMSNormalization", "ReduceMean", _rms, ("scale",), "epsilon"),
    Spelling("RMSNormalization", "ReduceMean", lambda x, epsilon: _rms(x, 1, epsilon), (), "epsilon"),
    Spelling("GroupNormalization", "InstanceNormalization", _group, ("scale", "bias"), "epsilon"),
    Spelling("GroupNormalization", "ReduceMean", _group_apart, ("scale", "bias"), "epsilon"),
    Spelling("Softmax", "ReduceMax", _softmax),
    Spelling("LogSoftmax", "ReduceMax", _log_softmax),
)
NORMALIZATION_ANCHORS = frozenset(each.anchor for each in _SPELLINGS)


class _Specs(Facts):
    """The specs of a graph's values."""

    def __init__(self, graph: Graph, inputs: Mapping[str, TensorSpec]) -> None:
        self._graph, self._inputs = graph, inputs

    def find(self, value: Value | None) -> TensorSpec | None:
        """Return the spec of a value; None: it does not follow."""
        return None if value is None else self._known.get(value)

    def find_shape(self, value: Value | None) -> Shape | None:
        """Return the shape of a value; None: it does not follow."""
        spec = self.find(value)
        return None if spec is None else spec.shape

    def find_axes(self, node: Node) -> tuple[int, ...] | None:
        """Return the axes that a node reduces, in order; None: they don't follow, or it reduces none."""
        if not isinstance(node.operator, Reduction):
            return None
        shape, given = self.find_shape(node.inputs[0]), self.find((*node.inputs, None)[1])
        if shape is None or (given is not None and given.value is None):
            return None
        axes = range(len(shape)) if given is None or given.value is None else given.value.array.reshape(-1).tolist()
        return tuple(sorted(normalize_axes(axes, len(shape)))) or None

    def find_dtype(self, value: Value) -> np.dtype[Any] | None:
        spec = self.find(value)
        return None if spec is None else spec.dtype

    def find_rank(self, value: Value) -> int:
        spec = self.find(value)
        return 0 if spec is None else spec.rank

    def is_input(self, value: Value, x: Value) -> bool:
        spec = self.find(value)
        return spec is not None and (value in self._graph.constants or spec.rank < self.find_rank(x))

    @cached_property
    def _known(self) -> dict[Value, TensorSpec]:
        return infer_known(self._graph, self._inputs)


def _specs_of(cone: Cone) -> _Specs:
    assert isinstance(cone.search.facts, _Specs)
    return cone.search.facts


def _read_reduction(cone: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    """Return a reduction along the axes of the one that is looked around."""
    specs, operator = _specs_of(cone), node.operator
    assert isinstance(operator, Reduction)
    shape = specs.find_shape(node.inputs[0])
    axes = specs.find_axes(node)
    if axes is None or shape != specs.find_shape(cone.anchor.inputs[0]) or axes != specs.find_axes(cone.anchor):
        return None
    if not operator.keepdims:
        assert node.outputs[0] is not None
        cone.aside.add(node.outputs[0])
    return call(operator.name, terms[0])


def _read_view(cone: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    """Return a term whose axes are put in line, or spread along them, or split in groups."""
    specs = _specs_of(cone)
    source, made = node.inputs[0], node.outputs[0]
    assert source is not None and made is not None
    before, after, whole = specs.find_shape(source), specs.find_shape(made), specs.find_shape(cone.x)
    reduced, axes = specs.find_shape(cone.anchor.inputs[0]), specs.find_axes(cone.anchor)
    if before is None or after is None or reduced is None or whole is None:
        return None
    kept = tuple([1 if axes is not None and axis in axes else extent for axis, extent in enumerate(reduced)])
    if source in cone.aside or (axes is not None and before == kept):
        is_spread = node.operator.name == "Expand" and after == reduced and before == kept
        if axes is None or not (after == kept or is_spread):
            return None
        cone.aside.discard(made)
        return terms[0]
    if node.operator.name != "Reshape":
        return None
    if (before, after) == (whole, reduced):
        return call("split", terms[0])
    return call("join", terms[0]) if (before, after) == (reduced, whole) else None


def _read_cast(cone: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    """Return a term of another width: x that is widened, or a result that is rounded."""
    (source,), (made,) = node.inputs, node.outputs
    assert source is not None and made is not None
    before, after = cone.search.facts.find_dtype(source), cone.search.facts.find_dtype(made)
    is_widened = after == _CAST[0] and source is cone.x
    return terms[0] if before in _CAST and after in _CAST and (before == _CAST[0] or is_widened) else None


def _read_maximum(cone: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    """Return a term of which nothing is less than minus infinity, beside that."""
    others = [term for term in terms if term.as_number != -inf]
    return others[0] if len(terms) == 2 and len(others) == 1 else None


def _read_instance(cone: Cone, node: Node, terms: Sequence[Term]) -> Term | None:
    """Return a normalization whose scale is 1 and bias 0."""
    constants = cone.search.graph.constants
    assert isinstance(node.operator, InstanceNormalization)
    scale, bias = (constants.get(value) if value is not None else None for value in node.inputs[1:])
    if scale is None or bias is None or np.any(read_content(scale) != 1) or np.any(read_content(bias) != 0):
        return None
    epsilon = node.operator.epsilon
    cone.numbers[epsilon] = None
    return call(node.operator.name, terms[0], epsilon)


_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax"), Reader(_read_reduction, 1)),
    **dict.fromkeys(("Reshape", "Unsqueeze", "Expand"), Reader(_read_view, 1)),
    "Cast": Reader(_read_cast, 1),
    "Max": Reader(_read_maximum),
    "InstanceNormalization": Reader(_read_instance, 1),
}


class _Placing:
    """Operators in place of what is found, and the constants that they take."""

    def __init__(self, graph: Graph, specs: _Specs) -> None:
        self._graph, self.specs = graph, specs
        self._names = {value.name for value in graph.values()}

    def place(self, match: Match) -> tuple[list[Node], dict[Value, Array]] | None:
        """Return the node that computes a match; None where the operator would not, or not well."""
        spec, shape = self.specs.find(match.x), self.specs.find_shape(match.anchor.inputs[0])
        axes = self.specs.find_axes(match.anchor)
        assert spec is not None and shape is not None
        match match.spelling.operator:
            case "Softmax" | "LogSoftmax" as name:
                assert axes is not None
                return self._finish(match, name, (), axis=axes[0]) if len(axes) == 1 else None
            case "GroupNormalization":
                return self._place_groups(match, spec, shape, axes)
        assert axes is not None
        if axes == tuple(range(axes[0], spec.rank)) and prod(shape[axes[0] :]) <= _MAX_ROW:
            placed = self._place_rows(match, spec, axes[0])
            if placed is not None:
                return placed
        if match.spelling.operator == "LayerNormalization" and axes == tuple(range(2, spec.rank)) and match.others:
            return self._place_channels(match, spec, "InstanceNormalization")
        return None

    def _place_rows(self, match: Match, spec: TensorSpec, axis: int) -> tuple[list[Node], dict[Value, Array]] | None:
        """Return a normalization of trailing axes, where scale and bias have no others."""
        for value in match.others.values():
            shape = self.specs.find_shape(value)
            if shape is None or any(extent != 1 for extent in shape[: max(0, len(shape) + axis - spec.rank)]):
                return None
        dtype = spec.dtype
        if match.spelling.operator == "RMSNormalization" and (made := self.specs.find_dtype(match.result)) is not None:
            dtype = made
        bias = match.others.get("bias")
        like = self.specs.find_shape(bias) or (1,)
        scale = match.others.get("scale") or np.ones(like, dtype)
        inputs: list[Value | Array] = [scale] if bias is None else [scale, bias]
        return self._finish(match, match.spelling.operator, inputs, axis=axis)

    def _place_groups(
        self, match: Match, spec: TensorSpec, split: Shape, axes: tuple[int, ...] | None
    ) -> tuple[list[Node], dict[Value, Array]] | None:
        """Return a normalization of groups of channels, unless they are so large that more blocks share one."""
        if len(split) < 3 or spec.rank < 2 or split[0] != spec.shape[0] or spec.shape[1] % split[1]:
            return None
        if (axes is not None and axes != tuple(range(2, len(split)))) or prod(split[2:]) > _MAX_GROUP:
            return None
        if split[1] == spec.shape[1]:
            return self._place_channels(match, spec, "InstanceNormalization")
        return self._place_channels(match, spec, "GroupNormalization", num_groups=split[1])

    def _place_channels(
        self, match: Match, spec: TensorSpec, name: str, **attributes: int
    ) -> tuple[list[Node], dict[Value, Array]] | None:
        """Return a normalization of channels, where scale and bias are constants with one number for each."""
        channels, parameters = spec.shape[1], []
        for role, absent in (("scale", 1), ("bias", 0)):
            value = match.others.get(role)
            array = np.full(channels, absent, spec.dtype) if value is None else self._graph.constants.get(value)
            expected = (1, channels, *(1,) * (spec.rank - 2))
            if array is None or (1,) * (spec.rank - array.ndim) + array.shape != expected:
                return None
            parameters.append(array.reshape(channels))
        return self._finish(match, name, parameters, **attributes)

    def _finish(
        self, match: Match, name: str, inputs: Sequence[Value | Array], **attributes: int
    ) -> tuple[list[Node], dict[Value, Array]] | None:
        """Return the node with its inputs, where its result is of the same type and shape."""
        last, constants, given = match.nodes[-1], dict[Value, Array](), [match.x]
        for each in inputs:
            value = each if isinstance(each, Value) else Value(take_free(f"{last.name}.parameter", self._names))
            if not isinstance(each, Value):
                each.flags.writeable = False
                constants[value] = each
            given.append(value)
        operator = build(name, {**match.attributes, **attributes})
        specs = [TensorSpec.of(constants[value]) if value in constants else self.specs.find(value) for value in given]
        try:
            made = infer_specs(operator, specs)[0]
        except GpuexecError:
            return None
        result = self.specs.find(match.result)
        if result is None or (made.shape, made.dtype) != (result.shape, result.dtype):
            return None
        outputs = (match.result, *(None,) * (2 if name == "LayerNormalization" else 0))
        return [Node(operator, tuple(given), outputs, last.name, last.part_of)], constants
