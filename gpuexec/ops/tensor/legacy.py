"""Experimental operators of old opsets that ONNX has removed since: Affine, Crop and others.

Affine and Crop are operators here; the others are rewritten to newer ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import Array, Derivative, Emitter, Operator, Out, Slots, Tolerance, operator, upgrade
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.elementwise.elementwise import Form, Row, add_table
from gpuexec.ops.elementwise.elementwise_engine import FLOATS
from gpuexec.ops.tensor.layout import window

_LAST = 10  # the first opset without them


def _affine(x: Array, alpha: float, beta: float, out: Array) -> None:
    np.add(alpha * x, beta, out=out)


LEGACY_ROWS = (
    Row(
        "Affine",
        FLOATS,
        Form(_affine, "ScaleAndShift"),
        (("alpha", 1.0), ("beta", 0.0)),
        tolerance=Tolerance.EXACT,
        derivative=Derivative.REFUSED,
    ),
)
globals().update(add_table(LEGACY_ROWS, "elementwise_unary.cu", "unary", 1, __name__))


@operator("Crop")
@dataclass(frozen=True, slots=True)
class Crop(Operator):
    """Cropped plane of ``[n, c, h, w]``: ``border`` from left, top, right, bottom, or ``scale`` from left and top on.

    ``scale`` is the height and width to keep.
    """

    border: tuple[int, ...] = (0, 0, 0, 0)
    scale: tuple[int, ...] = ()
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return the cropped spec.

        Raises:
            InputError: Attributes don't fit each other or the input.
        """
        return (x.with_shape((*x.shape[:2], *(rows.stop - rows.start for rows in self._find_part(x.shape)))),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Index; always a view."""
        return (x[(..., *self._find_part(x.shape))],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the input's bytes from the first element kept."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        offset = sum(rows.start * stride for rows, stride in zip(self._find_part(x.shape), x.strides[2:], strict=True))
        emit.alias(y, window(x, y.shape, x.strides, offset if y.spec.size else 0))

    def _find_part(self, shape: tuple[int, ...]) -> tuple[slice, slice]:
        if len(shape) != 4 or len(self.border) != 4 or len(self.scale) not in (0, 2):
            raise InputError(
                f"Crop expects an input [n, c, h, w], four borders, and a scale of two extents if any, got "
                f"{list(shape)}, {list(self.border)} and {list(self.scale)}."
            )
        (height, width), (left, top, right, bottom) = shape[2:], self.border
        ends = (top + self.scale[0], left + self.scale[1]) if self.scale else (height - bottom, width - right)
        if min(*self.border, *self.scale) < 0 or not (top <= ends[0] <= height and left <= ends[1] <= width):
            raise InputError(
                f"Crop expects a part of the plane {height} x {width}, got border {list(self.border)} and scale "
                f"{list(self.scale)}."
            )
        return slice(top, ends[0]), slice(left, ends[1])


@upgrade("ImageScaler", below=_LAST)
def _normalize_image(node: RawNode) -> RawNode:
    """Rewrite ``x * scale + bias[c]`` as a BatchNormalization of mean 0 and variance 1.

    Raises:
        InputError: There is no bias.
    """
    bias = np.array(node.attributes.get("bias", ()), np.float32)
    if not bias.size:
        raise InputError("ImageScaler expects a bias for each channel, got none.")
    scale = np.full(bias.size, node.attributes.get("scale", 1.0), np.float32)
    node = replace(node.without("bias", "scale"), op_type="BatchNormalization").with_attributes(epsilon=0.0)
    for index, array in enumerate((scale, bias, np.zeros_like(bias), np.ones_like(bias)), 1):
        node = node.with_input(index, array)
    return node


@upgrade("Scale", below=_LAST)
def _scale(node: RawNode) -> RawNode:
    """Rewrite as Affine without an offset."""
    return replace(node, op_type="Affine", attributes={"alpha": node.attributes.get("scale", 1.0)})


@upgrade("ScaledTanh", below=_LAST)
@upgrade("ParametricSoftplus", below=_LAST)
def _scale_around(node: RawNode) -> RawNode:
    """Rewrite as ``alpha * f(beta * x)``."""
    scaled, inner = f"{node.outputs[0]}.scaled", f"{node.outputs[0]}.inner"
    function = {"ScaledTanh": "Tanh", "ParametricSoftplus": "Softplus"}[node.op_type]
    before = (
        _node("Affine", node.inputs, scaled, {"alpha": node.attributes.get("beta", 1.0)}),
        _node(function, (scaled,), inner),
    )
    alpha = {"alpha": node.attributes.get("alpha", 1.0)}
    return replace(node, op_type="Affine", inputs=(inner,), attributes=alpha, before=(*node.before, *before))


@upgrade("MeanVarianceNormalization", below=9)
def _choose_axes(node: RawNode) -> RawNode:
    """Set the axes of ``[n, c, h, w]``, and whether to divide, which two flags chose until opset 8."""
    axes = (0, 1, 2, 3) if node.attributes.get("across_channels", 0) else (0, 2, 3)
    if node.attributes.get("normalize_variance", 1):
        return replace(node, attributes={"axes": axes})
    mean, listed = f"{node.outputs[0]}.mean", f"{node.outputs[0]}.axes"
    before = (*node.before, _node("ReduceMean", (node.inputs[0], listed), mean))
    constants = {**node.constants, listed: np.array(axes, np.int64)}
    inputs = (node.inputs[0], mean)
    return replace(node, op_type="Sub", inputs=inputs, attributes={}, constants=constants, before=before)


@upgrade("DynamicSlice", below=_LAST)
def _slice(node: RawNode) -> RawNode:
    """Rewrite as Slice of opset 10 without steps."""
    return replace(node, op_type="Slice")


@upgrade("ConstantFill", below=_LAST)
def _fill_with_number(node: RawNode) -> RawNode:
    """Rewrite as one number, in a shape that is given, or that of the input, or the input's content."""
    dtype = dtype_row(int(node.attributes.get("dtype", 1))).numpy
    value = np.array([node.attributes.get("value", 0.0)]).astype(dtype)
    node, shape = _find_shape(node)
    return replace(node, op_type="ConstantOfShape", inputs=(shape,), attributes={"value": value})


@upgrade("GivenTensorFill", below=_LAST)
def _fill_with_numbers(node: RawNode) -> RawNode:
    """Rewrite as numbers in row-major order, in a shape as ConstantFill finds it."""
    values = np.array(node.attributes.get("values", ()), np.float32)
    node, shape = _find_shape(node)
    name = f"{node.outputs[0]}.values"
    node = replace(node, op_type="Reshape", inputs=(name, shape), attributes={"allowzero": 1})
    return replace(node, constants={**node.constants, name: values})


@upgrade("GRUUnit", below=_LAST)
def _step(node: RawNode) -> RawNode:
    """Rewrite one step of a GRU with its reset gate applied: ``h * u + (1 - u) * o`` while the sequence lasts.

    ``u`` is the sigmoid of the second third of the gates, ``o`` the tanh of the last. A sequence that is over keeps its
    state, or has zeros with ``drop_states``.

    Raises:
        InputError: There are more or fewer inputs.
    """
    if len(node.inputs) != 4:
        raise InputError(f"GRUUnit expects 4 inputs, hidden state, gates, lengths and time, got {len(node.inputs)}.")
    hidden, gates, lengths, time = node.inputs
    names = ("reset", "update", "output", "u", "o", "difference", "part", "state", "flags", "rows", "zero")
    own = {name: f"{node.outputs[0]}.{name}" for name in names}
    axis, zero = f"{node.outputs[0]}.axis", f"{node.outputs[0]}.number"
    split = _node("Split", (gates,), own["reset"], {"axis": -1, "num_outputs": 3})
    before = [
        replace(split, outputs=(own["reset"], own["update"], own["output"])),
        _node("Sigmoid", (own["update"],), own["u"]),
        _node("Tanh", (own["output"],), own["o"]),
        _node("Sub", (hidden, own["o"]), own["difference"]),
        _node("Mul", (own["difference"], own["u"]), own["part"]),
        _node("Add", (own["part"], own["o"]), own["state"]),
        _node("Less", (time, lengths), own["flags"]),
        _node("Unsqueeze", (own["flags"], axis), own["rows"]),
    ]
    constants = {axis: np.array([-1], np.int64)}
    otherwise = hidden
    if node.attributes.get("drop_states", 0):
        constants[zero] = np.zeros((), np.float32)
        before.append(_node("CastLike", (zero, hidden), own["zero"]))
        otherwise = own["zero"]
    inputs = (own["rows"], own["state"], otherwise)
    constants = {**node.constants, **constants}
    node = replace(node, op_type="Where", inputs=inputs, attributes={}, constants=constants)
    return replace(node, before=(*node.before, *before))


def _find_shape(node: RawNode) -> tuple[RawNode, str]:
    """Return the node with a node in front that makes its shape, and the name of that shape."""
    base, attributes = node.outputs[0], node.attributes
    given, extra = f"{base}.given", f"{base}.extra"
    if not node.inputs or not node.inputs[0]:
        shape = np.array(attributes.get("shape", ()), np.int64)
        return replace(node, constants={**node.constants, given: shape}), given
    read = ("Cast", {"to": dtype_row("int64").code}) if attributes.get("input_as_shape", 0) else ("Shape", {})
    before = (
        _node(read[0], node.inputs[:1], given, read[1]),
        _node("Concat", (given, extra), f"{base}.shape", {"axis": 0}),
    )
    constants = {**node.constants, extra: np.array(attributes.get("extra_shape", ()), np.int64)}
    return replace(node, before=(*node.before, *before), constants=constants), f"{base}.shape"


def _node(op_type: str, inputs: tuple[str, ...], output: str, attributes: Mapping[str, Any] | None = None) -> RawNode:
    """Return a node to be put in front, in its newest form."""
    return RawNode(op_type, "", output, inputs, (output,), attributes or {}, _LAST)
