"""Vector-Jacobian products of operators: tables of rules for reverse-mode differentiation.

A rule takes a tape, a node and the derivative by the node's first output, and gives those by its inputs; what it
computes, it puts on the tape. An operator without one may have parts that have some. Rules are made of operators with
rules, so what they make can be differentiated in its turn. Which operators have one their classes say
(`gpuexec.ir.operator.Derivative`), and a test holds tables and classes together.
"""

from __future__ import annotations

from gpuexec.passes.derivatives.curves import CURVE_PARTS, CURVES
from gpuexec.passes.derivatives.folds import FOLD_PARTS, FOLDS
from gpuexec.passes.derivatives.moves import MOVES, OF_ALL_OUTPUTS
from gpuexec.passes.derivatives.normalizations import NORM_PARTS
from gpuexec.passes.derivatives.pairs import PAIRS
from gpuexec.passes.derivatives.products import PRODUCT_PARTS, PRODUCTS
from gpuexec.passes.derivatives.tape import Parts, Rule, Tape

__all__ = ["OF_ALL_OUTPUTS", "PARTS", "RULES", "Tape"]

RULES: dict[str, Rule] = {**CURVES, **PAIRS, **FOLDS, **PRODUCTS, **MOVES}
PARTS: dict[str, Parts] = {**CURVE_PARTS, **FOLD_PARTS, **PRODUCT_PARTS, **NORM_PARTS}
