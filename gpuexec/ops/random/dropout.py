"""Dropout: the identity in inference, a random mask in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Slot
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.host_values import require_const
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import (
    Array,
    Derivative,
    Emitter,
    FormatUse,
    KnownInput,
    Operator,
    Out,
    Slots,
    Tolerance,
    operator,
    upgrade,
)
from gpuexec.ir.spec import TensorSpec, accumulator, dtype_row
from gpuexec.ops.elementwise.elementwise_cast import convert, convert_commands, widen_narrow
from gpuexec.ops.lib.checks import check_dtype, require_scalar
from gpuexec.ops.quant.narrow_types import FLOAT8, is_narrow
from gpuexec.ops.random.numpy_generator import HOST_REASON, has_seed, make_generator
from gpuexec.ops.random.philox import Draw
from gpuexec.ops.random.random import FLOATS, launch_draws
from gpuexec.ops.random.random_key import check_key, take_key

_RATIO = 0.5  # where none is given

instantiate("random.cu", [f"dropout<{dtype_row(dtype).cuda}>" for dtype in FLOATS])


@operator("Dropout")
@dataclass(frozen=True, slots=True)
class Dropout(Operator):
    """x itself, as a view, and a mask of True; where ``training_mode`` is true, x / (1 - ratio) or 0 by chance.

    In training each element stays with a chance of 1 - ratio. Ratio and mode are read while planning; ``key`` and
    ``stream`` are those of `gpuexec.ops.random.random_key`. With a ``seed`` the host draws, from NumPy's generator,
    the same
    in every run.
    """

    seed: int | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT
    host_reason = HOST_REASON
    flops_per_output = 0
    keeps_dtype = True
    is_random = True
    derivative = Derivative.RULE
    fixed_inputs = (1,)
    has_blits = True
    format_use = FormatUse.FOLLOWS

    def infer(
        self,
        x: TensorSpec,
        ratio: TensorSpec | None = None,
        training_mode: TensorSpec | None = None,
        key: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the input's shape twice.

        Raises:
            InputError: The ratio is not in [0, 1), or the input of a training one is of another type than floats.
            NeedsHostValue: Ratio or mode are not known.
        """
        if ratio is not None:
            check_dtype("Dropout", ratio, (*FLOATS, *FLOAT8), "ratio")
        if training_mode is not None:
            check_dtype("Dropout", training_mode, (np.dtype(np.bool_),), "training_mode")
        if _trains(training_mode):
            check_dtype("Dropout", x, (*FLOATS, *FLOAT8))
            _read_ratio(ratio)
        check_key(key)
        return TensorSpec(x.shape, x.dtype), TensorSpec(x.shape, np.dtype(np.bool_))

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether ``training_mode`` is absent, or known to be false."""
        training = inputs[2] if len(inputs) > 2 else None
        return training is None or (training.content is not None and not training.content.any())

    def compute(
        self,
        x: Array,
        ratio: Array | None = None,
        training_mode: Array | None = None,
        key: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Return the input, masked in training, and the mask if it is wanted."""
        is_wanted = out is None or (len(out) > 1 and out[1] is not None)
        if training_mode is None or not training_mode.any():
            return x, np.ones(x.shape, np.bool_) if is_wanted else None
        wide = accumulator(x.dtype)
        share, scale = _scale(_RATIO if ratio is None else float(ratio.reshape(())), wide)
        if has_seed(self.seed):
            mask = make_generator(self.seed).uniform(0, 1, x.shape) >= float(share)
        else:
            mask = (Draw.of(None, self.stream).uniform(key, x.size, wide) >= share).reshape(x.shape)
        with np.errstate(all="ignore"):
            y = np.where(mask, convert(np.asarray(x.astype(wide) * scale), x.dtype), x.dtype.type(0))
        return np.asarray(y), np.asarray(mask) if is_wanted else None

    def is_lowered(self, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether nothing is drawn from NumPy's generator."""
        ratio, mode = (*inputs, None, None)[1:3]
        return not has_seed(self.seed) or not _trains(mode) or not _read_ratio(ratio)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the data and fill the mask; in training launch one thread per block of numbers."""
        x, y, mask = inputs[0], outputs[0], outputs[1] if len(outputs) > 1 else None
        assert x is not None
        ratio, mode = (inputs[index].spec if _is_there(inputs, index) else None for index in (1, 2))  # type: ignore[union-attr]
        if not _trains(mode):
            if y is not None:
                emit.alias(y, x)
            if mask is not None:
                emit.fill(mask, True)
            return
        wide = accumulator(x.dtype)
        share, scale = _scale(_read_ratio(ratio), wide)
        source, drawn = emit.contiguous(widen_narrow(emit, x)), y
        if y is not None and is_narrow(x.dtype):
            drawn = emit.temp(y.shape, wide)
        arguments = [source, drawn, mask, int64(x.spec.size), share, scale]
        launch_draws(
            emit,
            f"dropout<{dtype_row(source.dtype).cuda}>",
            x.spec.size,
            wide,
            [*arguments, take_key(emit, inputs, 3), Draw.of(None, self.stream).pack()],
            [index for index in (1, 2) if arguments[index] is not None],
        )
        if y is not None and drawn is not None and drawn is not y:
            convert_commands(emit, y, drawn)


def _is_there(inputs: Sequence[Slot | None], index: int) -> bool:
    return len(inputs) > index and inputs[index] is not None


def _trains(mode: TensorSpec | None) -> bool:
    return mode is not None and bool(require_const(mode, "training_mode", 2).any())


def _read_ratio(ratio: TensorSpec | None) -> float:
    share = _RATIO if ratio is None else float(require_scalar(ratio, "ratio", 1))
    if not 0.0 <= share < 1.0:
        raise InputError(f"Dropout expects a ratio of [0, 1), got {share}.")
    return share


def _scale(ratio: float, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the ratio, and the scale of elements that are kept."""
    return dtype.type(ratio), dtype.type(1.0 / (1.0 - ratio))


@upgrade("Dropout", below=7)
def _drop_is_test(node: RawNode) -> RawNode:
    """Replace ``is_test``, which told inference from training until opset 6; training was the default.

    Raises:
        InputError: The node trains.
    """
    if not node.attributes.get("is_test", 0):
        raise InputError(
            "Dropout below opset 7 runs as inference only, expected is_test = 1; to train, save with opset 12 or later."
        )
    return node.without("is_test")


@upgrade("Dropout", below=12)
def drop_ratio(node: RawNode) -> RawNode:
    """Drop the ratio, an attribute until opset 11, where the operator was inference only."""
    return node.without("ratio")
