"""Vector-Jacobian products of operators: tables of rules for reverse-mode differentiation.

A rule takes a tape, a node and the derivative by the node's first output, and gives those by its inputs; what it
computes, it puts on the tape. An operator without one may have parts that have some. Rules are made of operators with
rules, so what they make can be differentiated in its turn.
"""

from __future__ import annotations

from gpuexec.graphs import Node
from gpuexec.passes.derivatives.curves import CURVE_PARTS, CURVES
from gpuexec.passes.derivatives.folds import FOLD_PARTS, FOLDS
from gpuexec.passes.derivatives.moves import MOVES, OF_ALL_OUTPUTS
from gpuexec.passes.derivatives.norms import NORM_PARTS
from gpuexec.passes.derivatives.pairs import PAIRS
from gpuexec.passes.derivatives.products import PRODUCT_PARTS, PRODUCTS
from gpuexec.passes.derivatives.tape import Parts, Rule, Tape
from gpuexec.spec import dtype_row

__all__ = ["FIXED_INPUTS", "OF_ALL_OUTPUTS", "PARTS", "RULES", "Tape", "has_slope"]

RULES: dict[str, Rule] = {**CURVES, **PAIRS, **FOLDS, **PRODUCTS, **MOVES}
PARTS: dict[str, Parts] = {**CURVE_PARTS, **FOLD_PARTS, **PRODUCT_PARTS, **NORM_PARTS}
# Inputs without derivative rule; one that depends on the differentiated values is refused.
FIXED_INPUTS: dict[str, tuple[int, ...]] = {"Pad": (2,), "Dropout": (1,), "Resize": (1, 2, 3)}
# Operators that use shapes, signs and positions of their inputs alone, whose derivative is 0.
_STEPS = frozenset(
    (
        *("Shape", "Size", "gpuexec.NumberLike", "Sign", "Floor", "Ceil", "Round", "IsNaN", "IsInf"),
        *("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "Not", "And", "Or", "Xor"),
        *("ArgMax", "ArgMin", "NonZero", "ConstantOfShape", "EyeLike"),
    )
)


def has_slope(node: Node) -> bool:
    """Return whether a node's result has a derivative by its inputs that is not 0 everywhere."""
    operator = node.operator
    if operator.name == "Cast":
        return dtype_row(getattr(operator, "to", 0)).kind not in ("int", "uint", "bool")
    return operator.name not in _STEPS
