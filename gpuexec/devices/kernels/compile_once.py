"""Things that are made once among all threads: who asks for one that another thread is making waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class OnceEach(Generic[_Key, _Made]):
    """Values by key, each made by one of the threads that ask for it. Thread-safe."""

    def __init__(self) -> None:
        self._made: dict[_Key, _Made] = {}
        self._making: set[_Key] = set()
        self._changed = threading.Condition()

    def __contains__(self, key: _Key) -> bool:
        return key in self._made

    def get(
        self, keys: Iterable[_Key], make: Callable[[Sequence[_Key]], Iterable[tuple[_Key, _Made]]]
    ) -> dict[_Key, _Made]:
        """Return the value of each key; those that nobody made or is making are made together.

        Where another thread fails to make what this one waits for, this one tries.

        Args:
            keys: Which.
            make: Yields a value for each of the keys it is given; others get it as soon as it is there. Called without
                a lock.
        """
        wanted = list(dict.fromkeys(keys))
        while True:
            own: list[_Key] = []
            try:
                with self._changed:
                    missing = [key for key in wanted if key not in self._made]
                    if not missing:
                        return {key: self._made[key] for key in wanted}
                    own = [key for key in missing if key not in self._making]
                    if not own:
                        self._changed.wait()
                        continue
                    self._making.update(own)
                for key, value in make(own):
                    with self._changed:
                        self._made[key] = value
                        self._making.discard(key)
                        self._changed.notify_all()
            finally:
                if own:
                    with self._changed:
                        self._making.difference_update(own)
                        self._changed.notify_all()

    def clear(self) -> None:
        """Forget all values."""
        with self._changed:
            self._made.clear()
