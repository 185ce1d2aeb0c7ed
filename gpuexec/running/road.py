"""What the runs of an engine go along."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpuexec.resources.pool import ExchangePool
from gpuexec.resources.syncs import SyncLog
from gpuexec.running.bound import Bound
from gpuexec.running.comparing import Comparer
from gpuexec.running.site import Site
from gpuexec.running.stopwatch import Stopwatch
from gpuexec.runtime.device import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Road:
    """What the runs of a Worker go along: its stream, its plans, memory between them, and who may issue (``lock``).

    ``comparer``: what compares every node, if they are compared. ``under_way``: the runs that are bound and not wholly
    on the stream yet, the oldest first.
    """

    site: Site
    stream: Stream
    lock: threading.RLock
    pool: ExchangePool
    syncs: SyncLog
    stopwatch: Stopwatch
    is_synchronous: bool = False
    comparer: Comparer | None = None
    under_way: dict[int, Bound] = field(default_factory=dict)
