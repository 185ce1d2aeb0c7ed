"""Node construction on symbolic arrays, with specs inferred or given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.ir.spec import Dim
from gpuexec.model.tracing.symbolic import SymbolicArray


def add_node(name: str, *arrays: SymbolicArray | None, dtype: Any = None, **attributes: Any) -> SymbolicArray:
    """Add a node of one output whose operands broadcast, and return it.

    Args:
        name: The operator.
        *arrays: Its inputs; None for an optional one not given.
        dtype: Of the output where it is not the first input's; used where nothing can be inferred.
        **attributes: Of the operator; None leaves one at its default.
    """
    given = [array for array in arrays if array is not None]
    kind = np.dtype(given[0].dtype if dtype is None else dtype)
    otherwise = [(kind, broadcast_dims([array.dims for array in given]))]
    return given[0]._tracer.apply(name, arrays, attributes=attributes, otherwise=otherwise)[0]


def broadcast_dims(all_dims: Sequence[tuple[Dim, ...] | None]) -> tuple[Dim, ...] | None:
    """Return the dims of arrays broadcast together; None where a rank is unknown."""
    known = [dims for dims in all_dims if dims is not None]
    if len(known) < len(all_dims):
        return None
    rank = max(map(len, known), default=0)
    result: list[Dim] = []
    for axis in range(-rank, 0):
        extents = {dims[axis] for dims in known if len(dims) >= -axis and dims[axis] != 1}
        fixed = [extent for extent in extents if isinstance(extent, int)]
        result.append(fixed[0] if fixed else extents.pop() if len(extents) == 1 else None if extents else 1)
    return tuple(result)
