"""Readback of values that the host needs to go on: only those bytes, in one copy, counted and named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from gpuexec.devices.device import Event
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.runs.host_transfers import HostTransfers
from gpuexec.execution.runs.run import RunProgress
from gpuexec.execution.runs.value_location import ValueLocation
from gpuexec.planner.partition import HostRead


def read_values(
    values: Sequence[tuple[HostRead, ValueLocation]],
    transfers: HostTransfers,
    syncs: SyncLog,
    issuing: AbstractContextManager[object],
    wait: Callable[[Event], Iterator[RunProgress]],
    *,
    is_allowed: bool,
) -> Iterator[RunProgress]:
    """Read values back, where the host does not have them yet.

    Args:
        values: The reads, each with the location of its value.
        transfers: Transfers from the device.
        syncs: Where reads are counted.
        issuing: Held while work is put on the stream.
        wait: Waits for the device.
        is_allowed: Whether the run may wait without having been asked to.

    Raises:
        ImplicitSyncError: It may not.
    """
    rows = [(read, location) for read, location in values if location.array is None]
    if not rows:
        return
    for read, _ in rows:
        syncs.check(read.value.name, f"{read.reader} ({read.role})", is_allowed=is_allowed)
    start = time.perf_counter()
    with issuing:
        fetch = transfers.fetch([location for _, location in rows])
    try:
        yield from wait(fetch.before)
        reached = time.perf_counter()
        yield from wait(fetch.after)
        waited_ms, copied_ms = (reached - start) * 1e3, (time.perf_counter() - reached) * 1e3
        fetch.finish()
    finally:
        fetch.close()
    for read, location in rows:
        share = location.spec.nbytes / fetch.nbytes if fetch.nbytes else 0.0
        syncs.note_read(read, location.spec.nbytes, waited_ms, copied_ms * share)
        waited_ms = 0.0  # they were waited for together
