"""Problems of products and convolutions, as a library is told them, from slots and strides.

What a library can't be told is a sentence in place of the problem. An epilogue of a bias and an activation becomes part
of the problem; one of more steps does not, as it would have to be launched behind the library's kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuexec.ir.command import BUFFER_ALIGNMENT, Slot
from gpuexec.ir.library_problem import (
    FLOAT32,
    GELU_TANH,
    NO_ACTIVATION,
    RELU,
    TF32_PRODUCTS,
    ConvProblem,
    ProductProblem,
)
from gpuexec.ir.precision import TF32
from gpuexec.ir.provider import Posed, ProblemSlots

_Strides = tuple[int, int]
# What an epilogue's functors are called in problems.
ACTIVATIONS = {"Relu": RELU, "GeluTanh": GELU_TANH}


def pose_product(
    slots: tuple[Slot, Slot, Slot | None, Slot],
    extents: tuple[int, int, int],
    strides: tuple[_Strides, _Strides, _Strides, _Strides],
    scale: tuple[float, float],
    batch: tuple[int, ...],
    walks: Sequence[tuple[int, ...]],
    precision: str,
    *,
    is_bias: bool,
) -> Posed:
    """Return the problem of batches of products.

    Args:
        slots: a, b, c (or None), y.
        extents: Rows, columns and the inner extent.
        strides: a by row and inner, b by inner and column, c and y by row and column.
        scale: alpha, beta.
        batch: Extents of the batch axes.
        walks: Strides of a, b and y along them.
        precision: Of `gpuexec.ir.precision`.
        is_bias: Whether c is a number for each column.
    """
    (a, b, c, y), (a_strides, b_strides, c_strides, y_strides) = slots, strides
    rows, columns, _ = extents
    bias: Slot | None = None
    if is_bias and c is not None and (c_strides[1] == 1 or columns == 1) and scale[1] == 1.0:
        bias, c = c, None
    placed = ProblemSlots(a, b, c, bias, y)
    if len(batch) > 1:
        return Posed("its batch axes do not join to one", placed)
    if y_strides[1] != 1 and columns != 1:
        return Posed("columns of its result are not dense", placed)
    if c is not None and ((c_strides[1] != 1 and columns != 1) or (c_strides[0] < columns and rows != 1)):
        return Posed("what is added is no matrix with dense columns", placed)
    y_row = y_strides[0] if rows > 1 else max(columns, y_strides[0])
    problem = ProductProblem(
        a.dtype.name,
        y.dtype.name,
        TF32_PRODUCTS if precision == TF32 and a.dtype.name == FLOAT32 else FLOAT32,
        extents,
        a_strides,
        b_strides,
        None if c is None else max(columns, c_strides[0]),
        y_row,
        (scale[0], 1.0 if c is None else scale[1]),
        batch[0] if batch else 1,
        (walks[0][0], walks[1][0], 0, walks[2][0]) if batch else (0, 0, 0, 0),
        bias is not None,
        alignments=(_find_alignment(a), _find_alignment(b), _find_alignment(c), _find_alignment(y)),
    )
    return Posed(problem, placed)


def pose_conv(
    slots: tuple[Slot, Slot, Slot | None, Slot],
    strides: Sequence[int],
    dilations: Sequence[int],
    begins: Sequence[int],
    ends: Sequence[int],
    precision: str,
) -> Posed:
    """Return the problem of a convolution.

    Args:
        slots: x, w, bias (or None), y.
        strides: Of the windows.
        dilations: Of their taps.
        begins: Padding before each axis.
        ends: Padding behind it.
        precision: Of `gpuexec.ir.precision`.
    """
    x, w, bias, y = slots
    placed = ProblemSlots(x, w, None, bias, y)
    if bias is not None and not bias.is_contiguous:
        return Posed("its bias is not dense", placed)
    problem = ConvProblem(
        x.dtype.name,
        y.dtype.name,
        TF32_PRODUCTS if precision == TF32 and x.dtype.name == FLOAT32 else FLOAT32,
        (x.shape, x.strides),
        (w.shape, w.strides),
        (y.shape, y.strides),
        tuple(strides),
        tuple(dilations),
        tuple(begins),
        tuple(ends),
        bias is not None,
    )
    return Posed(problem, placed)


def finish_posed(posed: Posed, steps: Sequence[tuple[str, Slot | None]], y: Slot) -> Posed:
    """Return the problem with an epilogue, or why it can't have it.

    Args:
        posed: The problem without.
        steps: Functors in order, with the operand that is added; None: there is none.
        y: Where the result goes, in a type of its own.
    """
    problem, slots = posed.problem, posed.slots
    if isinstance(problem, str):
        return posed
    if steps and steps[-1][0] == "Cast":
        steps = steps[:-1]
    for functor, operand in steps:
        if functor == "Add" and operand is not None and _is_bias(problem, operand):
            if problem.has_bias or problem.activation or getattr(problem, "c_row", None) is not None:
                return Posed("its epilogue adds twice, or behind its activation", slots)
            problem, slots = replace(problem, has_bias=True), replace(slots, bias=operand)
        elif functor in ACTIVATIONS and problem.activation == NO_ACTIVATION:
            problem = replace(problem, activation=ACTIVATIONS[functor])
        else:
            return Posed(f"its epilogue has {functor}, which libraries lack", slots)
    if y.dtype.name != problem.result:
        if problem.has_bias or getattr(problem, "c_row", None) is not None:
            return Posed("it adds floats and stores another type", slots)
        problem = replace(problem, result=y.dtype.name)
    return Posed(problem, replace(slots, y=y))


def _is_bias(problem: ProductProblem | ConvProblem, operand: Slot) -> bool:
    """Return whether an operand is a dense number for each column of a product, or channel of a convolution."""
    if isinstance(problem, ProductProblem):
        width, axis = problem.extents[1], operand.spec.rank - 1
    else:
        width, axis = problem.y[0][1], operand.spec.rank - len(problem.y[0]) + 1
    is_whole = 0 <= axis < operand.spec.rank and operand.spec.size == operand.shape[axis] == width
    return is_whole and operand.is_contiguous and operand.dtype.name == problem.result


def _find_alignment(slot: Slot | None) -> int:
    """Return the bytes that a slot starts at a multiple of, up to those of every buffer."""
    if slot is None:
        return BUFFER_ALIGNMENT
    return min(BUFFER_ALIGNMENT, slot.offset_bytes & -slot.offset_bytes or BUFFER_ALIGNMENT)
