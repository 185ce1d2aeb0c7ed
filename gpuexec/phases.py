"""Instrumentation events: phases with a duration, and single moments, reported to a profiler in the context.

    with phase("lower"):            # as a decorator too
        ...
    note("host read", "x for Expand_3 (shape)", nbytes=16, took_ms=0.2)

Who looks on is found by the context, so nothing has to be passed down. Where nobody does, a phase costs a look at a
context variable; what is on the way of every run asks `find_witness` once instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Witness(Protocol):
    """Who is told. Called from any thread, and in the middle of a collection of garbage: it must take both."""

    def begin_phase(self, name: str, about: str) -> object:
        """Hear that a phase begins; return what `end_phase` takes."""

    def end_phase(self, begun: object) -> None:
        """Hear that it is over, however it ended."""

    def hear(self, name: str, about: str, nbytes: int, took_ms: float) -> None:
        """Hear of something that is over now, and took so long."""


_WITNESS: ContextVar[Witness | None] = ContextVar("gpuexec_witness", default=None)
# Who heard before each `enter` that this context has not left.
_BEFORE: ContextVar[tuple[Witness | None, ...]] = ContextVar("gpuexec_witnesses_before", default=())


def find_witness() -> Witness | None:
    """Return who looks on in this context, if anybody does."""
    return _WITNESS.get()


@contextlib.contextmanager
def witnessed_by(witness: Witness | None) -> Iterator[None]:
    """Have a witness hear of what is done in this context, instead of who did before."""
    token = _WITNESS.set(witness)
    try:
        yield
    finally:
        _WITNESS.reset(token)


def enter(witness: Witness) -> None:
    """Have a witness hear of what is done in this context until `leave`; each context has its own to leave."""
    _BEFORE.set((*_BEFORE.get(), _WITNESS.get()))
    _WITNESS.set(witness)


def leave() -> None:
    """Have whoever did before the last `enter` of this context hear again."""
    *rest, before = _BEFORE.get()
    _BEFORE.set(tuple(rest))
    _WITNESS.set(before)


@contextlib.contextmanager
def phase(name: str, about: str = "") -> Iterator[None]:
    """Tell the witness, if there is one, when the context begins and when it ends."""
    witness = _WITNESS.get()
    if witness is None:
        yield
        return
    begun = witness.begin_phase(name, about)
    try:
        yield
    finally:
        witness.end_phase(begun)


def note(name: str, about: str, nbytes: int = 0, took_ms: float = 0.0) -> None:
    """Tell the witness, if there is one, of something that is over now."""
    witness = _WITNESS.get()
    if witness is not None:
        witness.hear(name, about, nbytes, took_ms)
