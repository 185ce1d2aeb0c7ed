"""Content on the host that follows from symbolic extents: arithmetic on shapes, on arrays of symbolic numbers.

What only moves elements computes on their positions, by its own `compute`; arithmetic stands in a table. An operator
that is in neither gets the digits, which ties the trace to the extents at hand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.graphs import Node
from gpuexec.ir.spec import SymbolicValue, TensorSpec

Array = np.ndarray[Any, Any]
# Operators that move the elements of their first input, or of all inputs (Concat), by what the others say.
_MOVING = frozenset(
    ("Identity", "Gather", "GatherElements", "GatherND", "Slice", "Unsqueeze", "Squeeze", "Reshape", "Flatten")
    + ("Transpose", "Expand", "Tile", "Split", "Concat")
)


def _divide(a: Any, b: Any) -> Any:
    """Divide towards zero, as ONNX does."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": _divide,
    "Neg": operator.neg,
    "Abs": abs,
    "Min": min,
    "Max": max,
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Where": lambda condition, a, b: a if condition else b,
}
_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceSum": operator.add,
    "ReduceProd": operator.mul,
    "ReduceMax": max,
    "ReduceMin": min,
}


def has_symbols(specs: Sequence[TensorSpec | None]) -> bool:
    """Return whether the content of one of some specs is symbolic."""
    return any(spec is not None and isinstance(spec.value, SymbolicValue) for spec in specs)


def compute_symbols(node: Node, specs: Sequence[TensorSpec | None]) -> tuple[Array | None, ...] | None:
    """Compute a node from content of which some is symbolic; None where only digits will do."""
    name = node.operator.name
    if any(spec is not None and spec.dtype.kind not in "iub" for spec in specs):
        return None
    if name in _MOVING:
        return _move(node, specs, len(specs) if name == "Concat" else 1)
    arrays = [_read(spec) for spec in specs if spec is not None]
    if name in _ELEMENTWISE:
        return (_apply(_ELEMENTWISE[name], arrays),)
    if name == "Cast":
        made = node.operator.infer(*specs)[0]
        return (arrays[0],) if made.dtype.kind == "i" else None
    if name in _REDUCTIONS and arrays[0].ndim == 1:
        made = node.operator.infer(*specs)[0]
        return (_fill(made.shape, [reduce(_REDUCTIONS[name], arrays[0].tolist())]),) if made.size == 1 else None
    return None


def _move(node: Node, specs: Sequence[TensorSpec | None], count: int) -> tuple[Array | None, ...] | None:
    """Compute on positions in place of elements."""
    held: list[Any] = []
    arrays: list[Array | None] = []
    start = 0
    for place, spec in enumerate(specs):
        if spec is None:
            arrays.append(None)
        elif place < count:
            symbols = _read(spec)
            arrays.append(np.arange(start, start + symbols.size).reshape(symbols.shape))
            held += symbols.reshape(-1).tolist()
            start += symbols.size
        elif isinstance(spec.value, SymbolicValue):
            return None
        else:
            arrays.append(_read(spec).astype(spec.dtype))
    moved = compute_arrays(node.operator, arrays)
    return tuple(
        [None if m is None else _fill(m.shape, [held[place] for place in m.reshape(-1).tolist()]) for m in moved]
    )


def _apply(function: Callable[..., Any], arrays: Sequence[Array]) -> Array:
    """Apply a function of numbers to arrays that broadcast."""
    if len(arrays) > 2 and function in (min, max):
        return reduce(lambda a, b: _apply(function, (a, b)), arrays)
    same = np.broadcast_arrays(*arrays)
    return _fill(
        same[0].shape, [function(*row) for row in zip(*(each.reshape(-1).tolist() for each in same), strict=True)]
    )


def _read(spec: TensorSpec) -> Array:
    assert spec.value is not None
    return spec.value.symbols if isinstance(spec.value, SymbolicValue) else spec.value.array.astype(object)


def _fill(shape: tuple[int, ...], items: Sequence[Any]) -> Array:
    made = np.empty(len(items), object)
    made[:] = items
    return made.reshape(shape)
