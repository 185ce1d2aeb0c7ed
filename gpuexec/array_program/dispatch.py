"""NumPy's own functions on symbolic arrays: plain NumPy code traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.array_program import fn
from gpuexec.array_program.elementwise import UFUNCS
from gpuexec.errors import InputError

# Functions that reduce, by the elementwise one they repeat.
_REDUCTIONS: Mapping[np.ufunc, Callable[..., Any]] = {
    np.add: fn.sum,
    np.multiply: fn.prod,
    np.maximum: fn.max,
    np.minimum: fn.min,
    np.logical_or: fn.any,
    np.logical_and: fn.all,
}
# NumPy's functions that ours go by another name, or that only look like ones.
_OTHER_NAMES = {"amax": "max", "amin": "min", "concat": "concatenate"}


def call_ufunc(ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Answer an elementwise function of NumPy's.

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
    """Answer a function of NumPy's that is not elementwise.

    Raises:
        InputError: There is none of that name here, or it does not take the arguments.
    """
    name = _OTHER_NAMES.get(function.__name__, function.__name__)
    ours = getattr(fn, name, None) if name in fn.__all__ else None
    if ours is None:
        raise InputError(f"np.{function.__name__} has no form for symbolic arrays; compose it from others of gx.fn.")
    given = {key: value for key, value in options.items() if value is not np._NoValue}
    try:
        return ours(*arguments, **given)
    except TypeError as error:
        raise InputError(f"np.{function.__name__} on symbolic arrays: {error}.") from error
