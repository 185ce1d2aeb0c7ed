"""Content of memories after a run: known before the run is on its stream, void if it fails."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuexec.devices.device import Stream
from gpuexec.errors import GpuexecError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.results.place import Place
from gpuexec.execution.state.bytes import CacheBytes

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Carried:
    """Content of a memory after one run, or as it was set.

    Attributes:
        place: Spec and bytes, known once the run is on its stream.
        fence: Of the run.
        stream: Whose work made it; None: it was given.
        array: The content, where it was given by the host and lies there alone.
        owner: Who lends the bytes.
        cache: The bytes with room behind the rows, where it lies in such.
    """

    place: Place
    fence: Fence
    stream: Stream | None = None
    array: Array | None = None
    owner: object = None
    cache: CacheBytes | None = None


@dataclass(slots=True, eq=False)
class StateEntry:
    """Contents of memories after a run or a call of `State.set`, by input; others keep those of ``before``."""

    carried: dict[str, Carried]
    before: StateEntry | None
    fence: Fence = field(default_factory=Fence.of)


def has_failed(fence: Fence) -> bool:
    """Return whether work is known to have failed; never waits."""
    if fence.failure is not None:
        return True
    if not fence.is_done():
        return False
    try:
        fence.synchronize()
    except GpuexecError:
        return True
    return False


def skip_failed(
    entry: StateEntry | None, without: Fence | None = None, *, is_committed: bool = False
) -> StateEntry | None:
    """Return the newest entry, from this one back, that is not known to hold nothing."""
    while entry is not None:
        fence = entry.fence
        is_open = is_committed and fence.stepper is not None and not fence.is_issued()
        if not (is_open or fence is without or has_failed(fence)):
            return entry
        entry = entry.before
    return None
