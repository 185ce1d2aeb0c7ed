"""Decomposition of normalizations into operators with derivative rules."""

from __future__ import annotations

from typing import Any

from gpuexec.ir.graphs import Node, Value
from gpuexec.passes.derivatives.tape import Parts, Tape, first_of, given, refuse


def _normalize(tape: Tape, x: Value, axes: Value, epsilon: float, is_centered: bool = True) -> Value:
    if is_centered:
        x = tape.apply("Sub", x, tape.apply("ReduceMean", x, axes))
    variance = tape.apply("ReduceMean", tape.times(x, x), axes)
    return tape.apply("Div", x, tape.apply("Sqrt", tape.shift(variance, epsilon)))


def _finish(tape: Tape, node: Node, y: Value, scale: Value | None, bias: Value | None) -> tuple[Value, ...]:
    if scale is not None:
        y = tape.apply("Mul", y, scale)
    if bias is not None:
        y = tape.apply("Add", y, bias)
    return (tape.apply("CastLike", y, first_of(node)),)


def _trailing(is_centered: bool) -> Parts:
    def draw(tape: Tape, node: Node) -> tuple[Value, ...]:
        op: Any = node.operator
        x, *affine = (tape.apply("gpuexec.Widen", value) for value in given(node))
        y = _normalize(tape, x, tape.axes_from(op.axis, x), op.epsilon, is_centered)
        return _finish(tape, node, y, affine[0] if affine else None, affine[1] if len(affine) > 1 else None)

    return draw


def _along_channels(tape: Tape, x: Value, values: Value) -> Value:
    """Return one number for each channel of x so that they stretch along the places behind."""
    behind = tape.apply("Sub", tape.axes_from(2, x), tape.ints(1))
    return tape.apply("Unsqueeze", tape.apply("gpuexec.Widen", values), behind)


def _instances(tape: Tape, node: Node) -> tuple[Value, ...]:
    op: Any = node.operator
    source, scale, bias = given(node)
    x = tape.apply("gpuexec.Widen", source)
    y = _normalize(tape, x, tape.axes_from(2, x), op.epsilon)
    return _finish(tape, node, y, _along_channels(tape, x, scale), _along_channels(tape, x, bias))


def _groups(tape: Tape, node: Node) -> tuple[Value, ...]:
    op: Any = node.operator
    if op.per_group:
        raise refuse(node, "of an opset before 21")
    source, scale, bias = given(node)
    x = tape.apply("gpuexec.Widen", source)
    images, rest = tape.apply("Shape", x, end=1), tape.apply("Shape", x, start=1)
    size = tape.apply("ReduceProd", rest)
    rows = tape.apply(
        "Concat", images, tape.ints(op.num_groups), tape.apply("Div", size, tape.ints(op.num_groups)), axis=0
    )
    y = _normalize(tape, tape.apply("Reshape", x, rows, allowzero=1), tape.ints(2), op.epsilon)
    y = tape.reshape_like(y, x)
    return _finish(tape, node, y, _along_channels(tape, x, scale), _along_channels(tape, x, bias))


def _batches(tape: Tape, node: Node) -> tuple[Value, ...]:
    op: Any = node.operator
    if op.training_mode or op.per_activation:
        raise refuse(node, "in training" if op.training_mode else "with a mean for each activation")
    x, *channels = (tape.apply("gpuexec.Widen", value) for value in given(node))
    scale, bias, mean, variance = (_along_channels(tape, x, each) for each in channels)
    y = tape.apply("Div", tape.apply("Sub", x, mean), tape.apply("Sqrt", tape.shift(variance, op.epsilon)))
    return _finish(tape, node, y, scale, bias)


NORM_PARTS: dict[str, Parts] = {
    "LayerNormalization": _trailing(is_centered=True),
    "RMSNormalization": _trailing(is_centered=False),
    "InstanceNormalization": _instances,
    "GroupNormalization": _groups,
    "BatchNormalization": _batches,
}
