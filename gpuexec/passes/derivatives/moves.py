"""Derivative rules of operators that move elements: views, Concat, Split, Gather, Scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from gpuexec.ir.graphs import Node, Value
from gpuexec.passes.derivatives.tape import Derivatives, Rule, Tape, first_of, given, input_at, output_of, refuse


def _reshape(tape: Tape, node: Node, g: Value) -> Derivatives:
    return [tape.reshape_like(g, first_of(node))]


def _transpose(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    back = {} if op.perm is None else {"perm": tuple(int(axis) for axis in np.argsort(op.perm))}
    return [tape.apply("Transpose", g, **back)]


def _swap(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    return [tape.apply("gpuexec.SwapAxes", g, first=op.first, second=op.second)]


def _cast_like(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Pass back through CastLike; SumTo, which sums nothing here, refuses types without derivatives."""
    return [tape.apply("CastLike", tape.sum_to(g, output_of(node)), first_of(node)), None]


def _join(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    xs = given(node)
    until = {} if op.axis == -1 else {"end": op.axis + 1}
    sizes = tape.apply("Concat", *(tape.apply("Shape", x, start=op.axis, **until) for x in xs), axis=0)
    return tape.apply_all("Split", len(xs), g, sizes, axis=op.axis)


def _split(tape: Tape, node: Node, slopes: Sequence[Value | None]) -> Derivatives:
    op: Any = node.operator
    parts = []
    for value, slope in zip(node.outputs, slopes, strict=True):
        if value is None:
            raise refuse(node, "where a part has no name")
        parts.append(tape.full(0, value) if slope is None else slope)
    return [tape.apply("Concat", *parts, axis=op.axis)]


def put_back(tape: Tape, x: Value, places: Value, g: Value, reduction: str = "add") -> Value:
    """Scatter each element of g into zeros of the shape of x, added at the place in x that it came from."""
    flat = tape.flatten(g)
    size = tape.apply("Reshape", tape.apply("Size", x), tape.ints(1))
    zeros = tape.apply("Expand", tape.number(0, g), size)
    whole = tape.apply("ScatterElements", zeros, tape.flatten(places), flat, reduction=reduction)
    return tape.reshape_like(whole, x)


def _pick(reduction: str = "add") -> Rule:
    """Return the rule of an operator that picks elements, by applying it to element numbers."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        x = first_of(node)
        first, step = (tape.constant(np.int64(number)) for number in (0, 1))
        numbers = tape.reshape_like(tape.apply("Range", first, tape.apply("Size", x), step), x)
        places = tape.make_value()
        tape.add([replace(node, inputs=(numbers, *node.inputs[1:]), outputs=(places,), name=places.name)])
        return [put_back(tape, x, places, g, reduction)]

    return pass_back


def _pad(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    if op.mode != "constant":
        return _pick()(tape, node, g)
    assert node.inputs[1] is not None
    return [tape.apply("Pad", g, tape.apply("Neg", node.inputs[1]), None, input_at(node, 3))]


def _resize(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    if op.mode != "nearest" or op.coordinate_transformation_mode == "tf_crop_and_resize":
        raise refuse(
            node, f"with mode={op.mode} and coordinate_transformation_mode={op.coordinate_transformation_mode}"
        )
    return _pick()(tape, node, g)


def _triangle(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    return [tape.apply("Trilu", g, input_at(node, 1), upper=op.upper)]


def _largest(tape: Tape, node: Node, g: Value) -> Derivatives:
    attributes = {each.name: getattr(node.operator, each.name) for each in fields(node.operator)}  # type: ignore[arg-type]
    x = first_of(node)
    _, places = tape.apply_all("MaxPool", 2, x, **{**attributes, "storage_order": 0})
    return [put_back(tape, x, places, g)]


def _scatter(gather: str, attribute: str) -> Rule:
    """Return the rule of an operator that writes or adds updates, by the operator that picks them again."""

    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        op: Any = node.operator
        _, indices, updates = given(node)
        if op.reduction not in ("none", "add"):
            raise refuse(node, f"with reduction={op.reduction}")
        own = {attribute: getattr(op, attribute)} if attribute else {}
        by_data = g if op.reduction == "add" else tape.apply(op.name, g, indices, tape.full(0, updates), **own)
        return [by_data, None, tape.apply(gather, g, indices, **own)]

    return pass_back


def _dropout(tape: Tape, node: Node, g: Value) -> Derivatives:
    if input_at(node, 2) is not None:
        raise refuse(node, "where training_mode is given")
    return [g]


MOVES: dict[str, Rule] = {
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
    "gpuexec.MatrixOf": _reshape,
    "Transpose": _transpose,
    "gpuexec.SwapAxes": _swap,
    "CastLike": _cast_like,
    "gpuexec.Widen": lambda tape, node, g: [tape.apply("CastLike", g, first_of(node))],
    "Expand": lambda tape, node, g: [tape.sum_to(g, first_of(node))],
    "gpuexec.SumTo": lambda tape, node, g: [tape.spread(g, first_of(node))],
    "Concat": _join,
    "Slice": _pick("none"),
    "DepthToSpace": _pick("none"),
    "SpaceToDepth": _pick("none"),
    "ReverseSequence": _pick("none"),
    "Gather": _pick(),
    "GatherElements": _pick(),
    "GatherND": _pick(),
    "Tile": _pick(),
    "Pad": _pad,
    "Resize": _resize,
    "Trilu": _triangle,
    "MaxPool": _largest,
    "ScatterElements": _scatter("GatherElements", "axis"),
    "ScatterND": _scatter("GatherND", ""),
    "Dropout": _dropout,
}
# Rules that take the derivatives by all outputs, None where there is none.
OF_ALL_OUTPUTS: dict[str, Callable[[Tape, Node, Sequence[Value | None]], Derivatives]] = {"Split": _split}
