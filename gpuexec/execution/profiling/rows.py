"""Profiler rows. Times are in milliseconds; starts count from when the profiler was made."""

from __future__ import annotations

from dataclasses import dataclass

HOST = "host"
# Events that stand for a wait of the host nobody asked for, by the names that `gpuexec.execution.resources.syncs`
# gives them.
SYNCS = ("host read", "host wait", "host call")


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command of a layer, and the bytes of its slots. ``kernel`` is empty where it is no launch.

    ``kind`` is ``launch``, ``copy``, ``fill`` or ``library call``; of the CPU, which has no kernels, the operator.
    """

    kind: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    bytes_read: int
    bytes_written: int

    def __str__(self) -> str:
        if not self.kernel:
            return self.kind
        return f"{self.kernel} <{'x'.join(map(str, self.grid))}, {'x'.join(map(str, self.block))}>"


@dataclass(frozen=True, slots=True)
class LayerRow:
    """A layer of one run.

    ``run`` counts the runs that the profiler recorded, ``plan`` their plans; a layer that the host computed has plan -1
    and the device ``host``. ``issued_ms`` and ``issue_ms`` are when the host began to put it on the stream and how long
    that took; ``start_ms`` and ``duration_ms`` are the device's, None where it failed. ``flops`` is None where there is
    no formula. ``stream`` is the name of the run's stream among those of its device, ``thread`` that of the thread that
    put the layer there, or computed it.
    """

    run: int
    model: str
    plan: int
    node: str
    operator: str
    device: str
    commands: tuple[CommandRow, ...]
    bytes_read: int
    bytes_written: int
    flops: int | None
    issued_ms: float
    issue_ms: float
    start_ms: float | None
    duration_ms: float | None
    stream: str
    thread: str

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels launched, with their instances, in order."""
        return tuple(command.kernel for command in self.commands if command.kernel)


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event of the package: a phase, or a moment that took ``duration_ms``.

    ``place`` is the thread it was done on, or the stream of a transfer; ``run`` is -1 where it is no run's. A
    ``duration_ms`` of None is a transfer that failed.
    """

    name: str
    about: str
    place: str
    run: int
    nbytes: int
    start_ms: float | None
    duration_ms: float | None


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Memory held when a layer was put on the stream.

    ``device`` and ``stream`` are those of its run. ``arena_used`` are the bytes of the arena that are live during the
    layer, ``arena`` all that the plan has, ``values`` the temporaries there, with their bytes; ``held`` bytes by
    purpose, as `Worker.memory_stats` returns them.
    """

    run: int
    plan: int
    node: str
    at_ms: float
    arena_used: int
    arena: int
    values: tuple[tuple[str, int], ...]
    held: tuple[tuple[str, int], ...]
    device: str
    stream: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: device time from first to last command (None: it failed or is not over), and its layers.

    ``stream`` is the name of its stream among those of its device.
    """

    run: int
    model: str
    device: str
    issued_ms: float
    start_ms: float | None
    duration_ms: float | None
    layers: int
    stream: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A layer, or an operator, over runs: its total time in each run.

    ``times`` says how often that was in all runs, ``share`` its part of all layers' time; ``flops`` and ``nbytes``
    (read and written) are those of an average run.
    """

    name: str
    operator: str
    runs: int
    times: int
    total_ms: float
    share: float
    avg_ms: float
    min_ms: float
    p10_ms: float
    p50_ms: float
    p90_ms: float
    max_ms: float
    flops: int | None
    nbytes: int
