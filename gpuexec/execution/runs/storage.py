"""Storage of an engine: arena, frames, pool and inputs, its own or in the user's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Stream
from gpuexec.devices.graph_cache import GraphCache
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.frames import Frame, RunCounter
from gpuexec.execution.resources.memory import Arena
from gpuexec.execution.resources.memory_usage import MemoryUsage
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.resources.weights import Weights
from gpuexec.execution.runs.input_binding import InputBinder
from gpuexec.execution.runs.inputs import GivenInput
from gpuexec.execution.runs.memory_limit import MemoryLimit
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.ir.graphs import Value


class Binder(Protocol):
    """Binds the inputs of runs. ``kept`` are those of the last run, or set for the next."""

    kept: dict[str, GivenInput]

    def reserve(self, frame: Frame, given: Mapping[str, GivenInput]) -> None:
        """Make room on a device with kernels for inputs."""

    def bind(self, prepared: PreparedRun, inputs: Sequence[Value], given: Mapping[str, GivenInput]) -> None:
        """Bind all inputs of a run."""

    def unpin(self) -> None:
        """Keep inputs that stay set in ordinary memory, and give pinned memory back; the caller has waited."""

    def give_back(self) -> None:
        """Free room that other sizes took; the caller has waited."""

    def release(self) -> None:
        """Free all memory; the caller has waited for all runs."""


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The memory of one engine: temporaries, outputs of the runs in flight, what passes between plans, inputs."""

    arena: Arena
    frames: tuple[Frame, ...]
    pool: ExchangePool
    binder: Binder
    run_counter: RunCounter
    limit: MemoryLimit | None = None
    # Whether it is as large as plans need, and not larger.
    is_exact: bool = False


# Opens the storage of an engine on a stream; waits are counted in the log.
OpenStorage = Callable[[Backend, Stream, SyncLog], Storage]


def watch_memory(
    storage: Storage, weights: Weights, graphs: GraphCache, backend: Backend, lane: Callable[[], int]
) -> MemoryUsage:
    """Return the memory usage of an engine, by kind; ``lane`` counts the bytes of its lane."""
    return MemoryUsage(
        {
            "arena": lambda: storage.arena.nbytes,
            "exchange": lambda: storage.pool.nbytes,
            "weights": lambda: weights.nbytes,
            "frames": lambda: sum(frame.nbytes for frame in storage.frames),
            "lane": lane,
            "graphs": lambda: graphs.nbytes,
            "pinned": lambda: backend.staging.nbytes,
            "cached": lambda: backend.device.cached_nbytes,
        },
        backend.memory_revision,
    )


def own_storage(frames: int, limit: MemoryLimit | None = None) -> OpenStorage:
    """Return a function that opens an engine's own memory, within a limit if there is one."""

    def open_storage(backend: Backend, stream: Stream, syncs: SyncLog) -> Storage:
        allocate = None if limit is None else limit.meter(backend.device.allocate)
        storage = Storage(
            Arena(backend, allocate),
            tuple(Frame(backend, allocate) for _ in range(frames)),
            ExchangePool(backend, stream, allocate),
            InputBinder(backend, stream),
            RunCounter(backend, syncs),
            limit,
        )
        if limit is not None:
            limit.watch(storage.arena, storage.frames, storage.pool)
        return storage

    return open_storage
