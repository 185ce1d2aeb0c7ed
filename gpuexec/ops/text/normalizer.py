"""StringNormalizer: removal of stop words and change of case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.text.parts import HOST_REASON

_ACTIONS: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


@operator("StringNormalizer")
@dataclass(frozen=True, slots=True)
class StringNormalizer(Operator):
    """The strings that are no stop words, in the case wanted; one empty string where none is left.

    Case is Unicode's, in no language: ``locale`` changes nothing.
    """

    case_change_action: str = "NONE"
    is_case_sensitive: int = 0
    locale: str | None = None
    stopwords: tuple[str, ...] | None = None
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    example = "string[2]"
    flops_per_output = None
    keeps_dtype = True

    def __post_init__(self) -> None:
        if self.case_change_action not in _ACTIONS:
            raise InputError(f"case_change_action expects {', '.join(_ACTIONS)}, got {self.case_change_action!r}.")

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count the remaining strings, which must be known for that.

        Raises:
            InputError: They are no list, and no single row.
        """
        check_dtype(self.name, x, (STRING,))
        if x.rank not in (1, 2) or x.shape[:-1] not in ((), (1,)):
            raise InputError(f"{self.name} expects strings [count] or [1, count], got {x}.")
        return (TensorSpec((*x.shape[:-1], len(self._normalize(require_const(x, "X", 0)))), STRING),)

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Filter, and change the case."""
        left = self._normalize(x)
        return (np.array(left, STRING).reshape(*x.shape[:-1], len(left)),)

    def _normalize(self, x: Array) -> list[str]:
        fold: Callable[[str], str] = str if self.is_case_sensitive else str.casefold
        stops = {fold(word) for word in self.stopwords or ()}
        change = _ACTIONS[self.case_change_action]
        return [change(text) for text in x.reshape(-1).tolist() if fold(text) not in stops] or [""]
