"""RegexFullMatch: full matches of strings with a regular expression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.text.automaton import Automaton, build_automaton
from gpuexec.ops.text.parts import HOST_REASON
from gpuexec.ops.text.pattern import parse


@operator("RegexFullMatch")
@dataclass(frozen=True, slots=True)
class RegexFullMatch(Operator):
    r"""Test of strings for a full match of the pattern, in RE2's syntax (see `gpuexec.ops.text.pattern`).

    Characters are Unicode's, ``\d``, ``\w``, ``\s`` and ``\b`` know ASCII alone. The time is linear in the length of a
    string.
    """

    pattern: str = ""
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None

    def __post_init__(self) -> None:
        _build(self.pattern)

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Keep the shape."""
        check_dtype(self.name, x, (STRING,))
        return (TensorSpec(x.shape, np.dtype(np.bool_)),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Match each."""
        automaton = _build(self.pattern)
        return (np.array([automaton.matches(text) for text in x.reshape(-1).tolist()], np.bool_).reshape(x.shape),)


@lru_cache(64)
def _build(pattern: str) -> Automaton:
    return build_automaton(parse(pattern))
