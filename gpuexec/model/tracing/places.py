"""Indexed updates of symbolic arrays: ``x.at[1:3].set(y)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpuexec.model.tracing.members import functions

if TYPE_CHECKING:
    from gpuexec.model.tracing.symbolic import SymbolicArray


class Places:
    """Places of an array, to be followed by an index."""

    __slots__ = ("_array",)

    def __init__(self, array: SymbolicArray) -> None:
        self._array = array

    def __getitem__(self, key: Any) -> Update:
        return Update(self._array, key)


class Update:
    """Places chosen by an index; each method returns the array with them changed."""

    __slots__ = ("_array", "_key")

    def __init__(self, array: SymbolicArray, key: Any) -> None:
        self._array, self._key = array, key

    def get(self) -> SymbolicArray:
        """Return the indexed elements."""
        return self._array[self._key]

    def set(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by values. Of positions named twice, the last counts."""
        return functions().setitem(self._array, self._key, values)  # type: ignore[no-any-return]

    def add(self, values: Any) -> SymbolicArray:
        """Add values, each as often as its place is named."""
        return functions().setitem(self._array, self._key, values, "add")  # type: ignore[no-any-return]

    def multiply(self, values: Any) -> SymbolicArray:
        """Multiply by values, each as often as its place is named."""
        return functions().setitem(self._array, self._key, values, "mul")  # type: ignore[no-any-return]

    def min(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by the minimum of them and the values."""
        return functions().setitem(self._array, self._key, values, "min")  # type: ignore[no-any-return]

    def max(self, values: Any) -> SymbolicArray:
        """Replace the indexed elements by the maximum of them and the values."""
        return functions().setitem(self._array, self._key, values, "max")  # type: ignore[no-any-return]
