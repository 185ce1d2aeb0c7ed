"""Instrumentation events: phases with a duration, and single moments, reported to a profiler in the context.

    with phase("lower"):            # as a decorator too
        ...
    note("host read", "x for Expand_3 (shape)", nbytes=16, took_ms=0.2)

The receiver is a context variable, so nothing has to be passed down. Without a receiver, a phase costs one look-up of
that variable; code on the path of every run calls `find_receiver` once instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class EventReceiver(Protocol):
    """Receiver of instrumentation events.

    It is called from any thread, even during garbage collection.
    """

    def begin_phase(self, name: str, about: str) -> object:
        """Record that a phase begins; return the token for `end_phase`."""

    def end_phase(self, begun: object) -> None:
        """Record that a phase is over, however it ended."""

    def note_moment(self, name: str, about: str, nbytes: int, took_ms: float) -> None:
        """Record an event that is over, with its duration."""


_RECEIVER: ContextVar[EventReceiver | None] = ContextVar("gpuexec_event_receiver", default=None)
# The receivers replaced by each `enter` that this context has not left.
_BEFORE: ContextVar[tuple[EventReceiver | None, ...]] = ContextVar("gpuexec_event_receivers_before", default=())


# Returns the receiver of events in this context, or None.
find_receiver = _RECEIVER.get


@contextlib.contextmanager
def send_events_to(receiver: EventReceiver | None) -> Iterator[None]:
    """Send the events of this context to a receiver, instead of the one before."""
    token = _RECEIVER.set(receiver)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def enter(receiver: EventReceiver) -> None:
    """Send the events of this context to a receiver until `leave`; each context leaves its own."""
    _BEFORE.set((*_BEFORE.get(), _RECEIVER.get()))
    _RECEIVER.set(receiver)


def leave() -> None:
    """Restore the receiver that the last `enter` of this context replaced."""
    *rest, before = _BEFORE.get()
    _BEFORE.set(tuple(rest))
    _RECEIVER.set(before)


@contextlib.contextmanager
def phase(name: str, about: str = "") -> Iterator[None]:
    """Report the begin and end of a phase to the context's receiver, if there is one."""
    receiver = _RECEIVER.get()
    if receiver is None:
        yield
        return
    begun = receiver.begin_phase(name, about)
    try:
        yield
    finally:
        receiver.end_phase(begun)


def note(name: str, about: str, nbytes: int = 0, took_ms: float = 0.0) -> None:
    """Report a finished event to the context's receiver, if there is one."""
    receiver = _RECEIVER.get()
    if receiver is not None:
        receiver.note_moment(name, about, nbytes, took_ms)
