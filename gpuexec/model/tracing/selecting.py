"""Slicing and slice updates along one axis, under the names of torch and Sentis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuexec.errors import InputError
from gpuexec.model.tracing.assigning import put_along_axis, setitem
from gpuexec.model.tracing.elementwise import choose
from gpuexec.model.tracing.indexing import getitem, take
from gpuexec.model.tracing.promotion import INT64, as_symbolic, cast, kind_of, promote
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = ["gather", "index_select", "scatter", "scatter_add", "select", "select_scatter", "slice_scatter"]


def _key(array: SymbolicArray, axis: int, part: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * (axis % array.ndim), part)


def gather(a: Any, axis: int, indices: Any) -> SymbolicArray:
    """Gather the elements at index [i, j] along the axis; the other coordinates stay.

    The indices may be shorter than the array along other axes.
    """
    array = as_symbolic(a)
    given = cast(as_symbolic(indices, None, array._tracer), INT64)
    axis %= array.ndim
    dims, wanted = array._known_dims(), given._known_dims()
    short = [i for i in range(array.ndim) if i != axis and dims[i] != wanted[i]]
    if short:
        key = tuple(slice(0, given.shape[i]) if i in short else slice(None) for i in range(array.ndim))
        array = getitem(array, key)
    return array._tracer.apply("GatherElements", [array, given], attributes={"axis": axis})[0]


def index_select(a: Any, axis: int, indices: Any) -> SymbolicArray:
    """Take slices along an axis by a row of positions."""
    return take(a, indices, axis)


def select(a: Any, axis: int, index: Any) -> SymbolicArray:
    """Take one slice along an axis, which is dropped."""
    array = as_symbolic(a)
    return getitem(array, _key(array, axis, index))


def choose_first(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> SymbolicArray:
    """Choose elements of the first choice whose condition holds, as numpy.select does."""
    if not condlist or len(condlist) != len(choicelist):
        raise InputError(f"select expects a choice for each condition, got {len(choicelist)} for {len(condlist)}.")
    dtype = promote(*(kind_of(each) for each in (*choicelist, default)))
    result = as_symbolic(default, dtype, find_tracer(condlist, choicelist, default))
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        result = choose(condition, as_symbolic(choice, dtype, result._tracer), result)
    return result


def select_scatter(a: Any, values: Any, axis: int, index: Any) -> SymbolicArray:
    """Return the array with one slice along an axis replaced."""
    array = as_symbolic(a)
    return setitem(array, _key(array, axis, index), values)


def slice_scatter(
    a: Any, values: Any, axis: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> SymbolicArray:
    """Return the array with a stretch of an axis replaced."""
    array = as_symbolic(a)
    return setitem(array, _key(array, axis, slice(start, end, step)), values)


def scatter(a: Any, axis: int, indices: Any, values: Any) -> SymbolicArray:
    """Return the array with one element for each position listed replaced. Of equal positions the last counts."""
    return put_along_axis(a, indices, values, axis)


def scatter_add(a: Any, axis: int, indices: Any, values: Any) -> SymbolicArray:
    """Return the array with one element for each position listed increased, as often as it is listed."""
    return put_along_axis(a, indices, values, axis, "add")
