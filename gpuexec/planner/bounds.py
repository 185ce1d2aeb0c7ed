"""Upper bounds of output shapes that depend on content the host does not know."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuexec.errors import NeedsHostValue
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec

_INDICES = np.dtype(np.int64)
# Operators whose outputs are never larger than their first input, along any axis.
_SHRINKING = frozenset({"Slice", "TopK"})


def find_bound(
    op: Operator, inputs: Sequence[TensorSpec | None], need: NeedsHostValue
) -> tuple[TensorSpec, ...] | None:
    """Return upper bounds of specs, or None where there are none."""
    first = inputs[0] if inputs else None
    if op.name not in _SHRINKING or first is None or need.index == 0:
        return None
    largest = TensorSpec(first.shape, first.dtype)
    return (largest, TensorSpec(first.shape, _INDICES)) if op.name == "TopK" else (largest,)
