"""KeyboardInterrupt at a chosen point of a call: each place where the interpreter checks for signals.

Python raises what a signal handler raises as a function begins and as a call of a built-in function returns; a profile
function is called at those very points. So a call has as many points as it makes calls, the same each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType


class Interrupter:
    """Counts the points that a call comes by, and raises KeyboardInterrupt at one of them.

    Args:
        point: Which, from 0; None: none, it only counts.
    """

    def __init__(self, point: int | None = None) -> None:
        self._point = point
        self.count = 0
        # Where it was interrupted, for messages.
        self.place = ""
        # Held as long as this: an event that allocates may collect garbage, and a finalizer that is interrupted then
        # takes the profile function out; CPython 3.11 goes on to call what it had read before, without a reference.
        self._hook = self._pass

    def call(self, function: Callable[[], object]) -> bool:
        """Call a function; return whether it was interrupted, in which case its exception is done with."""
        sys.setprofile(self._hook)
        try:
            function()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    def _pass(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or frame.f_code is Interrupter.call.__code__:
            return
        self.count += 1
        if self.count - 1 == self._point:
            sys.setprofile(None)
            self.place = describe(frame, event)
            raise KeyboardInterrupt


def describe(frame: FrameType | None, event: str) -> str:
    """Return the innermost lines of a stack."""
    rows = []
    while frame is not None and len(rows) < 6:
        rows.append(f"{frame.f_code.co_filename.rpartition('gpuexec/')[2]}:{frame.f_lineno} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return f"{event} at " + " < ".join(rows)
