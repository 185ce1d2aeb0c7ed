"""Operators that read a weight packed, and models of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import helper

import gpuexec as gx
from gpuexec.ir.command import Slot
from gpuexec.ir.operator import Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.weight_forms import ColumnsFirst, WeightForm, weight_form
from tests.model.small_models import DOMAIN, make_model, ramp

Array = np.ndarray[Any, Any]
SHAPE = (24, 40)


@weight_form("test_padded_rows")
@dataclass(frozen=True, slots=True)
class PaddedRows(WeightForm):
    """A matrix of rows that zeros fill up to a multiple of ``width``."""

    width: int

    def infer(self, source: TensorSpec) -> TensorSpec:
        rows, columns = source.shape
        return source.with_shape((rows, -(-columns // self.width) * self.width))

    def pack(self, block: Array, at: tuple[int, ...], packed: Array) -> None:
        packed[at[0] : at[0] + block.shape[0], at[1] : at[1] + block.shape[1]] = block


@operator("Recall", DOMAIN)
@dataclass(frozen=True, slots=True)
class Recall(Operator):
    """The weight ``w``, read packed where it is one: its columns first, or rows padded to ``width``; added to ``x``.

    ``by_rows``: the form depends on the rows of x, as it may not.
    """

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT
    width: int = 0
    by_rows: int = 0

    def infer(self, x: TensorSpec, w: TensorSpec) -> tuple[TensorSpec, ...]:
        return (w.with_shape(w.shape),)

    def compute(self, x: Array, w: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        return (w.copy(),)

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        x, w, y = (*inputs, *outputs)
        assert x is not None and w is not None and y is not None
        width = x.shape[0] if self.by_rows else self.width
        packed = emit.packed(w, PaddedRows(width) if width else ColumnsFirst())
        if packed is None:
            emit.copy(y, w)
        elif width:
            emit.copy(y, Slot(packed.buffer, 0, y.spec, packed.strides))
        else:
            emit.copy(y, Slot(packed.buffer, 0, y.spec, packed.strides[::-1]))


def recalling(w: Array, *widths: int) -> gx.Model:
    """Return a model that gives the weight w back for each of these widths, and takes any x."""
    widths = widths or (0,)
    nodes = [
        helper.make_node("Recall", ["x", "w"], [f"y{n}"], name=f"recall{n}", domain=DOMAIN, width=width)
        for n, width in enumerate(widths)
    ]
    return make_model(nodes, {"x": ("n",)}, {f"y{n}": w.shape for n in range(len(widths))}, w=w)


def weight(seed: float = 0) -> Array:
    """Return a matrix that tells its elements apart."""
    return ramp(*SHAPE) + np.float32(seed)
