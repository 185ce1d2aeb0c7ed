"""Exclusive access for one caller at a time: a second one is refused, not kept waiting.

An exception that comes from outside (KeyboardInterrupt, SystemExit) may end a caller at any instruction. Whatever was
being changed then is not used any more: the owner of the ExclusiveCaller is broken, and every later call raises.
Where nothing is half done, callers say so by `at_rest`, and an interrupt there harms nothing.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType

from gpuexec.devices.backend import Backend
from gpuexec.errors import ClosedError, StateError
from gpuexec.system.threads import end_computing


class ExclusiveCaller:
    """Admits one caller at a time, as a context.

    Args:
        backend: Whose process the caller must be in.
        busy: Error message for a second caller.
        closed: Error message once `is_closed` is set.
        owner: The class of the object that it protects, for messages.
        on_break: Called once an interrupt has broken the owner: ends what others may wait for. It may be called again.
    """

    __slots__ = (
        "_backend",
        "_broken",
        "_busy",
        "_closed",
        "_holder",
        "_is_midway",
        "_midway",
        "_on_break",
        "_owner",
        "_recovering",
        "_rest",
        "is_closed",
    )

    def __init__(
        self,
        backend: Backend,
        busy: str,
        closed: str,
        owner: str = "object",
        on_break: Callable[[], None] = lambda: None,
    ) -> None:
        self._backend, self._owner, self._busy, self._closed = backend, owner, busy, closed
        self._on_break = on_break
        # The caller inside, under one key. Entering is one call of `setdefault`, which no interrupt can cut in two.
        self._holder: dict[str, _Caller] = {}
        self._recovering = threading.Lock()
        self._is_midway = False
        self._rest, self._midway = _Stage(self, is_midway=False), _Stage(self, is_midway=True)
        self._broken: str | None = None
        self.is_closed = False

    @property
    def is_broken(self) -> bool:
        """True once an interrupt ended a caller in the middle of a change."""
        return self._broken is not None

    def check_open(self) -> None:
        """Check that callers may come.

        Raises:
            StateError: The process was forked.
            ClosedError: It is closed, or was broken by an interrupt.
        """
        if os.getpid() != self._backend.process:
            self._backend.check_process()
        if self._broken is not None:
            raise ClosedError(self._broken)
        if self.is_closed:
            raise ClosedError(self._closed)

    def try_enter(self) -> bool:
        """Enter unless somebody is inside; who did must `leave`, in the same function."""
        return self._take(sys._getframe(1))

    def leave(self) -> None:
        """Admit the next caller."""
        self._is_midway = False
        self._holder.pop("", None)

    def at_rest(self) -> _Stage:
        """Return a context, within its own, in which nothing is half done: an interrupt breaks nothing."""
        return self._rest

    def midway(self) -> _Stage:
        """Return a context, within `at_rest`, in which an interrupt breaks the owner all the same."""
        return self._midway

    def recover(self) -> bool:
        """Admit the next caller after an interrupt on the way in or out; False if the caller is still inside."""
        with self._recovering:
            found = self._holder.get("")
            if found is None:
                return True
            if found.is_there():
                return False
            if self._is_midway:
                self.break_off("an interrupt")
            self.leave()
            return True

    def break_off(self, why: str) -> None:
        """Refuse every later caller. Twice is harmless."""
        if self._broken is None:
            self._broken = f"The {self._owner} is closed: {why} came in the middle of a call. Make a new one."
        self._on_break()

    def __enter__(self) -> None:
        """Enter.

        Raises:
            StateError: Another caller is inside, or the process was forked.
            ClosedError: It is closed, or was broken by an interrupt.
        """
        self.check_open()
        if not self._take(sys._getframe(1)):
            self.check_open()
            raise StateError(self._busy)
        self._is_midway = True
        if self.is_closed or self._broken is not None:  # meanwhile, by whoever was inside
            self.leave()
            self.check_open()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and is_interrupt(kind):
            end_computing()
            if self._is_midway:
                self.break_off(f"a {kind.__name__}")
        self.leave()

    def _take(self, frame: FrameType) -> bool:
        caller = _Caller(frame)
        found = self._holder.setdefault("", caller)
        if found is not caller and self.recover():
            found = self._holder.setdefault("", caller)
        return found is caller


class _Caller:
    """The function that entered: a frame on the stack of its thread."""

    __slots__ = ("_frame", "_thread")

    def __init__(self, frame: FrameType) -> None:
        # Held until it leaves: another frame would get its place, and be taken for it.
        self._thread, self._frame = threading.get_ident(), frame

    def is_there(self) -> bool:
        """Return whether the function still runs."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if frame is self._frame:
                return True
            frame = frame.f_back
        return False


class _Stage:
    """Context that sets whether an interrupt breaks the owner; within itself, it may be entered again."""

    __slots__ = ("_before", "_exclusive", "_is_midway")

    def __init__(self, exclusive: ExclusiveCaller, *, is_midway: bool) -> None:
        self._exclusive, self._is_midway = exclusive, is_midway
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before.append(self._exclusive._is_midway)
        self._exclusive._is_midway = self._is_midway

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        before = self._before.pop()
        if kind is None or not is_interrupt(kind):
            self._exclusive._is_midway = before


def is_interrupt(kind: type[BaseException]) -> bool:
    """Return whether an exception comes from outside: KeyboardInterrupt, SystemExit, a task that was cancelled."""
    return not issubclass(kind, Exception)
