"""Options of `ImageTransform`, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import dtype_row


def take_dtype(name: str, given: Any, known: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a supported element type.

    Raises:
        InputError: It is another, or none.
    """
    dtype = dtype_row(given).numpy
    if dtype not in known:
        names = ", ".join(dtype_row(each).name for each in known)
        raise InputError(f"ImageTransform expects {name} among {names}, got {dtype.name}.")
    return dtype


def take_size(given: Sequence[int]) -> tuple[int, int]:
    """Return height and width.

    Raises:
        InputError: They are no two whole numbers, 1 or more.
    """
    size = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(size) != 2 or not all(_is_count(each) for each in size):
        raise InputError(f"ImageTransform expects size as (height, width), 1 or more, got {given!r}.")
    return int(size[0]), int(size[1])


def take_number(name: str, given: Any) -> float:
    """Return one number.

    Raises:
        InputError: It is none, or more, or not finite.
    """
    numbers = _read_numbers(given)
    if len(numbers) != 1:
        raise InputError(f"ImageTransform expects {name} as one finite number, got {given!r}.")
    return numbers[0]


def take_numbers(name: str, given: Any) -> tuple[float, ...]:
    """Return numbers.

    Raises:
        InputError: There are none, or they are not finite.
    """
    numbers = _read_numbers(given)
    if not numbers:
        raise InputError(f"ImageTransform expects {name} as one finite number, or one per channel, got {given!r}.")
    return numbers


def take_mask(given: Any) -> tuple[tuple[str, float], ...]:
    """Return pairs of a letter and a value, of a mapping or of pairs.

    Raises:
        InputError: It is neither, or they are something else.
    """
    try:
        values = dict(given)
    except (TypeError, ValueError):
        raise InputError(
            f"ImageTransform expects mask as values by letter, such as {{'A': 1.0}}, got {given!r}."
        ) from None
    strange = [letter for letter in values if not isinstance(letter, str) or len(letter) != 1]
    if strange:
        raise InputError(f"ImageTransform expects mask as values by letter, got {strange[0]!r} for one.")
    return tuple((letter, take_number(f"mask[{letter!r}]", value)) for letter, value in values.items())


def _is_count(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(number >= 1)


def _read_numbers(given: Any) -> tuple[float, ...]:
    """Return finite numbers; nothing where they are something else."""
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return ()
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        return ()
    return tuple(numbers.reshape(-1).tolist())
