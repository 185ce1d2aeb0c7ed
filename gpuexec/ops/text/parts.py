"""StringConcat and StringSplit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.ir.geometry import broadcast
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.lib.checks import check_dtype

HOST_REASON = "strings lie on the host"


@operator("StringConcat")
@dataclass(frozen=True, slots=True)
class StringConcat(Operator):
    """x followed by y, both broadcast."""

    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = None
    keeps_dtype = True

    def infer(self, x: TensorSpec, y: TensorSpec) -> tuple[TensorSpec, ...]:
        """Broadcast."""
        check_dtype(self.name, x, (STRING,))
        check_dtype(self.name, y, (STRING,))
        return (TensorSpec(broadcast(x.shape, y.shape), STRING),)

    def compute(self, x: Array, y: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Append."""
        return (np.asarray(np.add(x, y), STRING),)


@operator("StringSplit")
@dataclass(frozen=True, slots=True)
class StringSplit(Operator):
    """The parts of each string between delimiters, along a new last axis, and how many they are.

    Missing parts are empty strings. Without a delimiter, white space of any length (as Unicode has it) delimits, and
    there is none at either end. After ``maxsplit`` delimiters the rest is the last part.
    """

    delimiter: str | None = None
    maxsplit: int | None = None
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    example = "string[2]"
    flops_per_output = None
    keeps_dtype = True

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        """Count the parts of the strings, which must be known for that."""
        check_dtype(self.name, x, (STRING,))
        parts = self._split(require_const(x, "X", 0))
        return (
            TensorSpec((*x.shape, max(map(len, parts), default=0)), STRING),
            TensorSpec(x.shape, np.dtype(np.int64)),
        )

    def compute(self, x: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Split, and fill up."""
        parts = self._split(x)
        y = np.full((len(parts), max(map(len, parts), default=0)), "", STRING)
        for row, found in zip(y, parts, strict=True):
            row[: len(found)] = found
        counts = np.array([len(found) for found in parts], np.int64)
        return y.reshape(*x.shape, y.shape[1]), counts.reshape(x.shape)

    def _split(self, x: Array) -> list[list[str]]:
        max_splits = -1 if self.maxsplit is None else self.maxsplit
        texts = x.reshape(-1).tolist()
        if not self.delimiter:
            return [text.strip().split(None, max_splits) for text in texts]
        return [text.split(self.delimiter, max_splits) for text in texts]
