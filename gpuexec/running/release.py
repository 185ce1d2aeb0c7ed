"""Giving back what an engine holds: what no plan needs now, or all of it."""

from __future__ import annotations

import contextlib

from gpuexec.errors import GpuexecError
from gpuexec.running.site import Site
from gpuexec.running.storage import Storage
from gpuexec.runtime.backend import Backend
from gpuexec.runtime.device import Stream


def settle_stream(backend: Backend, stream: Stream) -> None:
    """Wait for a stream, however its work ends: who asked for a run that failed has been told."""
    with contextlib.suppress(GpuexecError):
        event = backend.device.create_event()
        stream.record(event)
        event.synchronize()


def trim_storage(storage: Storage, site: Site, stream: Stream) -> None:
    """Wait for a stream and all readers, and give back what no plan needs now; nobody issues meanwhile."""
    settle_storage(storage, site.backend, stream)
    site.graphs.clear()
    storage.arena.release_retired()
    storage.pool.trim()
    for frame in storage.frames:
        frame.release_dropped()


def close_storage(storage: Storage, site: Site, stream: Stream) -> None:
    """Wait for a stream and all readers, and give everything back; nothing is issued any more."""
    settle_storage(storage, site.backend, stream)
    site.graphs.clear()
    storage.turns.close()
    for frame in storage.frames:
        frame.free()
    storage.arena.free()
    storage.pool.close()
    storage.binder.release()
    site.backend.keeper.prune()
    site.weights.leave()
    site.backend.staging.trim()


def settle_storage(storage: Storage, backend: Backend, stream: Stream) -> None:
    """Wait for the stream and all readers, however they end."""
    settle_stream(backend, stream)
    for frame in storage.frames:
        frame.settle()
