"""One-vs-one classification of support vector machines: pairwise scores, votes and probabilities.

The score of a pair is a sum over the vectors of its two classes; above 0 the first of them wins. Probabilities of pairs
(Platt) are coupled to those of classes by the second method of Wu, Lin and Weng (JMLR 5, 2004), as in LIBSVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int64
from gpuexec.ir.operator import Array, Emitter
from gpuexec.ops.ml.likeness import SOURCE
from gpuexec.ops.ml.table_operator import FLOAT, INT32, THREADS, read_numbers

_MIN_PROBABILITY = np.float32(1e-7)  # kLeast of svm.cu
_MAX_ROUNDS = 100  # kMaxRounds of svm.cu
instantiate(SOURCE, ["score_pairs", "count_votes", "couple_classes"])


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Table of all pairs of classes, those of the first class first.

    Attributes:
        coefficients: ``[classes - 1, vectors]``: in row k the weights of a vector against the k-th other class.
        rho: Bias, by pair.
        starts: Begin of each class's vectors, ``[classes + 1]``.
        members: The two classes, ``[pairs, 2]``.
        slopes: With ``shifts`` the probability of a pair: 1 / (1 + exp(slope * score + shift)); None: none are wanted.
    """

    coefficients: Array
    rho: Array
    starts: Array
    members: Array
    slopes: Array | None
    shifts: Array | None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.starts) - 1

    @property
    def has_probabilities(self) -> bool:
        """Return whether scores are probabilities of classes."""
        return self.slopes is not None

    @property
    def columns(self) -> int:
        """Return the number of scores of a row."""
        return self.classes if self.has_probabilities else len(self.members)

    def score(self, likeness: Array) -> Array:
        """Return the scores of the pairs: products and sums in double."""
        first, second = self.members.T
        # By row of the coefficients and class: the vectors of the class, weighed by that row.
        sums = np.zeros((len(likeness), self.classes - 1, self.classes))
        with np.errstate(all="ignore"):
            for own in range(self.classes):
                part = slice(self.starts[own], self.starts[own + 1])
                factors = self.coefficients[:, part].astype(np.float64)
                sums[:, :, own] = likeness[:, part].astype(np.float64) @ factors.T
            scores = sums[:, second - 1, first] + sums[:, first, second] + self.rho
            return np.asarray(scores.astype(np.float32))

    def count_votes(self, scores: Array) -> Array:
        """Return the class of each row that wins most pairs, the first of equals."""
        votes = np.zeros((len(scores), self.classes), np.int32)
        winners = np.where(scores > 0, self.members[:, 0], self.members[:, 1])
        np.add.at(votes, (np.arange(len(scores))[:, None], winners), 1)
        return np.asarray(np.argmax(votes, 1))

    def couple(self, scores: Array) -> Array:
        """Return the probabilities of the classes that fit those of the pairs best."""
        assert self.slopes is not None and self.shifts is not None
        rows, classes = len(scores), self.classes
        with np.errstate(all="ignore"):
            x = scores * self.slopes + self.shifts
            high = 1 / (1 + np.exp(-np.abs(x)))
            wins = np.clip(1 - np.where(x < 0, 1 - high, high), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
            q = np.zeros((rows, classes, classes), np.float32)
            for pair, (i, j) in enumerate(self.members.tolist()):
                win, lose = wins[:, pair], 1 - wins[:, pair]
                q[:, i, j] = q[:, j, i] = -lose * win
                q[:, i, i] += lose * lose
                q[:, j, j] += win * win
            p = np.full((rows, classes), 1 / classes, np.float32)
            going = np.arange(rows)
            for _ in range(_MAX_ROUNDS):
                # In the order of the kernel, since a last bit may decide on one more round.
                qp = np.add.accumulate(q[going] * p[going, None], axis=2)[:, :, -1]
                total = np.add.accumulate(p[going] * qp, axis=1)[:, -1]
                # An error of NaN is none: such a row stays as it is, as in LIBSVM.
                worst = np.fmax.reduce(np.abs(qp - total[:, None]), axis=1, initial=0)
                is_unfit = ~(worst < np.float32(0.005) / classes)
                going = going[is_unfit]
                if not going.size:
                    break
                p[going] = _improve(p[going].T, q[going], qp[is_unfit].T, total[is_unfit]).T
        return p

    def launch_scores(self, emit: Emitter, likeness: Slot) -> Slot:
        """Launch a thread per row and pair; return the scores."""
        rows, vectors = likeness.shape
        scores = emit.temp((rows, len(self.members)), FLOAT)
        tables = (self.coefficients, self.rho, self.starts, self.members)
        emit.launch(
            Kernel(SOURCE, "score_pairs"),
            (max(1, ceil_div(scores.spec.size, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [
                likeness,
                *(emit.constant(table) for table in tables),
                scores,
                *(int64(extent) for extent in (scores.spec.size, len(self.members), vectors)),
            ],
            writes=[5],
        )
        return scores

    def launch_votes(self, emit: Emitter, scores: Slot) -> Slot:
        """Launch a thread per row; return the classes."""
        rows = scores.shape[0]
        places = emit.temp((rows,), INT32)
        emit.launch(
            Kernel(SOURCE, "count_votes"),
            (max(1, ceil_div(rows, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [scores, places, int64(rows), int64(self.classes)],
            writes=[1],
        )
        return places

    def launch_coupling(self, emit: Emitter, scores: Slot) -> Slot:
        """Launch a thread per row; return the probabilities of the classes."""
        assert self.slopes is not None and self.shifts is not None
        rows = scores.shape[0]
        p = emit.temp((rows, self.classes), FLOAT)
        scratch = emit.temp((self.classes * (self.classes + 1), rows), FLOAT)
        emit.launch(
            Kernel(SOURCE, "couple_classes"),
            (max(1, ceil_div(rows, THREADS)), 1, 1),
            (THREADS, 1, 1),
            [
                scores,
                emit.constant(self.slopes),
                emit.constant(self.shifts),
                p,
                scratch,
                int64(rows),
                int64(self.classes),
            ],
            writes=[3, 4],
        )
        return p


def _improve(p: Array, q: Array, qp: Array, total: Array) -> Array:
    """Return better probabilities ``[classes, rows]``, class by class, by ``q`` p for each row and p' q p."""
    p, qp = p.copy(), qp.copy()
    for i, (diagonal, column) in enumerate(zip(np.einsum("rii->ir", q), q.transpose(1, 2, 0), strict=True)):
        step = (total - qp[i]) / diagonal
        scale = 1 + step
        p[i] += step
        total = (total + step * (step * diagonal + 2 * qp[i])) / scale / scale
        qp = (qp + step * column) / scale
        p /= scale
    return p


def read_pairs(
    counts: tuple[int, ...],
    coefficients: tuple[float, ...] | None,
    rho: tuple[float, ...] | None,
    prob_a: tuple[float, ...] | None,
    prob_b: tuple[float, ...] | None,
) -> Pairs:
    """Return the pairs of classes that have so many support vectors each.

    Raises:
        InputError: There are fewer numbers than pairs or vectors need.
    """
    classes, vectors = len(counts), sum(counts)
    shifts = read_numbers("rho", rho, classes * (classes - 1) // 2)  # so there are not more pairs than numbers
    members = np.array(list(combinations(range(classes), 2)), np.int32)
    if bool(prob_a) != bool(prob_b):
        raise InputError(f"expected prob_a and prob_b or neither, got {len(prob_a or ())} and {len(prob_b or ())}.")
    return Pairs(
        read_numbers("coefficients", coefficients, (classes - 1) * vectors).reshape(classes - 1, vectors),
        shifts,
        np.array([0, *np.cumsum(counts)], np.int32),
        members,
        read_numbers("prob_a", prob_a, len(members)) if prob_a else None,
        read_numbers("prob_b", prob_b, len(members)) if prob_b else None,
    )
