"""Execution context of an engine: stream, plans, memory between plans, transfers, and the lock for issuing."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from gpuexec.devices.device import Stream
from gpuexec.execution.resources.exchange_pool import ExchangePool
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.execution.runs.bound_body import BoundBodies
from gpuexec.execution.runs.comparing import Comparer
from gpuexec.execution.runs.host_transfers import HostTransfers
from gpuexec.execution.runs.planning_context import PlanningContext
from gpuexec.execution.runs.prepared_run import PreparedRun
from gpuexec.execution.runs.stopwatch import Stopwatch


@dataclass(frozen=True, slots=True, eq=False)
class ExecutionContext:
    """Stream, plans and pool that the runs of an engine share; ``lock`` is held by whoever issues.

    ``comparer`` compares every node, where a run is compared. ``under_way``: prepared runs that are not wholly
    on the stream yet, the oldest first. ``bodies`` of loops are bound where runs are plain ones on devices that record
    calls.
    """

    planning: PlanningContext
    stream: Stream
    lock: threading.RLock
    pool: ExchangePool
    syncs: SyncLog
    stopwatch: Stopwatch
    transfers: HostTransfers
    is_synchronous: bool = False
    comparer: Comparer | None = None
    bodies: BoundBodies | None = None
    under_way: dict[int, PreparedRun] = field(default_factory=dict)
