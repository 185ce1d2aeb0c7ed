"""Extents of free dimensions on the command line: given by name, or assumed so that the model fits them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError
from gpuexec.execution.profiling.complexity import count_work
from gpuexec.ir.containers import pack
from gpuexec.ir.spec import is_container
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort

# Tried one after the other: for small images, say, one position is smaller than a kernel.
_EXTENTS = (1, 8, 16, 32, 64, 128, 224, 512)
_BATCH = re.compile(r"batch|^n$|^b$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_TOTAL = re.compile(r"total|attention_size|mask", re.IGNORECASE)
_LENGTH = re.compile(r"seq|len|token", re.IGNORECASE)


def check_named(model: Model, dims: Mapping[str, int]) -> None:
    """Check extents given by name.

    Raises:
        InputError: The model has no free dimension of a name, or the extent is below 0 or beyond what it is bound to.
    """
    known = list_free(model.inputs)
    for name, extent in dims.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            there = f"it has {', '.join(known)}" if known else "its inputs have fixed shapes"
            meant = f" Did you mean {near[0]}={extent}?" if near else ""
            raise InputError(f"--dims {name}={extent}: the model has no free dimension {name!r}; {there}.{meant}")
        low, high = _find_bound(model, name)
        if extent < low or (high is not None and extent > high):
            wanted = f"at least {low}" if high is None else f"{low} to {high}" if low < high else f"{low}"
            raise InputError(f"--dims {name}={extent}: dimension {name!r} must be {wanted}.")


def list_free(ports: Sequence[ModelPort]) -> list[str]:
    """Return the names of inputs' free dimensions."""
    return list(dict.fromkeys(dim for port in ports for dim in port.spec.dims or () if isinstance(dim, str)))


def propose(model: Model, dims: Mapping[str, int]) -> Iterator[tuple[dict[str, int], int]]:
    """Yield candidate extents of all named dimensions, and one for those without a name; given ones stay.

    A batch is 1, a total the past and what comes, a sum in a name (``"past + 1"``) is that sum.
    """
    names = list_free(model.inputs)
    has_unnamed = any(dim is None for port in model.inputs for dim in port.spec.dims or ())
    tried: list[tuple[dict[str, int], int]] = []
    for extent in _EXTENTS:
        for is_hinted in (True, False):
            found = dict(dims)
            for name in names:
                found.setdefault(name, _guess(name, names, found, extent) if is_hinted else extent)
            for name in found.keys() - dims.keys():
                low, high = _find_bound(model, name)
                found[name] = max(low, found[name] if high is None else min(found[name], high))
            proposal = (found, extent if has_unnamed else 1)
            if proposal not in tried:
                tried.append(proposal)
                yield proposal


def choose(
    model: Model, dims: Mapping[str, int], make: Callable[[Mapping[str, int], int], dict[str, Any]]
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the first candidate that the model's shapes fit, and the inputs made with it.

    Args:
        model: The model.
        dims: Extents given.
        make: Returns all inputs, by name, for extents by name and one for dimensions without.

    Raises:
        InputError: None fits; says what was assumed first, why it does not fit, and how to give extents.
    """
    first: tuple[dict[str, int], GpuexecError] | None = None
    for found, unnamed in propose(model, dims):
        feeds = make(found, unnamed)
        try:
            count_work(model, {port.name: array_of(port, feeds[port.name]) for port in model.inputs})
        except GpuexecError as error:
            first = first or (found, error)
        else:
            return found, feeds
    assert first is not None
    assumed = {name: extent for name, extent in first[0].items() if name not in dims}
    if not assumed:
        raise first[1]
    raise InputError(f"{first[1]} {explain_assumed(assumed)}") from first[1]


def array_of(port: ModelPort, given: Any) -> Any:
    """Convert an input as given to the array that represents it."""
    return pack(given, port.spec) if is_container(port.spec.dtype) and not isinstance(given, np.ndarray) else given


def explain_assumed(assumed: Mapping[str, int]) -> str:
    """Return lines about assumed extents, and the arguments that set them."""
    items = " ".join(f"{name}={extent}" for name, extent in assumed.items())
    return f"No extents were given for free dimensions, so these were assumed: {items}. Give others: --dims {items}"


def _guess(name: str, names: Sequence[str], found: Mapping[str, int], extent: int) -> int:
    parts = [part.strip() for part in name.split("+")]
    if len(parts) > 1:
        return sum(int(part) if part.isdigit() else _find(part, names, found, extent) for part in parts)
    if _TOTAL.search(name) and not _PAST.search(name):
        past = [other for other in names if _PAST.search(other) and "+" not in other]
        coming = [
            other for other in names if _LENGTH.search(other) and not _PAST.search(other) and not _TOTAL.search(other)
        ]
        return sum(_find(other, names, found, extent) for other in (*past[:1], *coming[:1])) or extent
    return 1 if _BATCH.search(name) else extent


def _find(name: str, names: Sequence[str], found: Mapping[str, int], extent: int) -> int:
    return found[name] if name in found else _guess(name, names, found, extent)


def _find_bound(model: Model, name: str) -> tuple[int, int | None]:
    bound = model.dims.get(name)
    if bound is None:
        return 0, None
    return bound if isinstance(bound, tuple) else (bound, bound)
