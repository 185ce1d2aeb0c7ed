"""NumPy type promotion made explicit as Casts of the arguments.

NumPy itself is asked, by the loop it would choose. Python scalars are weak, and so are extents taken from shapes: they
take the other arguments' dtype where it can hold them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import BFLOAT16, dtype_row, is_host_object, name_dtype
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import Tracer, find_tracer

DType = np.dtype[Any]
BOOL, INT64, FLOAT32, FLOAT64 = (np.dtype(t) for t in (np.bool_, np.int64, np.float32, np.float64))
_WEAK: dict[str, type] = {"b": bool, "i": int}


def as_symbolic(value: Any, dtype: Any = None, tracer: Tracer | None = None) -> SymbolicArray:
    """Return a symbolic array of a value: itself, or a constant; converted if a dtype is given.

    Raises:
        InputError: It is no number, array or nest of them.
    """
    tracer = tracer or find_tracer(value)
    if isinstance(value, SymbolicArray):
        return value if dtype is None else cast(value, dtype)
    if isinstance(value, (list, tuple)) and _holds_symbolic(value):
        from gpuexec.model.tracing.joining import stack

        return as_symbolic(stack([as_symbolic(item, dtype, tracer) for item in value]), dtype, tracer)
    return tracer.add_constant(_as_array(value, dtype))


def _holds_symbolic(value: Any) -> bool:
    return isinstance(value, SymbolicArray) or (isinstance(value, (list, tuple)) and any(map(_holds_symbolic, value)))


def _as_array(value: Any, dtype: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(value)
        if dtype is None or array.dtype == dtype:
            return array
        if isinstance(value, (int, float)) and not isinstance(value, bool) and np.dtype(dtype).kind in "iu":
            return np.array(value, dtype)  # raises where it does not fit
        return array.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        wanted = "" if dtype is None else f" of {np.dtype(dtype).name}"
        raise InputError(f"{value!r} can't be an array{wanted}: {error}.") from error


def check_numbers(what: str, dtype: np.dtype[Any]) -> None:
    """Check that a dtype is one that programs compute with.

    Raises:
        InputError: It is that of strings or a container.
    """
    if is_host_object(dtype):
        raise InputError(f"array programs compute with numbers and bools; {what} is {name_dtype(dtype)}.")


def cast(array: SymbolicArray, dtype: Any) -> SymbolicArray:
    """Return the array converted, or itself where it is of the dtype already."""
    row = dtype_row(np.dtype(dtype))
    check_numbers("what an array is converted to", row.numpy)
    if array.dtype == row.numpy:
        return array if not array._is_weak else SymbolicArray(array._tracer, array._value, array.dtype, array.dims)
    otherwise = [(row.numpy, array.dims)]
    return array._tracer.apply("Cast", [array], attributes={"to": row.code}, otherwise=otherwise)[0]


def cast_in_place(array: SymbolicArray, target: SymbolicArray) -> SymbolicArray:
    """Return the result of an operator such as ``+=`` in the dtype of the array that is to hold it.

    Raises:
        InputError: It has another shape, or elements that the array can't hold.
    """
    if array.dims is not None and target.dims is not None:
        pairs = zip(array.dims, target.dims, strict=False)
        fixed = [(made, held) for made, held in pairs if isinstance(made, int) and isinstance(held, int)]
        if len(array.dims) != len(target.dims) or any(made != held for made, held in fixed):
            raise InputError(f"what is assigned in place must keep the shape of {target!r}, got {array!r}.")
    if not np.can_cast(array.dtype, target.dtype, "same_kind"):
        raise InputError(
            f"{array.dtype.name} can't be put in place into {target!r}; write x = x + y, or convert it by "
            f"astype({target.dtype.name!r})."
        )
    return cast(array, target.dtype)


def as_float(x: Any) -> SymbolicArray:
    """Return an array of floating-point numbers; integers become float64, as NumPy has it."""
    array = as_symbolic(x)
    return cast(array, FLOAT64) if array.dtype.kind in "iub" else array


def kind_of(value: Any) -> Any:
    """Return a value's kind for promotion: its dtype, or ``bool``, ``int`` or ``float`` where it is weak."""
    if isinstance(value, SymbolicArray):
        return _WEAK.get(value.dtype.kind, float) if value._is_weak else value.dtype
    if isinstance(value, (bool, int, float)) and not isinstance(value, np.generic):
        return type(value)
    if isinstance(value, (list, tuple)) and _holds_symbolic(value):
        return promote(*(kind_of(item) for item in value))
    found = np.asarray(value).dtype
    if found.kind in "OUSMmc":
        raise InputError(f"expected numbers or bools, got {value!r}.")
    return found


def promote(*kinds: Any) -> DType:
    """Return the dtype that arguments of these kinds (see `kind_of`) have in common.

    Raises:
        InputError: They have none.
    """
    strong = [kind for kind in kinds if isinstance(kind, np.dtype)]
    try:
        if BFLOAT16 in strong:
            return _promote_bfloat16(strong)
        samples = [np.empty(0, kind) if isinstance(kind, np.dtype) else kind(1) for kind in kinds]
        return np.result_type(*samples)
    except (TypeError, ValueError) as error:
        raise InputError(f"{', '.join(map(str, kinds))} have no common element type: {error}.") from error


def _promote_bfloat16(strong: Sequence[DType]) -> DType:
    """Keep bfloat16 with weak scalars of any kind, which NumPy itself, not knowing the type, would not."""
    found = strong[0]
    for dtype in strong[1:]:
        found = np.promote_types(found, dtype)
    return found


def resolve(ufunc: np.ufunc, values: Sequence[Any]) -> tuple[DType, ...]:
    """Return the dtypes of the loop that NumPy would choose: of the arguments, and of the result.

    Raises:
        InputError: NumPy has no such loop.
    """
    kinds = [kind_of(value) for value in values]
    if not any(isinstance(kind, np.dtype) for kind in kinds):
        # For weak arguments alone NumPy would choose its loop of Python objects.
        kinds = [np.dtype(kind) for kind in kinds]
    if BFLOAT16 in kinds:
        kinds = [BFLOAT16 if isinstance(kind, type) and kind is not bool else kind for kind in kinds]
    wanted = tuple(BOOL if kind is bool else kind for kind in kinds) + (None,) * ufunc.nout
    try:
        return ufunc.resolve_dtypes(wanted)
    except TypeError as error:
        names = ", ".join(kind.__name__ if isinstance(kind, type) else kind.name for kind in kinds)
        raise InputError(f"{ufunc.__name__}({names}) is not defined: {error}.") from error


def unify(*values: Any) -> tuple[SymbolicArray, ...]:
    """Return values as symbolic arrays of one dtype."""
    tracer = find_tracer(*values)
    dtype = promote(*(kind_of(value) for value in values))
    return tuple(as_symbolic(value, dtype, tracer) for value in values)
