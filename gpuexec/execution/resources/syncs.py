"""Log of synchronisations: waits, host reads and host nodes of runs, counted, named, refused where forbidden.

    with gpuexec.no_implicit_sync():
        worker.schedule(x)          # raises where a run would wait for the device without having been asked to

What a caller asks for by name (`wait`, `result`, `readback_and_clone`) is never counted. Copies on the device that only
the address of an array makes necessary are counted too, though nobody waits for them and nothing refuses them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

from gpuexec.errors import ImplicitSyncError
from gpuexec.ir.graphs import Node
from gpuexec.planner.partition import HostRead
from gpuexec.system.phases import note

_log = logging.getLogger("gpuexec")
# Each may be of another run, so they can't be reported together.
WAITS_KEPT = 1000
_ARE_ALLOWED: ContextVar[bool] = ContextVar("gpuexec_syncs_allowed", default=True)


@contextlib.contextmanager
def no_implicit_sync() -> Iterator[None]:
    """Refuse waits that nobody asked for by name, in this context; a run scheduled in it refuses them to its end.

    The run that needs one ends with ImplicitSyncError, whichever thread it has got to; the Worker stays usable.

    Example:
        >>> with gx.Worker(model, backend="cpu") as worker, gx.no_implicit_sync():
        ...     _ = worker.schedule(x)
    """
    token = _ARE_ALLOWED.set(False)
    try:
        yield
    finally:
        _ARE_ALLOWED.reset(token)


# Returns whether this context may wait for a device without having been asked to.
are_syncs_allowed = _ARE_ALLOWED.get


@dataclass(frozen=True, slots=True)
class ReadRow:
    """Content that runs read from the device to go on: what, for which node, why, how often and at what cost.

    ``waited_ms`` is how long the work before it took to end, ``copied_ms`` how long the copy took, over all times.
    """

    value: str
    node: str
    why: str
    nbytes: int
    times: int
    waited_ms: float
    copied_ms: float


@dataclass(frozen=True, slots=True)
class CallRow:
    """A node that the host computed, not the device: why, how often, and for how long in all.

    ``why`` is the operator's own reason to be on the host, or ``"host object"`` where it takes or gives strings or
    containers, or ``"no lowering for this device"``.
    """

    operator: str
    node: str
    why: str
    times: int
    computed_ms: float


@dataclass(frozen=True, slots=True)
class CopyRow:
    """An input or output of the caller's that is copied on the device, run by run, for where it starts.

    ``why`` says by how many bytes its address misses a multiple of what kernels need; ``nbytes`` is what was copied in
    all. An array that starts at such a multiple is used where it lies.
    """

    value: str
    why: str
    nbytes: int
    times: int


class SyncLog:
    """Synchronisations of a Worker's runs. ``is_strict``: they may not read or compute on the host at all."""

    def __init__(self, *, is_strict: bool = False) -> None:
        self.is_strict = is_strict
        self._waits: deque[tuple[str, str]] = deque(maxlen=WAITS_KEPT)
        self._reads: dict[tuple[str, str, str], ReadRow] = {}
        self._calls: dict[tuple[str, str], CallRow] = {}
        self._copies: dict[tuple[str, str], CopyRow] = {}
        self._lock = threading.Lock()

    @property
    def waits(self) -> tuple[tuple[str, str], ...]:
        """Waits that nobody asked for by name: (what, why), the last of them."""
        with self._lock:
            return tuple(self._waits)

    @property
    def reads(self) -> tuple[ReadRow, ...]:
        """The reads so far."""
        with self._lock:
            return tuple(self._reads.values())

    @property
    def calls(self) -> tuple[CallRow, ...]:
        """The nodes computed on the host so far."""
        with self._lock:
            return tuple(self._calls.values())

    @property
    def copies(self) -> tuple[CopyRow, ...]:
        """The inputs and outputs copied so far for where they start."""
        with self._lock:
            return tuple(self._copies.values())

    def check(self, what: str, why: str, *, is_allowed: bool) -> None:
        """Check that the host may wait for something now.

        Raises:
            ImplicitSyncError: It may not.
        """
        if self.is_strict or not is_allowed:
            who = "strict=True" if self.is_strict else "no_implicit_sync()"
            raise ImplicitSyncError(f"{who} refuses that the host waits for {what}: {why}.", value=what)

    def note_wait(self, what: str, why: str) -> None:
        """Count a wait in a call of the user's, or refuse it."""
        if not are_syncs_allowed():
            raise ImplicitSyncError(f"no_implicit_sync() refuses that the host waits for {what}: {why}.")
        with self._lock:
            self._waits.append((what, why))
        _log.info("host waits for %s: %s", what, why)
        note("host wait", f"{what}: {why}")

    def note_read(self, read: HostRead, nbytes: int, waited_ms: float, copied_ms: float) -> None:
        """Count a read."""
        key = (read.value.name, read.reader, read.role)
        with self._lock:
            row = self._reads.get(key)
            if row is None:
                _log.info("host reads %s for %s: %s", *key)
                row = ReadRow(*key, 0, 0, 0.0, 0.0)
            self._reads[key] = ReadRow(
                *key, row.nbytes + nbytes, row.times + 1, row.waited_ms + waited_ms, row.copied_ms + copied_ms
            )
        note("host read", f"{read.value.name} for {read.reader} ({read.role})", nbytes, waited_ms + copied_ms)

    def note_call(self, node: Node, why: str, computed_ms: float) -> None:
        """Count a node computed on the host, for want of a kernel or because what it touches lies there."""
        key = (node.operator.name, node.name)
        with self._lock:
            row = self._calls.get(key)
            if row is None:
                _log.info("host computes %s %r: %s", *key, why)
                row = CallRow(*key, why, 0, 0.0)
            self._calls[key] = CallRow(*key, row.why, row.times + 1, row.computed_ms + computed_ms)
        note("host call", f"{node}: {row.why}", 0, computed_ms)

    def note_copy(self, value: str, why: str, nbytes: int) -> None:
        """Count a copy of an input or output for where it starts."""
        key = (value, why)
        with self._lock:
            row = self._copies.get(key) or CopyRow(*key, 0, 0)
            self._copies[key] = CopyRow(*key, row.nbytes + nbytes, row.times + 1)
        note("device copy", f"{value}: {why}", nbytes)
