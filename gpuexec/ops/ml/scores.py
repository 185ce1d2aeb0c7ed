"""Labels and post-transformed scores (SOFTMAX, LOGISTIC, PROBIT) of ai.onnx.ml models.

One score may stand for two classes, ``s`` for the second. Untransformed it becomes the pair that the operator names; to
be made probabilities, ``-s`` and ``s``, or ``1 - s`` and ``s`` where it is one already, as PROBIT takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ir.spec import dtype_row
from gpuexec.ops.ml.table_operator import DOUBLE, FLOAT, INT64, THREADS

SOURCE = "scores.cu"
_PAIRS = ((FLOAT, FLOAT), (FLOAT, np.dtype(np.float16)), (DOUBLE, DOUBLE), (DOUBLE, FLOAT))
instantiate(SOURCE, [f"finish_scores<{dtype_row(a).cuda}, {dtype_row(t).cuda}>" for a, t in _PAIRS])


class Transform(IntEnum):
    """Final transform of scores, numbered as TreeEnsemble numbers it and scores.cu has it."""

    NONE = 0
    SOFTMAX = 1
    LOGISTIC = 2
    SOFTMAX_ZERO = 3
    PROBIT = 4
    SIGN = 5  # what one-class machines end with; no attribute names it


_NAMED = tuple(transform.name for transform in Transform if transform is not Transform.SIGN)


class LabelRule(IntEnum):
    """Choice of a row's class: that of its largest score, the second if its last score is above, or a given one."""

    LARGEST = 0
    ABOVE = 1
    GIVEN = 2


class Pair(IntEnum):
    """Expansion of one score for two classes: itself, ``1 - s, s`` or ``-s, s``."""

    AS_IT_IS = 0
    COMPLEMENT = 1
    OPPOSITE = 2


def find_transform(name: str) -> Transform:
    """Return the transform of a name.

    Raises:
        InputError: There is none of this name.
    """
    if name not in _NAMED:
        raise InputError(f"post_transform expects {', '.join(_NAMED)}, got {name!r}.")
    return Transform[name]


def choose_pair(transform: Transform, untransformed: Pair) -> Pair:
    """Return the expansion of a two-class score before it is transformed."""
    if transform is Transform.NONE:
        return untransformed
    return Pair.COMPLEMENT if transform is Transform.PROBIT else Pair.OPPOSITE


@dataclass(frozen=True, slots=True)
class ScorePostprocessing:
    """Conversion of raw scores ``[rows, columns]`` to scores, and to labels if there are ``names`` of classes."""

    transform: Transform
    pair: Pair = Pair.AS_IT_IS
    rule: LabelRule = LabelRule.LARGEST
    threshold: float = 0.0
    names: tuple[int, ...] = ()

    def width(self, columns: int) -> int:
        """Return the columns of the scores."""
        return columns if self.pair is Pair.AS_IT_IS else 2

    def compute(self, raw: Array, dtype: np.dtype[Any], places: Array | None = None) -> tuple[Array, Array]:
        """Return the places of the rows' classes among the names, and the scores."""
        with np.errstate(all="ignore"):
            scores = transform_scores(spread_pair(raw, self.pair), self.transform).astype(dtype, copy=False)
        if self.rule is LabelRule.ABOVE:
            places = (raw[:, -1] > self.threshold).astype(INT64)
        elif places is None:
            # Comparisons with NaN are false.
            places = np.where(np.isnan(raw[:, 0]), 0, np.argmax(np.where(np.isnan(raw), -np.inf, raw), 1))
        return places, scores

    def lower(
        self, emit: Emitter, raw: Slot, scores: Slot | None, labels: Slot | None, places: Slot | None = None
    ) -> None:
        """Launch a thread per row. Scores without readers are written to scratch memory."""
        rows, columns = raw.shape
        if scores is None:
            scores = emit.temp((rows, self.width(columns)), FLOAT)
        a = raw.dtype.type
        emit.launch(
            Kernel(SOURCE, f"finish_scores<{dtype_row(raw.dtype).cuda}, {dtype_row(scores.dtype).cuda}>"),
            (max(1, ceil_div(rows, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [
                raw,
                places,
                emit.constant(np.array(self.names, INT64)) if labels is not None else None,
                scores,
                labels,
                int64(rows),
                int64(columns),
                int32(self.rule),
                a(self.threshold),
                int32(self.pair),
                int32(self.transform),
            ],
            writes=[3] if labels is None else [3, 4],
        )


def spread_pair(raw: Array, pair: Pair) -> Array:
    """Return the scores of the classes."""
    if pair is Pair.AS_IT_IS:
        return raw
    score = raw[:, :1]
    return np.concatenate((1 - score if pair is Pair.COMPLEMENT else -score, score), 1)


def transform_scores(x: Array, transform: Transform) -> Array:
    """Transform rows of scores in their own type."""
    if transform is Transform.LOGISTIC:
        high = 1 / (1 + np.exp(-np.abs(x)))
        return np.asarray(np.where(x < 0, 1 - high, high))
    if transform is Transform.PROBIT:
        return _probit(x)
    if transform is Transform.SIGN:
        return np.asarray(np.where(x > 0, x.dtype.type(1), x.dtype.type(-1)))
    if transform is Transform.NONE or not x.size:
        return x
    largest = np.max(x, 1, keepdims=True)
    powers = np.exp(x - largest)
    if transform is Transform.SOFTMAX_ZERO:
        is_zero = ~((x > 1e-7) | (x < -1e-7))
        powers = np.where(is_zero, x * np.exp(-largest), powers)
    total = powers.sum(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        y = powers / total
    return np.asarray(np.where(total == 0, x.dtype.type(0.5), y) if transform is Transform.SOFTMAX_ZERO else y)


def _probit(p: Array) -> Array:
    """Return quantiles of the normal distribution, by Winitzki's approximation of the inverse error function."""
    real = p.dtype.type
    x = real(2) * p - real(1)
    log = np.log((1 - x) * (1 + x))
    v = real(2 / (0.147 * np.pi)) + real(0.5) * log
    root = np.sqrt(-v + np.sqrt(v * v - real(1 / 0.147) * log))
    return np.asarray(real(np.sqrt(2)) * np.where(x < 0, -root, root))
