"""Reading from the device what the host needs to go on: exactly those bytes, in one go, counted and named."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from gpuexec.planner.cut import HostRead
from gpuexec.resources.syncs import SyncLog
from gpuexec.running.crossing import Crossing
from gpuexec.running.held import Held
from gpuexec.running.run import Turn
from gpuexec.runtime.device import Event


def read_values(
    values: Sequence[tuple[HostRead, Held]],
    crossing: Crossing,
    syncs: SyncLog,
    issuing: AbstractContextManager[object],
    wait: Callable[[Event], Iterator[Turn]],
    *,
    is_allowed: bool,
) -> Iterator[Turn]:
    """Bring values to the host, where they are not there yet.

    Args:
        values: Where they are, and who asks for them.
        crossing: The way from the device.
        syncs: Where reads are counted.
        issuing: Held while work is put on the stream.
        wait: Waits for the device.
        is_allowed: Whether the run may wait without having been asked to.

    Raises:
        ImplicitSyncError: It may not.
    """
    rows = [(read, held) for read, held in values if held.array is None]
    if not rows:
        return
    for read, _ in rows:
        syncs.check(read.value.name, f"{read.reader} ({read.role})", is_allowed=is_allowed)
    start = time.perf_counter()
    with issuing:
        fetch = crossing.fetch([held for _, held in rows])
    try:
        yield from wait(fetch.before)
        reached = time.perf_counter()
        yield from wait(fetch.after)
        waited_ms, copied_ms = (reached - start) * 1e3, (time.perf_counter() - reached) * 1e3
        fetch.finish()
    finally:
        fetch.close()
    for read, held in rows:
        share = held.spec.nbytes / fetch.nbytes if fetch.nbytes else 0.0
        syncs.note_read(read, held.spec.nbytes, waited_ms, copied_ms * share)
        waited_ms = 0.0  # they were waited for together
