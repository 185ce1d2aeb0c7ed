"""SampleToken: the next token of a decoder from a row of logits, by one launch.

A class has a *distance* below the largest logit, in octaves of probability, and a *weight*, 2 to the power of 31 less
that, as an integer. What is kept and drawn follows from sums of integers, which have no order, so NumPy and every
device give the same token, however many blocks share a row. What is kept is found digit by digit of the distance;
nothing is sorted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import int32, int64
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import WARP, Work, count_slot_bytes, count_warps, read_int, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.random.philox import Draw, to_uniform
from gpuexec.ops.random.random_key import check_key, take_key

_LOGITS = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
_FLOAT, _INT, _DOUBLE = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.float64)
_MAX_THREADS = 1024  # kMostThreads of sample_token.cu
_FARTHEST = np.float32(32)  # kFarthest
_ALL = 2**32 - 1
_LONGEST = 2**31
_BINS, _WORDS = 2048, 6144  # kDigits and kWords
# Classes that a block has of a row, and rows that are shared by several blocks: more rows keep a device busy.
_BLOCK_CLASSES, _FEW_ROWS = 4096, 8
# Of the polynomial for 2**-x, x of [0, 1), highest power first; as Place::weight has them.
_POLYNOMIAL = (
    *(-0.000946877000387758, 0.009209180250763893, -0.05529811978340149, 0.24017895758152008),
    *(-0.6931431293487549, 0.9999999403953552),
)
# Settings by their input: role, type, default; Each of sample_token.cu counts them.
_SETTINGS: dict[int, tuple[str, np.dtype[Any], float]] = {
    1: ("temperature", _FLOAT, 1.0),
    2: ("top_k", _INT, 0),
    3: ("top_p", _FLOAT, 1.0),
    5: ("penalty", _FLOAT, 1.0),
}

instantiate("sample_token.cu", [f"sample_token<{dtype_row(dtype).cuda}>" for dtype in _LOGITS])


@operator("SampleToken", "gpuexec")
@dataclass(frozen=True, slots=True)
class SampleToken(Operator):
    """Token for each row of logits, drawn by its probability among those kept.

    In this order, as samplers of language models do: a *penalty* on tokens that were there, the *temperature*, the
    *top_k* likeliest classes, and of these the likeliest that make up *top_p* of the probability; classes as likely as
    the last one kept stay too. A temperature of 0 takes the first class of the largest logit. Logits that are NaN are
    never drawn where there are others, nor classes 2**31 times less likely than the first.

    Inputs:
        logits: ``[sequences, classes]``, or several rows of each sequence, ``[sequences, rows, classes]``.
        temperature, top_k, top_p, penalty: One element, or one for each sequence. A top_k of 0 keeps all.
        tokens: ``[sequences, count]``, to be penalised, together with ``penalty``; the rows follow each other, so the
            last one sees all, the one before all but one. Numbers of no class count for none.
        places: Shape of the output. With it a number follows from the seed, the sequence and its place (32 bits),
            whatever the run; without, from the seed, the run and the row.
        key: See `gpuexec.ops.random.random_key`.
    """

    seed: float | None = None
    stream: int | None = None
    tolerance = Tolerance.EXACT
    flops_per_output = None
    is_random = True
    has_blits = False
    example = "float32[2,3]"

    def infer(
        self,
        logits: TensorSpec,
        temperature: TensorSpec | None = None,
        top_k: TensorSpec | None = None,
        top_p: TensorSpec | None = None,
        tokens: TensorSpec | None = None,
        penalty: TensorSpec | None = None,
        places: TensorSpec | None = None,
        key: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return an int64 for each row.

        Raises:
            InputError: There are no rows of classes, or an input does not fit them.
        """
        check_dtype("SampleToken", logits, _LOGITS, "logits")
        check_key(key)
        if logits.rank not in (2, 3) or logits.shape[-1] < 1:
            raise InputError(
                "SampleToken expects logits [sequences, classes] or [sequences, rows, classes] with at least one class,"
                f" got {logits}."
            )
        sequences = logits.shape[0]
        for index, given in ((1, temperature), (2, top_k), (3, top_p), (5, penalty)):
            role, dtype, _ = _SETTINGS[index]
            if given is not None:
                check_dtype("SampleToken", given, [dtype], role)
                if given.size != 1 and given.shape != (sequences,):
                    raise InputError(f"SampleToken expects one {role}, or one for each of {sequences}, got {given}.")
        if (tokens is None) != (penalty is None):
            raise InputError("SampleToken expects tokens and their penalty together, got one of them.")
        if tokens is not None and (tokens.rank != 2 or tokens.shape[0] != sequences or tokens.dtype != _INT):
            raise InputError(f"SampleToken expects tokens int64[{sequences},count], got {tokens}.")
        drawn = TensorSpec(logits.shape[:-1], _INT)
        if places is not None and (places.shape, places.dtype) != (drawn.shape, _INT):
            raise InputError(f"SampleToken expects places as the tokens it gives, {drawn}, got {places}.")
        return (drawn,)

    def compute(
        self,
        logits: Array,
        temperature: Array | None = None,
        top_k: Array | None = None,
        top_p: Array | None = None,
        tokens: Array | None = None,
        penalty: Array | None = None,
        places: Array | None = None,
        key: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array, ...]:
        """Sort each row's distances, and look up where a number falls among the sums of weights."""
        drawn = np.zeros(logits.shape[:-1], _INT)
        rows = drawn.shape[1] if drawn.ndim == 2 else 1
        lines = logits.reshape(drawn.size, logits.shape[-1])
        settings = [
            np.broadcast_to(_SETTINGS[index][2] if given is None else given.reshape(-1), drawn.shape[:1])
            for index, given in ((1, temperature), (2, top_k), (3, top_p), (5, penalty))
        ]
        numbers = self._draw(drawn.size, rows, places, key)
        for row in range(drawn.size):
            sequence = row // rows
            divisor, most, share, factor = (setting[sequence] for setting in settings)
            values = lines[row]
            if tokens is not None:
                end = tokens.shape[1] - (rows - 1 - row % rows)
                values = penalise(values, tokens[sequence, : max(0, end)], factor)
            values = values.astype(_FLOAT)
            if not divisor > 0 or np.isnan(values).all():
                drawn.flat[row] = np.where(np.isnan(values), -np.inf, values).argmax()
                continue
            place, weights = weigh(values, divisor)
            bound = find_bound(place, most, share, weights)
            sums = np.cumsum(np.where(place <= bound, weights, 0), dtype=np.uint64)
            total = int(sums[-1])
            wanted = min(int(float(numbers[row]) * float(total)), total - 1)
            drawn.flat[row] = np.searchsorted(sums, np.uint64(wanted), side="right")
        return (drawn,)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch some blocks per row, which wait for each other, or one where there are many rows or few classes."""
        given = (*inputs, *(None,) * (8 - len(inputs)))
        logits, tokens, y = given[0], given[4], outputs[0]
        assert logits is not None and y is not None
        classes, rows, each = logits.shape[-1], max(1, y.spec.size), 0
        if classes >= _LONGEST or rows >= _LONGEST:
            raise InputError(f"SampleToken takes fewer than 2**31 rows and classes on a device, got {logits.spec}.")
        for bit, index in enumerate(_SETTINGS):
            setting = given[index]
            each |= int(setting is not None and setting.spec.size != 1) << bit
        is_shared = emit.choose(lambda: int(rows <= _FEW_ROWS and classes > _BLOCK_CLASSES)) > 0
        places = emit.target.multiprocessors
        is_cooperative = is_shared and places >= _FEW_ROWS
        parts = min(places // rows, ceil_div(classes, _BLOCK_CLASSES)) if is_cooperative else 1
        digits = 3 * ((given[2] is not None) + (given[3] is not None))
        threads = min(_MAX_THREADS, max(64, 1 << max(0, ceil_div(classes, parts) - 1).bit_length() >> 2))
        emit.launch(
            Kernel("sample_token.cu", f"sample_token<{dtype_row(logits.dtype).cuda}>"),
            (rows * parts, 1, 1),
            (threads, 1, 1),
            [
                emit.contiguous(logits),
                *(take_key(emit, given, index) for index in range(1, 8)),
                y,
                None if tokens is None else emit.temp(logits.shape, logits.dtype),
                emit.temp((2 * places,), _INT) if is_shared else None,
                emit.counters(1 + rows * digits * _WORDS) if is_shared else None,
                int32(classes),
                int32(y.shape[1] if y.spec.rank == 2 else 1),
                int32(parts),
                int64(0 if tokens is None else tokens.shape[1]),
                np.uint32(each),
                Draw.of(self.seed, self.stream).pack(),
            ],
            writes=[8, *[9] * (tokens is not None), *[10, 11] * is_shared],
            cooperative=is_cooperative,
        )

    def _draw(self, count: int, rows: int, places: Array | None, key: Array | None) -> Array:
        """Return a number of [0, 1) for each row."""
        blocks, pair = np.arange(count, dtype=np.uint64), np.zeros(2, np.uint64) if key is None else key.copy()
        if places is not None:
            pair[1] = 0
            blocks = blocks // np.uint64(rows) << np.uint64(32) | places.reshape(-1).astype(np.uint32)
        return to_uniform(Draw.of(self.seed, self.stream).blocks_at(pair, blocks), _DOUBLE)[:, 0]


def penalise(values: Array, tokens: Array, factor: Any) -> Array:
    """Return logits with those of tokens multiplied by a factor, or divided where they are not negative."""
    held = np.unique(tokens)
    held = held[(held >= 0) & (held < values.size)]
    changed, wide, factor = values.copy(), values[held].astype(_FLOAT), np.float32(factor)
    with np.errstate(all="ignore"):
        changed[held] = np.where(wide < 0, wide * factor, wide / factor).astype(values.dtype)
    return changed


def weigh(values: Array, divisor: Any) -> tuple[Array, Array]:
    """Return distances in units of 2**-27 octaves, 2**32 where a class weighs nothing, and weights."""
    with np.errstate(all="ignore"):
        octaves = np.float32(1) / np.float32(divisor) * np.float32(1.44269504)
        largest = np.fmax.reduce(values, initial=-np.inf)
        distance = np.where(values == largest, np.float32(0), (largest - values) * octaves)
        is_near = distance < _FARTHEST
        distance = np.where(is_near, distance, np.float32(0))
    whole = np.floor(distance)
    part, p = distance - whole, np.zeros_like(distance)
    for coefficient in _POLYNOMIAL:
        p = p * part + np.float32(coefficient)
    weights = (p * np.float32(2**31)).astype(np.uint64) >> whole.astype(np.uint64)
    places = (distance * np.float32(2**27)).astype(np.int64)
    return np.where(is_near, places, _ALL + 1), np.where(is_near, weights, np.uint64(0))


def find_bound(places: Array, most: Any, share: Any, weights: Array) -> int:
    """Return the farthest place that is kept of a row."""
    order = np.argsort(places, kind="stable")
    ordered, sums = places[order], np.cumsum(weights[order], dtype=np.uint64)
    bound = min(int(ordered[int(most) - 1]), _ALL) if 0 < most < places.size else _ALL
    if share < 1:
        kept = int(sums[np.searchsorted(ordered, bound, side="right") - 1])
        wanted = max(1, int(float(kept) * float(share)) if share > 0 else 0)
        bound = int(ordered[np.searchsorted(sums, np.uint64(wanted))])
    return bound


# Instructions of a thread for a class, from machine code for sm_90: to look at it for the largest, to penalise it, to
# count it by a digit, or its weight, to add up its weight, and to find that it counts no more; and for a digit.
_LOOK, _PENALISE, _COUNT, _WEIGH, _ADD, _SKIP, _SCAN = 8, 26, 27, 52, 37, 14, 400
_DIGITS = 2  # by which the bound is known, but for classes within 2**-16 octaves of each other
_AHEAD = 4  # kAhead


@work_of("sample_token.cu", "sample_token")
def _count_sample(launch: Launch) -> Work:
    x, _, top_k, top_p, tokens = launch.arguments[:5]
    assert isinstance(x, Slot)
    threads, parts = launch.block[0], read_int(launch.arguments[14])
    own = ceil_div(ceil_div(read_int(launch.arguments[12]), parts), threads)
    counted, weighed, penalised = (each is not None for each in (top_k, top_p, tokens))
    searches, digits = counted + weighed, _DIGITS * (counted + weighed)
    passes = 2 + penalised + digits
    each = _LOOK + penalised * _PENALISE + counted * (_COUNT + _SKIP) + weighed * (_WEIGH + _SKIP)
    each += _SKIP if searches else _ADD
    # A thread reads bins side by side; blocks that share a row add up theirs, and each reads the sums.
    scanned = 6 * _BINS // WARP * (1 + 2 * _BINS // threads)
    meetings = 0 if parts == 1 else 2 + 3 * searches
    return Work(
        instructions=count_warps(launch) * (own * each + (_SCAN + 12 * _WORDS // threads) * digits),
        wavefronts=count_warps(launch) * own * (counted + 3 * weighed + penalised) + launch.grid[0] * digits * scanned,
        l2_nbytes=(passes + penalised) * count_slot_bytes(x)
        + (8 * _WORDS * launch.grid[0] * digits if parts > 1 else 0),
        rounds=passes * ceil_div(own, _AHEAD) + 2 * meetings + (2 * digits if parts > 1 else 0),
        barriers=4 + 3 * penalised + 6 * digits + 2 * meetings,
        registers=64,
        shared_nbytes=25360,
    )
