"""Calls that an operator is prepared as for arrays that stay where they are; `compute` where nothing is prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from math import prod
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gpuexec.errors import PlanError
from gpuexec.ir.operator import Array, Operator, PreparedCalls

BLOCK = 1 << 15  # elements that a function is called with at once, so that its temporaries stay in cache


def prepare_calls(
    operator: Operator,
    inputs: Sequence[Array | None],
    out: Sequence[Array | None],
    constant: Sequence[bool] = (),
    scratch: Sequence[Array] = (),
) -> PreparedCalls:
    """Return the calls of `Operator.prepare`, or one of `compute`.

    Args:
        operator: What is computed.
        inputs: As for `prepare`.
        out: Where its outputs go.
        constant: Which of the inputs never change; those beyond its end may.
        scratch: As for `prepare`.
    """
    known = [*constant, *[False] * (len(inputs) - len(constant))]
    calls = operator.prepare(inputs, out, known, scratch)
    return [partial(compute_into, operator, inputs, out)] if calls is None else calls


def compute_into(operator: Operator, inputs: Sequence[Array | None], out: Sequence[Array | None]) -> None:
    """Compute an operator, and see to it that the results are where they belong.

    Raises:
        PlanError: They are of other types or shapes.
    """
    for window, result in zip(out, operator.compute(*inputs, out=out), strict=False):
        if window is None or result is window:
            continue
        if result is None or result.shape != window.shape or result.dtype != window.dtype:
            got = "nothing" if result is None else f"{result.dtype}{list(result.shape)}"
            raise PlanError(f"expected {window.dtype}{list(window.shape)} to be computed, got {got}.")
        np.copyto(window, result)


def prepare_elementwise(
    function: Callable[..., object], operands: Sequence[Array | None], y: Array
) -> Callable[[], object]:
    """Return the call of a function that broadcasts, over views for which NumPy's simplest loop will do.

    That is one over dense arrays of one size, whose axes don't matter then, and numbers.

    Args:
        function: Of the operands, and of ``out``.
        operands: What it is called with; None: absent.
        y: Where its result goes, as large as that.
    """
    operands, y = _flatten(operands, y)
    return partial(function, *operands, out=y)


def _flatten(operands: Sequence[Array | None], y: Array) -> tuple[Sequence[Array | None], Array]:
    given = [x for x in operands if x is not None and x.size > 1]
    if y.size > 1 and y.flags.c_contiguous and all(x.size == y.size and x.flags.c_contiguous for x in given):
        return [x if x is None else x.reshape(-1 if x.size > 1 else ()) for x in operands], y.reshape(-1)
    return operands, y


@runtime_checkable
class Bindable(Protocol):
    """A function that is more than one call of NumPy, each of which can be prepared."""

    def __call__(self, *operands: Any, out: Array) -> object:
        """Compute."""

    def bind(self, operands: Sequence[Any], out: Array, constant: Sequence[bool]) -> PreparedCalls:
        """Return calls that do what a call does, for arrays that stay where they are.

        Args:
            operands: What it would be called with.
            out: As there.
            constant: Which of the operands never change; those beyond its end may.
        """


def prepare_step(
    function: Callable[..., object], operands: Sequence[Array | None], y: Array, constant: Sequence[bool] = ()
) -> PreparedCalls:
    """Return the calls of a function as `prepare_elementwise` does, with as little between NumPy's as can be.

    One that has temporaries is called block by block, where arrays are dense.

    Args:
        function: As there.
        operands: As there.
        y: As there.
        constant: Which of the operands never change; those beyond its end may.
    """
    operands, y = _flatten(operands, y)
    if isinstance(function, Bindable):
        return function.bind(operands, y, constant)
    if isinstance(function, np.ufunc) or y.ndim != 1 or y.size <= BLOCK:
        return [partial(function, *operands, out=y)]
    parts = [slice(first, first + BLOCK) for first in range(0, y.size, BLOCK)]
    return [
        partial(function, *[x if x is None or x.size == 1 else x[part] for x in operands], out=y[part])
        for part in parts
    ]


def overlay_scratch(*parts: Sequence[int]) -> list[int]:
    """Return the bytes of each array that operators work in one after the other, each in the first of the arrays."""
    return [max(sizes) for sizes in zip_longest(*parts, fillvalue=0)]


def has_scratch(scratch: Sequence[Array], nbytes: Sequence[int]) -> bool:
    """Return whether there are as many arrays of bytes as an operator counted, each as large or larger."""
    return len(scratch) >= len(nbytes) and all(have.nbytes >= need for have, need in zip(scratch, nbytes))


def view_bytes(scratch: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return the first bytes of scratch as an array."""
    view: Array = scratch[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
    return view
