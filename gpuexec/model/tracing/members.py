"""Methods and operators of symbolic arrays, taken from the functions of `fn` by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gpuexec.model.tracing.symbolic import SymbolicArray


def functions() -> Any:
    """Return the module of functions, which needs the class that is made of these."""
    from gpuexec.model.tracing import fn

    return fn


def make_method(name: str) -> Callable[..., SymbolicArray]:
    """Return a method that is the function of this name, the array its first argument."""

    def method(self: SymbolicArray, *arguments: Any, **options: Any) -> SymbolicArray:
        return getattr(functions(), name)(self, *arguments, **options)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = name, f"Do as gx.fn.{name}."
    return method


def make_array_method(name: str) -> Callable[..., SymbolicArray]:
    """Return a method that calls NumPy's function of this name, with arguments in the method's order."""

    def method(self: SymbolicArray, *arguments: Any, **options: Any) -> SymbolicArray:
        return self.__array_function__(getattr(np, name), (), (self, *arguments), options)  # type: ignore[no-any-return]

    method.__name__, method.__doc__ = name, f"Do as gx.fn.{name}."
    return method


def make_operator(name: str) -> tuple[Callable[..., SymbolicArray], Callable[..., SymbolicArray]]:
    """Return the methods of an operator between two arrays: the array on its left, and on its right."""

    def plain(self: SymbolicArray, other: Any) -> SymbolicArray:
        return _operate(name, self, other)  # type: ignore[no-any-return]

    def reflected(self: SymbolicArray, other: Any) -> SymbolicArray:
        return _operate(name, other, self)  # type: ignore[no-any-return]

    return plain, reflected


def make_in_place(name: str) -> Callable[..., SymbolicArray]:
    """Return the method of an operator such as ``+=``."""

    def method(self: SymbolicArray, other: Any) -> SymbolicArray:
        if self._is_weak or self.dims == ():
            # Scalars of Python and NumPy are immutable: the name is bound to another one.
            return NotImplemented  # type: ignore[no-any-return]
        from gpuexec.model.tracing.promotion import cast_in_place

        self._value = cast_in_place(_operate(name, self, other), self)._value
        return self

    return method


def make_unary(name: str) -> Callable[..., SymbolicArray]:
    """Return the method of an operator of one array."""

    def method(self: SymbolicArray) -> SymbolicArray:
        return _operate(name, self)  # type: ignore[no-any-return]

    return method


def _operate(name: str, *operands: Any) -> Any:
    """Return an operator's result, which is weak where all operands are extents and Python numbers."""
    from gpuexec.model.tracing.promotion import kind_of

    kinds = [kind_of(each) for each in operands]
    is_weak = all(isinstance(kind, type) for kind in kinds)
    if name == "power" and is_weak and isinstance(operands[1], int) and operands[1] < 0:
        # Python's integers give a float here.
        operands = operands[0], float(operands[1])
    result = getattr(functions(), name)(*operands)
    if not is_weak:
        return result
    listed = [_weaken(each) for each in (result if isinstance(result, tuple) else (result,))]
    return tuple(listed) if isinstance(result, tuple) else listed[0]


def _weaken(array: SymbolicArray) -> SymbolicArray:
    """Return an array of one number as one of Python's, as far as promotion goes."""
    weak = array.copy()
    weak._is_weak = True
    return weak
