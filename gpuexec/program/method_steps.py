"""Steps of a Method's run: by one caller, and by one Method of those that share memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuexec.errors import StateError
from gpuexec.execution.runs.run import Step
from gpuexec.program.memory_manager import Sharing


class Steps:
    """Steps of a Method's run, if it is in the middle of them.

    Args:
        sharing: What is shared with Methods over the same memory.
    """

    def __init__(self, sharing: Sharing | None) -> None:
        self._sharing = sharing
        self._steps: Iterator[tuple[Step, int]] | None = None
        self._lock = threading.Lock()
        # Whether the last run was taken to its end so.
        self.is_over = False

    @property
    def is_open(self) -> bool:
        """True while a run is in the middle of its steps."""
        return self._steps is not None

    def begin(self, user: object, steps: Iterator[tuple[Step, int]]) -> None:
        """Begin a run's steps; ``user`` is the Method, as others are told of it."""
        self._steps = steps
        if self._sharing is not None:
            self._sharing.stepping = user

    def advance(self, user: object) -> Step | None:
        """Take one step; None after the last.

        Raises:
            StateError: Another caller takes one, or has given them up.
            GpuexecError: What the step raised; they are over.
        """
        held: list[bool] = []
        try:
            held.extend(map(self._lock.acquire, (False,)))  # see `gpuexec.devices.latch`
            if not held[0]:
                raise StateError("Another caller is inside this Method, in step().")
            if self._steps is None:
                raise StateError("Another caller has given up the steps of this Method; call step() to begin anew.")
            found = next(self._steps, None)
        except BaseException:
            if held and held[0]:
                self.end(user)
            raise
        finally:
            if held and held[0]:
                self._lock.release()
        if found is None:
            self.end(user)
            self.is_over = True
            return None
        return found[0]

    def end(self, user: object) -> None:
        """End the steps of the present run."""
        self._steps = None
        if self._sharing is not None and self._sharing.stepping is user:
            self._sharing.stepping = None

    def check_none(self, what: str) -> None:
        """Check that no run is in the middle of its steps, here or over the same memory.

        Raises:
            StateError: One is.
        """
        if self._steps is not None:
            raise StateError(f"{what}() can't be called in the middle of steps; finish them, or call reset().")
        other = None if self._sharing is None else self._sharing.stepping
        if other is not None:
            raise StateError(f"{other!r} shares this Method's memory and is in the middle of steps.")
