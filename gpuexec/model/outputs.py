"""Outputs of a run: a tuple in the model's order, with access by name."""

from __future__ import annotations

from collections.abc import ItemsView, KeysView, Mapping
from typing import Any, Generic, SupportsIndex, TypeVar, overload

T = TypeVar("T")


class Outputs(tuple[T, ...], Generic[T]):
    """All outputs of a run, one or several, by position and by name.

    It unpacks, slices and compares as a tuple. A name in brackets gives the output of that name, and ``dict(outputs)``
    all of them by name. A slice is a plain tuple.

    Args:
        outputs: What came out, by name, in the model's order.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker:
        ...     outputs = worker.run(x)
        >>> logits, probabilities = outputs
        >>> outputs["logits"] is logits is outputs[0], outputs.names
        (True, ('logits', 'probabilities'))
    """

    _by_name: dict[str, T]

    def __new__(cls, outputs: Mapping[str, T]) -> Outputs[T]:
        """Make the tuple of what a mapping holds."""
        made = super().__new__(cls, outputs.values())
        made._by_name = dict(outputs)
        return made

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the model's order."""
        return tuple(self._by_name)

    def keys(self) -> KeysView[str]:
        """Return the names, as a dict does."""
        return self._by_name.keys()

    def items(self) -> ItemsView[str, T]:
        """Return pairs of name and output, as a dict does."""
        return self._by_name.items()

    @overload
    def __getitem__(self, key: SupportsIndex | str, /) -> T: ...

    @overload
    def __getitem__(self, key: slice, /) -> tuple[T, ...]: ...

    def __getitem__(self, key: SupportsIndex | slice | str, /) -> Any:
        """Return an output by position or name, or a tuple of them by a slice.

        Raises:
            KeyError: There is no output of that name.
            IndexError: There are not that many outputs.
        """
        if isinstance(key, str):
            if key not in self._by_name:
                raise KeyError(f"There is no output {key!r}; there are {', '.join(self._by_name)}.")
            return self._by_name[key]
        try:
            return super().__getitem__(key)
        except IndexError:
            said = f"There is no output {key}; there are {len(self)}: {', '.join(self._by_name)}."
            raise IndexError(said) from None

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._by_name,)

    def __repr__(self) -> str:
        return f"Outputs({self._by_name!r})"
