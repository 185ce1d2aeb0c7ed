"""Derivative rules of reductions: sums, extremes, Softmax, running sums, losses."""

from __future__ import annotations

from typing import Any

from gpuexec.ir.graphs import Node, Value
from gpuexec.passes.derivatives.tape import Derivatives, Parts, Rule, Tape, first_of, given, input_at, output_of

_DOUBLE = 11  # ONNX's code


def _unfold(tape: Tape, node: Node, folded: Value) -> Value:
    """Return a value of the shape of the output stretched to that of the input."""
    op: Any = node.operator
    axes = input_at(node, 1)
    if axes is not None and not op.keepdims:
        folded = tape.apply("Unsqueeze", folded, axes)
    return tape.spread(folded, first_of(node))


def _sum(tape: Tape, node: Node, g: Value) -> Derivatives:
    return [_unfold(tape, node, g)]


def _mean(tape: Tape, node: Node, g: Value) -> Derivatives:
    # Sizes may be beyond what the type of g holds, and their quotient too small for it.
    sizes = [tape.apply("Cast", tape.apply("Size", x), to=_DOUBLE) for x in (output_of(node), first_of(node))]
    wide = tape.apply("gpuexec.Widen", g)
    part = tape.apply("Mul", wide, tape.apply("CastLike", tape.apply("Div", *sizes), wide))
    return [_unfold(tape, node, tape.apply("CastLike", part, g))]


def _extreme(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Divide the derivative evenly between equal extremes."""
    op: Any = node.operator
    x = first_of(node)
    hits = tape.apply("Equal", x, _unfold(tape, node, output_of(node)))
    wide = tape.apply("gpuexec.Widen", g)  # their number may exceed the range of half
    weights = tape.apply("CastLike", hits, wide)
    kept = {"noop_with_empty_axes": op.noop_with_empty_axes}
    count = tape.apply("ReduceSum", weights, *node.inputs[1:], keepdims=op.keepdims, **kept)
    share = tape.apply("CastLike", tape.apply("Div", wide, count), g)
    return [tape.select(hits, _unfold(tape, node, share))]


def _norm(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Pass back through a norm; at 0, where there is a kink, the slope is 0."""
    x, y = first_of(node), output_of(node)
    is_kink = tape.apply("Equal", y, tape.number(0, y))
    divisor = tape.apply("Where", is_kink, tape.number(1, y), y)
    part = tape.select(tape.apply("Not", is_kink), tape.apply("Div", g, divisor))
    return [tape.apply("Mul", x, _unfold(tape, node, part))]


def _log_sum_exp(tape: Tape, node: Node, g: Value) -> Derivatives:
    weight = tape.apply("Exp", tape.apply("Sub", first_of(node), _unfold(tape, node, output_of(node))))
    return [tape.apply("Mul", _unfold(tape, node, g), weight)]


def _reduced(inner: str, reduction: str, outer: str = "") -> Parts:
    """Return the parts of a reduction that is another one with something before or behind it."""

    def draw(tape: Tape, node: Node) -> tuple[Value, ...]:
        op: Any = node.operator
        x = first_of(node)
        terms = tape.times(x, x) if inner == "square" else tape.apply(inner, x)
        kept = {"keepdims": op.keepdims, "noop_with_empty_axes": op.noop_with_empty_axes}
        y = tape.apply(reduction, terms, *node.inputs[1:], **kept)
        return (tape.apply(outer, y) if outer else y,)

    return draw


def _pooled(reduction: str) -> Parts:
    """Return the parts of a pool over all places."""

    def draw(tape: Tape, node: Node) -> tuple[Value, ...]:
        x = first_of(node)
        return (tape.apply(reduction, x, tape.axes_from(2, x)),)

    return draw


def _softmax(is_logarithm: bool) -> Rule:
    def pass_back(tape: Tape, node: Node, g: Value) -> Derivatives:
        op: Any = node.operator
        y, axis = output_of(node), op.axis
        shape = y
        if op.flatten:  # of an opset before 13: all axes from one on are one row
            y, g, axis = (*(tape.apply("Flatten", each, axis=axis) for each in (y, g)), -1)
        p = tape.apply("Exp", y) if is_logarithm else y
        weighed = g if is_logarithm else tape.apply("Mul", g, y)
        total = tape.apply("ReduceSum", weighed, tape.ints(axis))
        slope = tape.apply("Sub", weighed, tape.apply("Mul", p, total))
        return [tape.reshape_like(slope, shape) if op.flatten else slope]

    return pass_back


def _running_sum(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    return [tape.apply("CumSum", g, node.inputs[1], exclusive=op.exclusive, reverse=1 - op.reverse)]


def _loss(tape: Tape, node: Node) -> tuple[Value, ...]:
    return (_weigh_labels(tape, node, first_of(node)),)


def _entropy(tape: Tape, node: Node) -> tuple[Value, ...]:
    logarithms = tape.apply("LogSoftmax", tape.apply("gpuexec.Widen", first_of(node)), axis=1)
    return _weigh_labels(tape, node, logarithms), tape.apply("CastLike", logarithms, first_of(node))


def _weigh_labels(tape: Tape, node: Node, logarithms: Value) -> Value:
    """Return a loss of ``[n, classes, ...]`` logarithms; a label that is ignored counts for nothing."""
    op: Any = node.operator
    x, labels, weights = tape.apply("gpuexec.Widen", logarithms), given(node)[1], input_at(node, 2)
    is_counted = None
    if op.ignore_index is not None:
        is_counted = tape.apply("Not", tape.apply("Equal", labels, tape.number(op.ignore_index, labels)))
        labels = tape.select(is_counted, labels)
    axis = tape.ints(1)
    picked = tape.apply("GatherElements", x, tape.apply("Unsqueeze", labels, axis), axis=1)
    picked = tape.apply("Squeeze", picked, axis)
    if weights is None:
        factors = tape.full(1, picked)
    else:
        factors = tape.apply("Gather", tape.apply("gpuexec.Widen", weights), labels)
    losses = tape.apply("Neg", tape.apply("Mul", picked, factors))
    if is_counted is not None:
        factors, losses = tape.select(is_counted, factors), tape.select(is_counted, losses)
    if op.reduction == "none":
        return tape.apply("CastLike", losses, first_of(node))
    total = tape.apply("ReduceSum", losses, keepdims=0)
    if op.reduction == "mean":
        total = tape.apply("Div", total, tape.apply("ReduceSum", factors, keepdims=0))
    return tape.apply("CastLike", total, first_of(node))


FOLDS: dict[str, Rule] = {
    "ReduceSum": _sum,
    "ReduceMean": _mean,
    "ReduceMax": _extreme,
    "ReduceMin": _extreme,
    "ReduceL2": _norm,
    "ReduceLogSumExp": _log_sum_exp,
    "Softmax": _softmax(is_logarithm=False),
    "LogSoftmax": _softmax(is_logarithm=True),
    "CumSum": _running_sum,
}
FOLD_PARTS: dict[str, Parts] = {
    "ReduceL1": _reduced("Abs", "ReduceSum"),
    "ReduceSumSquare": _reduced("square", "ReduceSum"),
    "ReduceLogSum": _reduced("Identity", "ReduceSum", "Log"),
    "GlobalAveragePool": _pooled("ReduceMean"),
    "GlobalMaxPool": _pooled("ReduceMax"),
    "NegativeLogLikelihoodLoss": _loss,
    "SoftmaxCrossEntropyLoss": _entropy,
}
