"""Derivative rules of products: MatMul, Gemm, Einsum, Conv, ConvTranspose, AveragePool."""

from __future__ import annotations

import math
from typing import Any

from gpuexec.ir.graphs import Node, Value
from gpuexec.passes.derivatives.tape import Derivatives, Parts, Rule, Tape, first_of, given, input_at, refuse


def _matmul(tape: Tape, node: Node, g: Value) -> Derivatives:
    a, b = given(node)
    rows, columns, whole = (
        tape.apply("gpuexec.MatrixOf", x, a, b, role=role) for x, role in ((a, "a"), (b, "b"), (g, "y"))
    )
    left = tape.apply("MatMul", whole, tape.apply("gpuexec.SwapAxes", columns, first=-1, second=-2))
    right = tape.apply("MatMul", tape.apply("gpuexec.SwapAxes", rows, first=-1, second=-2), whole)
    return [tape.reshape_like(tape.sum_to(left, rows), a), tape.reshape_like(tape.sum_to(right, columns), b)]


def _gemm(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    a, b, *c = given(node)
    turns_a, turns_b = bool(op.transA), bool(op.transB)

    def multiply(left: Value, right: Value, turns_left: bool, turns_right: bool) -> Value:
        return tape.apply("Gemm", left, right, alpha=op.alpha, transA=int(turns_left), transB=int(turns_right))

    by_a = multiply(b, g, turns_b, True) if turns_a else multiply(g, b, False, not turns_b)
    by_b = multiply(g, a, True, turns_a) if turns_b else multiply(a, g, not turns_a, False)
    return [by_a, by_b, *(tape.sum_to(tape.scale(g, op.beta), each) for each in c)]


def _einsum(tape: Tape, node: Node, g: Value) -> Derivatives:
    """Multiply the other operands and g for each operand, summed over the labels it does not have."""
    op: Any = node.operator
    terms, output = _read_equation(op.equation)
    operands = given(node)
    if any(len(set(letters)) < len(letters) for letters in (term.replace("...", "") for term in terms)):
        raise refuse(node, f"where an operand of {op.equation!r} names an axis twice")
    if any("..." in term and not term.startswith("...") for term in (*terms, output)):
        raise refuse(node, f"where the ellipsis of {op.equation!r} does not come first")
    derivatives = []
    for index, (term, x) in enumerate(zip(terms, operands, strict=True)):
        rest = [each for place, each in enumerate(operands) if place != index]
        # What an axis summed over by itself is stretched along: ones of the operand's shape.
        factors = [g, *rest, tape.full(1, x)]
        left = ",".join((output, *(each for place, each in enumerate(terms) if place != index), term))
        target = term if "..." not in left or term.startswith("...") else f"...{term}"
        derivatives.append(tape.sum_to(tape.apply("Einsum", *factors, equation=f"{left}->{target}"), x))
    return derivatives


def _read_equation(equation: str) -> tuple[list[str], str]:
    """Return the operands' terms and the output's; one that is not written has the axes named once, sorted."""
    left, arrow, output = equation.replace(" ", "").partition("->")
    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        once = "".join(sorted(letter for letter in set(letters) if letters.count(letter) == 1))
        output = ("..." if "..." in left else "") + once
    return left.split(","), output


def _conv(tape: Tape, node: Node, g: Value) -> Derivatives:
    x, w = given(node)[:2]
    windows = _read_windows(node)
    pads = windows.pop("pads")
    full = tape.apply("ConvTranspose", g, w, **windows)  # with what padding hides, without what no window reaches
    excess = tape.apply("Sub", tape.apply("Shape", x, start=2), tape.apply("Shape", full, start=2))
    begins = tape.ints(*(-pad for pad in pads[: len(pads) // 2])) if pads else tape.apply("Sub", excess, excess)
    margins = tape.apply("Concat", begins, tape.apply("Sub", excess, begins), axis=0)
    by_x = tape.apply("Pad", full, margins, None, tape.axes_from(2, x))
    by_w = _slope_of_weight(tape, x, g, w, {**windows, "pads": pads})
    return [by_x, by_w, *_slope_of_bias(tape, node, g)]


def _conv_transpose(tape: Tape, node: Node, g: Value) -> Derivatives:
    op: Any = node.operator
    if op.output_shape:
        raise refuse(node, "with output_shape")
    x, w = given(node)[:2]
    windows = _read_windows(node)
    by_x = _cut(tape, tape.apply("Conv", g, w, **windows), x)
    return [by_x, _slope_of_weight(tape, g, x, w, windows), *_slope_of_bias(tape, node, g)]


def _average(tape: Tape, node: Node) -> tuple[Value, ...]:
    op: Any = node.operator
    if op.ceil_mode:
        raise refuse(node, "with ceil_mode=1")
    x, windows = first_of(node), _read_windows(node)
    lead, places = tape.apply("Shape", x, end=2), tape.apply("Shape", x, start=2)
    shape = tape.apply("Concat", tape.apply("ReduceProd", lead), tape.ints(1), places, axis=0)
    planes = tape.apply("Reshape", x, shape, allowzero=1)  # [images * channels, 1, ...]
    ones = tape.apply("Expand", tape.number(1, x), tape.ints(1, 1, *op.kernel_shape))
    total = tape.apply("Conv", planes, ones, **windows)
    if op.count_include_pad:
        mean = tape.scale(total, 1 / math.prod(op.kernel_shape))
    else:
        mean = tape.apply("Div", total, tape.apply("Conv", tape.full(1, planes), ones, **windows))
    shape = tape.apply("Concat", lead, tape.apply("Shape", mean, start=2), axis=0)
    return (tape.apply("Reshape", mean, shape, allowzero=1),)


def _read_windows(node: Node) -> dict[str, Any]:
    op: Any = node.operator
    if op.auto_pad not in ("NOTSET", "VALID"):
        raise refuse(node, f"with auto_pad={op.auto_pad}")
    pads = op.pads if op.auto_pad == "NOTSET" else ()
    return {"strides": op.strides, "dilations": op.dilations, "group": getattr(op, "group", 1), "pads": pads}


def _slope_of_weight(tape: Tape, large: Value, small: Value, w: Value, windows: dict[str, Any]) -> Value:
    """Return the derivative by the weight of a convolution from ``large`` to ``small``, of which one is a derivative.

    It is a convolution too, of images that are channels and channels that are images: ``small`` is the weight, strides
    are dilations and the other way round.
    """
    groups = windows["group"]
    images, places = tape.apply("Shape", large, end=1), tape.apply("Shape", large, start=2)
    channels = tape.apply("Shape", w, start=1, end=2)  # of a group
    count = tape.ints(groups)
    grouped = tape.apply("Concat", images, count, channels, places, axis=0)
    turned = tape.apply("gpuexec.SwapAxes", tape.apply("Reshape", large, grouped, allowzero=1), first=0, second=2)
    joined = tape.apply("Concat", channels, tape.apply("Mul", images, count), places, axis=0)
    source = tape.apply("Reshape", turned, joined, allowzero=1)  # [channels, groups * images, ...]
    kernel = tape.apply("gpuexec.SwapAxes", small, first=0, second=1)
    turns = {"strides": windows["dilations"], "dilations": windows["strides"]}
    whole = tape.apply("Conv", source, kernel, **{**windows, **turns})
    return _cut(tape, tape.apply("gpuexec.SwapAxes", whole, first=0, second=1), w)


def _slope_of_bias(tape: Tape, node: Node, g: Value) -> list[Value]:
    if input_at(node, 2) is None:
        return []
    axes = tape.apply("Concat", tape.ints(0), tape.axes_from(2, g), axis=0)
    return [tape.apply("ReduceSum", g, axes, keepdims=0)]


def _cut(tape: Tape, x: Value, like: Value) -> Value:
    """Return the first places of x, as many as another value has."""
    ends = tape.apply("Shape", like, start=2)
    return tape.apply("Slice", x, tape.apply("Sub", ends, ends), ends, tape.axes_from(2, like))


PRODUCTS: dict[str, Rule] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
}
PRODUCT_PARTS: dict[str, Parts] = {"AveragePool": _average}
