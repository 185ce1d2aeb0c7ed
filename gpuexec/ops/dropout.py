"""Dropout as inference has it: nothing is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuexec.command import Slot
from gpuexec.errors import InputError
from gpuexec.graph import RawNode
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator, require_const, upgrade
from gpuexec.spec import TensorSpec


@operator("Dropout")
@dataclass(frozen=True, slots=True)
class Dropout(Operator):
    """x itself, as a view, and a mask of True. ``ratio`` and ``seed`` concern training alone, which is refused."""

    seed: int = 0
    tolerance = Tolerance.EXACT

    def infer(
        self, x: TensorSpec, ratio: TensorSpec | None = None, training_mode: TensorSpec | None = None
    ) -> tuple[TensorSpec, ...]:
        """Return the input's shape twice.

        Raises:
            InputError: The operator is asked to train.
        """
        if training_mode is not None and require_const(training_mode, "training_mode", 2).any():
            raise InputError("Dropout runs as inference only, got training_mode = True.")
        return TensorSpec(x.shape, x.dtype), TensorSpec(x.shape, np.dtype(np.bool_))

    def compute(
        self,
        x: Array,
        ratio: Array | None = None,
        training_mode: Array | None = None,
        out: Sequence[Array | None] | None = None,
    ) -> tuple[Array | None, ...]:
        """Return the input, and the mask if it is wanted."""
        is_wanted = out is None or (len(out) > 1 and out[1] is not None)
        return x, np.ones(x.shape, np.bool_) if is_wanted else None

    def lower(self, emit: Emitter, inputs: tuple[Slot | None, ...], outputs: tuple[Slot | None, ...]) -> None:
        """Alias the data and fill the mask."""
        x, (y, *mask) = inputs[0], outputs
        assert x is not None
        if y is not None:
            emit.alias(y, x)
        if mask and mask[0] is not None:
            emit.fill(mask[0], True)


@upgrade("Dropout", below=7)
def _drop_is_test(node: RawNode) -> RawNode:
    """Until opset 6 ``is_test`` told inference from training, which was the default.

    Raises:
        InputError: The node trains.
    """
    if not node.attributes.get("is_test", 0):
        raise InputError("Dropout runs as inference only, got a form below opset 7 without is_test = 1.")
    return node.without("is_test")


@upgrade("Dropout", below=12)
def drop_ratio(node: RawNode) -> RawNode:
    """Until opset 11 the ratio was an attribute, and the operator inference only."""
    return node.without("ratio")
