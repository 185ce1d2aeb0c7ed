"""Index maps of views: what an operator that makes views does to strides, found by lowering it on a basis of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuexec.errors import GpuexecError
from gpuexec.ir.command import Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.index_map import Viewed, ViewedAxis
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import TensorSpec

_BASE = 1 << 60  # strides are powers of it: no step or offset comes near


class _CannotViewError(Exception):
    """No strides show the result."""


class _ViewProbe:
    """An emitter that keeps the view which an operator makes."""

    def __init__(self) -> None:
        self.view: Slot | None = None

    def alias(self, output: Slot, view: Slot) -> None:
        """Keep the view."""
        self.view = view

    def contiguous(self, slot: Slot) -> Slot:
        """Refuse: a copy is no view."""
        raise _CannotViewError


def find_view(operator: Operator, inputs: Sequence[TensorSpec | None]) -> Viewed | None:
    """Return how an operator that makes views shows its first input by any strides; None: not by strides alone.

    Args:
        operator: It has one output.
        inputs: Specs, with content; None: absent.
    """
    x = inputs[0]
    if x is None or operator.lower is None:
        return None
    try:
        made = operator.infer(*inputs)
        if len(made) != 1:
            return None
        strides = tuple([_BASE ** (x.rank - axis) for axis in range(x.rank)])
        slots = [None if spec is None else Slot(0, 0, spec, contiguous_strides(spec.shape)) for spec in inputs]
        slots[0] = Slot(0, 0, x, strides)
        output = Slot(1, 0, made[0], contiguous_strides(made[0].shape))
        probe: Any = _ViewProbe()
        operator.lower(probe, tuple(slots), (output,))
    except (_CannotViewError, GpuexecError):
        return None
    view: Slot | None = probe.view
    contents = tuple(range(1, len(inputs)))
    if view is None or x.size:
        return None if view is None else _read(view, strides, contents)
    return Viewed((ViewedAxis(0, ()),) * x.rank, contents)


def _read(view: Slot, strides: Sequence[int], contents: tuple[int, ...]) -> Viewed | None:
    """Return the map of a view on strides that are powers of the base."""
    offsets, rest = [], view.offset_bytes // view.dtype.itemsize
    for stride in strides:
        first, rest = divmod(rest, stride)
        offsets.append(first)
    moves: list[list[tuple[int, int]]] = [[] for _ in strides]
    for axis, (extent, step) in enumerate(zip(view.shape, view.strides, strict=True)):
        if extent == 1 or step == 0:
            continue
        along = next((n for n, stride in enumerate(strides) if step % stride == 0), None)
        if along is None:
            return None
        moves[along].append((axis, step // strides[along]))
    return Viewed(tuple([ViewedAxis(o, tuple(m)) for o, m in zip(offsets, moves, strict=True)]), contents)
