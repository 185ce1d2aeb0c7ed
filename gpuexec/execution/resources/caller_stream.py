"""Streams of the caller: recognised by type, and ordered with our streams by events.

A call that is given a stream stays on streams of its own. What the caller's stream holds at the call is waited for
there, and what is put on it afterwards waits for the work: an event each way, and no wait of the host.
"""

from __future__ import annotations

from typing import Any

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Event, Stream
from gpuexec.errors import InputError, StateError

_LEGACY_STREAM = 1


def open_stream(backend: Backend, given: object) -> Stream:
    """Return a caller's stream: one of the device's, an object with ``__cuda_stream__``, a torch stream, or a handle.

    Raises:
        InputError: It is none of these, or the device knows no such stream.
    """
    if backend.device.owns(given):
        stream: Any = given
        return stream  # type: ignore[no-any-return]
    if isinstance(given, int) and not isinstance(given, bool):
        return backend.device.external_stream(given or _LEGACY_STREAM)
    handle = find_stream(given)
    if handle is None:
        raise InputError(
            f"stream= is a {type(given).__name__}; expected an object with __cuda_stream__, a handle (int),"
            f" or a stream of the device ({backend.device.name})."
        )
    return backend.device.external_stream(handle)


def find_stream(item: Any) -> int | None:
    """Return the handle of the stream an object names by ``__cuda_stream__``, or as torch's streams do, if it does."""
    found = getattr(item, "__cuda_stream__", None)
    if found is None:
        handle = getattr(item, "cuda_stream", None)
        return (handle or _LEGACY_STREAM) if isinstance(handle, int) else None
    given = found() if callable(found) else found
    if not (isinstance(given, (tuple, list)) and len(given) == 2 and all(isinstance(each, int) for each in given)):
        raise InputError(f"{type(item).__name__}.__cuda_stream__ gives {given!r}; expected (0, handle).")
    version, handle = given
    if version != 0:
        raise InputError(f"{type(item).__name__}.__cuda_stream__ is of version {version}; version 0 is supported.")
    # Packages call the default stream 0; the interfaces of arrays call it 1.
    return int(handle) or _LEGACY_STREAM


def mark_stream(backend: Backend, handle: int) -> Event:
    """Return an event for all work that a foreign stream has so far."""
    event = backend.device.create_event()
    backend.device.external_stream(handle).record(event)
    return event


def check_not_capturing(stream: Stream) -> None:
    """Check that a stream is not capturing a graph.

    Raises:
        StateError: It is: nothing of ours would run now, events could not be asked, and a replay would read staging
            that other inputs lie in by then.
    """
    if stream.is_capturing():
        raise StateError(
            "The stream is capturing a graph: a run stages inputs and asks events whether it is done, which a graph"
            " can't replay. End the capture first; `worker.record()` gives a run that can be replayed."
        )


class CallerStream:
    """The caller's stream that the work of one call is ordered with.

    Only order passes over: work that failed on one side is no failure of the other's.
    """

    __slots__ = ("_backend", "_reached", "_stream")

    def __init__(self, backend: Backend, stream: Stream) -> None:
        self._backend, self._stream = backend, stream
        self._reached = backend.device.create_event()
        stream.record(self._reached)

    @staticmethod
    def of(backend: Backend, given: object) -> CallerStream:
        """Return the stream that an argument names, marked at its present end.

        Raises:
            InputError: It is no stream of the device.
            StateError: It is capturing.
        """
        stream = open_stream(backend, given)
        check_not_capturing(stream)
        return CallerStream(backend, stream)

    @property
    def reached(self) -> Event:
        """Done when what was on the stream at the call is."""
        return self._reached

    def order_before(self, stream: Stream) -> None:
        """Order a stream's later work after what was on this one at the call."""
        self._order(stream, self._reached)

    def order_after(self, event: Event) -> None:
        """Order the later work of this stream after an event."""
        self._order(self._stream, event)

    def _order(self, stream: Stream, event: Event) -> None:
        stream.wait(event)
        # NOTE: a record ends what the wait was for: an error of that work is none of the work that comes.
        stream.record(self._backend.device.create_event())
