"""Streams held back while a test inspects pending work, and released however the test ends.

A call that waits where it should not would wait for ever; so the stream is let go after `PATIENCE_S` all the same, and
the test sees work that is done and should not be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import hold, hold_worker

PATIENCE_S = 30.0


@contextmanager
def held_worker(model: gx.Model, backend: Backend, **options: object) -> Iterator[tuple[gx.Worker, threading.Event]]:
    """Yield a Worker whose stream is held until the event is set, or the block is left."""
    worker, gate = hold_worker(model, backend, **options)
    with worker, opening(gate):
        yield worker, gate


@contextmanager
def holding(stream: Any) -> Iterator[threading.Event]:
    """Hold what is put on a stream from now on until the event is set, or the block is left."""
    with opening(hold(stream)) as gate:
        yield gate


@contextmanager
def opening(gate: threading.Event) -> Iterator[threading.Event]:
    """Set an event when the block is left, or when it takes too long."""
    watchdog = threading.Timer(PATIENCE_S, gate.set)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield gate
    finally:
        watchdog.cancel()
        gate.set()
