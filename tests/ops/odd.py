"""Odd inputs derived from a call: other shapes, other types, and extreme values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.ir.containers import make_blank
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import DTYPES, STRING, dtype_row, is_container
from tests.ops.calls import Call, convert

Inputs = tuple[Array | None, ...]
MAX_RANK = 8
ORDINARY, SPECIAL, EXTREME = "ordinary", "special", "extreme"


def vary_shapes(inputs: Inputs, known: set[int]) -> Iterator[tuple[str, Inputs]]:
    """Return inputs with other extents and ranks; those that planning must know stay as they are.

    An extent becomes 0 and 1 wherever it is met, and in one place alone; inputs become 0-d, and of eight axes.
    """
    free = [i for i, x in enumerate(inputs) if x is not None and i not in known and not is_container(x.dtype)]
    shapes = {i: tuple(inputs[i].shape) for i in free}  # type: ignore[union-attr]
    seen = {tuple(shapes.items())}
    for label, changed in _change(shapes):
        key = tuple(sorted(changed.items()))
        if key not in seen:
            seen.add(key)
            yield (
                label,
                tuple(reshape(x, changed[i]) if i in changed and x is not None else x for i, x in enumerate(inputs)),
            )


def _change(shapes: dict[int, tuple[int, ...]]) -> Iterator[tuple[str, dict[int, tuple[int, ...]]]]:
    for extent in sorted({n for shape in shapes.values() for n in shape}):
        for made in (0, 1):
            changed = {i: tuple(made if n == extent else n for n in shape) for i, shape in shapes.items()}
            yield f"all {extent} are {made}", changed
    for i, shape in shapes.items():
        for axis in range(len(shape)):
            for made in (0, 1):
                yield f"input {i} has {made} on axis {axis}", {**shapes, i: (*shape[:axis], made, *shape[axis + 1 :])}
        yield f"input {i} is 0-d", {**shapes, i: ()}
        if len(shape) < MAX_RANK:
            yield f"input {i} has {MAX_RANK} axes", {**shapes, i: _raise(shape, 2)}
    yield "all are 0-d", dict.fromkeys(shapes, ())
    for lead in (1, 2):
        yield f"all have {MAX_RANK} axes", {i: _raise(shape, lead) for i, shape in shapes.items()}


def _raise(shape: tuple[int, ...], lead: int) -> tuple[int, ...]:
    more = MAX_RANK - len(shape)
    return (*(1,) * (more - 1), *(lead,) * min(more, 1), *shape)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    """Return an array of a shape with the elements of another, over and over."""
    if not x.size:
        return make_blank(shape, x.dtype)
    return x.reshape(-1)[np.arange(int(np.prod(shape))) % x.size].reshape(shape)


def vary_dtypes(call: Call) -> Iterator[tuple[str, Inputs]]:
    """Return the inputs with those of one letter, or of one type, in each other type."""
    groups: dict[tuple[int, ...], None] = {}
    for i, (x, letter) in enumerate(zip(call.inputs, call.letters, strict=True)):
        if x is not None:
            pairs = list(enumerate(zip(call.inputs, call.letters, strict=True)))
            groups[tuple(j for j, (_, other) in pairs if other == letter and letter) or (i,)] = None
            groups[tuple(j for j, (other, _) in pairs if other is not None and other.dtype == x.dtype)] = None
    for places in groups:
        for row in DTYPES:
            inputs = tuple(
                convert(x, row.numpy) if i in places and x is not None else x for i, x in enumerate(call.inputs)
            )
            yield f"inputs {list(places)} are {row.name}", inputs


def fill(rng: np.random.Generator, inputs: Inputs, kept: set[int], kind: str, terms: int = 0) -> Inputs:
    """Return fresh values of the same shapes and types, but for inputs that must stay.

    Args:
        kind: Within the range of those given, with what is no number among them, or at the ends of what types hold.
        terms: So many enter a sum, whose ends must hold products of four of what is drawn; 0: there are no sums.
    """
    return tuple(x if x is None or i in kept else fill_one(rng, x, kind, terms) for i, x in enumerate(inputs))


def fill_one(rng: np.random.Generator, x: Array, kind: str, terms: int) -> Array:
    """Return fresh values; strings and containers stay."""
    if is_container(x.dtype) or x.dtype == STRING or not x.size:
        return x
    if x.dtype.kind == "b":
        return np.asarray(rng.random(x.shape) < 0.5)
    if dtype_row(x.dtype).is_narrow:
        return np.asarray(rng.choice(x.reshape(-1).view(np.uint8), x.shape)).view(x.dtype)
    if x.dtype.kind in "iu":
        info = np.iinfo(x.dtype)
        edges = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], x.dtype)
        ordinary = rng.integers(x.min(), x.max(), x.shape, x.dtype, endpoint=True)
        return np.asarray(rng.choice(edges, x.shape) if kind == EXTREME else ordinary)
    wide = x.astype(np.float64)
    wide = wide[np.isfinite(wide)]
    low, high = (wide.min(), wide.max()) if wide.size and wide.min() < wide.max() else (-1.0, 1.0)
    drawn = rng.uniform(low, high, x.shape)
    if kind == SPECIAL:
        drawn = np.where(rng.random(x.shape) < 0.15, rng.choice(specials(), x.shape), drawn)
    elif kind == EXTREME:
        drawn = rng.choice(extremes(x.dtype, terms), x.shape)
    with np.errstate(all="ignore"):
        return np.asarray(drawn).astype(x.dtype)


def specials() -> Array:
    """Return what is no ordinary number: NaN, infinities, zeros of both signs."""
    return np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])


def extremes(dtype: np.dtype[Any], terms: int) -> Array:
    """Return 0, 1 and the largest and smallest finite numbers; with ``terms``, 0 and what sums of products can take.

    That is a power of two and has no negative, so that sums neither round nor cancel, in whatever order they are.
    """
    info = ml_dtypes.finfo(dtype)
    if terms:
        return np.array([0.0, 2.0 ** int(math.log2(float(info.max)) / 4 - math.log2(terms))])
    ends = [float(each) for each in (0.0, 1.0, info.smallest_normal, info.smallest_subnormal, info.max)]
    return np.array([*ends, *(-each for each in ends)])
