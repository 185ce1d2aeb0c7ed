"""Release of an engine's memory: what no plan needs now, or all of it."""

from __future__ import annotations

import contextlib

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.errors import GpuexecError
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.storage import Storage


def settle_stream(backend: Backend, stream: Stream) -> None:
    """Wait for a stream, however its work ends: a failed run has raised its error already."""
    with contextlib.suppress(GpuexecError):
        event = backend.device.create_event()
        stream.record(event)
        event.synchronize()


def trim_storage(storage: Storage, planning: PlanningContext, stream: Stream) -> None:
    """Wait for a stream and all readers, and free memory that no plan needs now; nobody issues meanwhile."""
    settle_storage(storage, planning.backend, stream)
    planning.graphs.clear()
    storage.arena.release_retired()
    storage.pool.trim()
    for frame in storage.frames:
        frame.release_dropped()


def close_storage(storage: Storage, planning: PlanningContext, stream: Stream) -> None:
    """Wait for a stream and all readers, and free everything; nothing is issued any more."""
    settle_storage(storage, planning.backend, stream)
    planning.graphs.clear()
    storage.run_counter.close()
    for frame in storage.frames:
        frame.free()
    storage.arena.free()
    storage.pool.close()
    storage.binder.release()
    planning.backend.deferred_free.prune()
    planning.weights.leave()
    planning.backend.staging.trim()


def settle_storage(storage: Storage, backend: Backend, stream: Stream) -> None:
    """Wait for the stream and all readers, however they end."""
    settle_stream(backend, stream)
    for frame in storage.frames:
        frame.settle()
