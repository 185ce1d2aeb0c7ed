"""Content of memories after a run: known before the run is on its stream, void if it fails.

Memories of one spec that are kept alike, such as the keys and values of all layers, are one record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpuexec.devices.backend import Backend
from gpuexec.devices.device import Region, Stream
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.state.bytes import CacheBytes, fetch
from gpuexec.ir.spec import TensorSpec

Array = np.ndarray[Any, Any]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Carried:
    """Content of memories after one run, or as they were set: of several that have one spec, place by place.

    Attributes:
        names: Inputs of the memories.
        spec: Of each; None until the run is on its stream, where only that shows it.
        fence: Of the run.
        stream: Whose work made it; None: it was given.
        array: The content, where it was given by the host and lies there alone: that of one memory.
        regions: Bytes of each; None until the run is on its stream, and of zeros that nobody has written.
        owners: Who lends the bytes.
        caches: The bytes with room behind the rows, where they lie in such.
        starts: Of sequences that were joined with longer ones, the rows in front that are none of theirs; below 0, as
            many of theirs are gone that were in front; empty: 0 for each.
    """

    names: tuple[str, ...]
    spec: TensorSpec | None
    fence: Fence
    stream: Stream | None = None
    array: Array | None = None
    regions: tuple[Region, ...] | None = None
    owners: tuple[object, ...] | None = None
    caches: tuple[CacheBytes, ...] | None = None
    starts: tuple[int, ...] = ()

    def pick(self, names: Iterable[str]) -> Carried:
        """Return the content of some of the memories; the run is on its stream, so that no more is to be known."""
        wanted = set(names)
        places = [place for place, name in enumerate(self.names) if name in wanted]
        if len(places) == len(self.names):
            return self

        def take(rows: Sequence[Any] | None) -> Any:
            return None if rows is None else tuple([rows[place] for place in places])

        picked = replace(
            self, names=take(self.names), regions=take(self.regions), owners=take(self.owners), caches=take(self.caches)
        )
        if picked.caches:
            picked.caches[0].holders.add(picked)
        return picked

    @property
    def known(self) -> TensorSpec:
        """The spec; the run is on its stream."""
        assert self.spec is not None
        return self.spec


@dataclass(slots=True, eq=False)
class StateEntry:
    """Contents of memories after a run or a call of `State.set`; others keep those of ``before``.

    No memory is in two of ``carried``.
    """

    carried: tuple[Carried, ...]
    before: StateEntry | None
    fence: Fence = field(default_factory=Fence.of)


def overlay(above: Sequence[Carried], below: Sequence[Carried]) -> tuple[Carried, ...]:
    """Return contents, and of others those of the memories that are not among them."""
    same = [id(each.names) for each in above]
    if same == [id(each.names) for each in below]:  # mostly a run after a run
        return tuple(above)
    others = [each for each in below if id(each.names) not in same]
    taken = {name for each in above for name in each.names} if others else set()
    rest = [[name for name in each.names if name not in taken] for each in others]
    return (*above, *[each.pick(names) for each, names in zip(others, rest, strict=True) if names])


def read_content(backend: Backend, held: Carried, place: int = 0) -> Array:
    """Block for what one of the memories holds; the run is on its stream. The array is the caller's.

    Raises:
        GpuexecError: What the run raised.
    """
    if held.array is not None:
        return held.array.copy()
    assert held.regions is not None
    cache = None if held.caches is None else held.caches[place]
    owner = None if held.owners is None else held.owners[place]
    return fetch(backend, held.known, held.regions[place], held.fence, cache, owner)


def skip(entry: StateEntry | None, without: Fence | None = None, *, is_committed: bool = False) -> StateEntry | None:
    """Return the newest entry, from this one back, that counts.

    Args:
        entry: None of what it leads to is known to have failed.
        without: Leave out what this run leaves.
        is_committed: Leave out runs that are scheduled piece by piece and have not come to their end.
    """
    while entry is not None:
        fence = entry.fence
        is_open = is_committed and fence.stepper is not None and not fence.is_issued()
        if not (is_open or fence is without):
            return entry
        entry = entry.before
    return None
