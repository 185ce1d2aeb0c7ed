"""What the runs of an engine go along."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from gpuexec.resources.pool import ExchangePool
from gpuexec.resources.syncs import SyncLog
from gpuexec.running.comparing import Comparer
from gpuexec.running.site import Site
from gpuexec.running.stopwatch import Stopwatch
from gpuexec.runtime.device import Stream


@dataclass(frozen=True, slots=True, eq=False)
class Road:
    """What the runs of a Worker go along: its stream, its plans, memory between them, and who may issue (``lock``).

    ``comparer``: what compares every node, if they are compared.
    """

    site: Site
    stream: Stream
    lock: threading.RLock
    pool: ExchangePool
    syncs: SyncLog
    stopwatch: Stopwatch
    is_synchronous: bool = False
    comparer: Comparer | None = None
