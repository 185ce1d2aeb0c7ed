"""NumPy's dispatch protocols on symbolic arrays, so that plain NumPy code traces."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.model.tracing import fn
from gpuexec.model.tracing.assigning import put_in_place
from gpuexec.model.tracing.elementwise import UFUNCS
from gpuexec.model.tracing.selecting import choose_first
from gpuexec.model.tracing.symbolic import SymbolicArray

# Functions that reduce, by the elementwise one they repeat.
_REDUCTIONS: Mapping[np.ufunc, Callable[..., Any]] = {
    np.add: fn.sum,
    np.multiply: fn.prod,
    np.maximum: fn.max,
    np.minimum: fn.min,
    np.logical_or: fn.any,
    np.logical_and: fn.all,
}
# NumPy's functions whose namesakes here behave differently.
_OTHERS: Mapping[Any, Callable[..., Any]] = {
    np.copy: fn.array,
    np.digitize: lambda x, bins, right=False: fn.searchsorted(bins, x, side="left" if right else "right"),
    np.put_along_axis: put_in_place,
    np.select: choose_first,
    np.linalg.diagonal: lambda x, offset=0: fn.diagonal(x, offset, -2, -1),
    np.linalg.trace: lambda x, offset=0, dtype=None: fn.sum(fn.diagonal(x, offset, -2, -1), -1, dtype),
}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Dispatch a ufunc of NumPy.

    Raises:
        InputError: There is none of that name here, or an option has no meaning for symbolic arrays.
    """
    left = {key: value for key, value in options.items() if value is not None}
    if method == "reduce" and ufunc in _REDUCTIONS:
        axis = left.pop("axis", 0)
        keepdims = bool(left.pop("keepdims", False))
        _refuse_options(ufunc.__name__ + ".reduce", left)
        return _REDUCTIONS[ufunc](*inputs, axis=axis, keepdims=keepdims)
    if method != "__call__":
        raise InputError(f"np.{ufunc.__name__}.{method} has no form for symbolic arrays.")
    dtype = left.pop("dtype", None)
    _refuse_options(ufunc.__name__, left)
    function = fn.matmul if ufunc is np.matmul else fn.divmod if ufunc is np.divmod else UFUNCS.get(ufunc)
    if function is None:
        raise InputError(f"np.{ufunc.__name__} has no form for symbolic arrays; compose it from others of gx.fn.")
    result = function(*inputs)
    return result if dtype is None else fn.astype(result, dtype)


def _refuse_options(name: str, options: Mapping[str, Any]) -> None:
    if options:
        listed = ", ".join(sorted(options))
        raise InputError(f"np.{name}: {listed} has no meaning for symbolic arrays; use what the function returns.")


def call_function(function: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Dispatch a function of NumPy that is not a ufunc.

    Raises:
        InputError: There is none of that name here, or it does not take the arguments.
    """
    name = function.__name__
    ours = _OTHERS.get(function) or (getattr(fn, name, None) if name in fn.__all__ else None)
    if ours is None:
        raise InputError(f"np.{name} has no form for symbolic arrays; compose it from others of gx.fn.")
    positional, given = _match_arguments(function, ours, arguments, options)
    try:
        return ours(*positional, **given)
    except TypeError as error:
        raise InputError(f"np.{name} on symbolic arrays: {error}.") from error


def _match_arguments(
    function: Any, ours: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a function of NumPy's as ours takes them.

    From the second on they go by NumPy's names, whose order is another here and there; what is as if it were not given
    (``out=None``) is left out.
    """
    theirs, known = _parameters(function), _parameters(ours)
    names = [each.name for each in theirs.values() if each.kind in _BY_POSITION]
    positional: list[Any] = []
    given = {key: value for key, value in options.items() if key in known or not _is_default(theirs, key, value)}
    for index, value in enumerate(arguments):
        name = names[index] if 0 < index < len(names) else None
        if name is not None and name in known and name not in given:
            given[name] = value
        elif name is None or not _is_default(theirs, name, value):
            positional.append(value)
    return positional, {key: value for key, value in given.items() if value is not np._NoValue}


_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@cache
def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}  # some of NumPy's written in C


def _is_default(parameters: Mapping[str, inspect.Parameter], name: str, value: Any) -> bool:
    default = parameters[name].default if name in parameters else inspect.Parameter.empty
    if isinstance(value, (SymbolicArray, np.ndarray)):
        return False
    return value is np._NoValue or value is default or (type(value) is type(default) and bool(value == default))
