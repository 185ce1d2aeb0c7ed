"""Alignment of memory that callers give: what a device needs of it, and the copies where it is missed.

An input that misses it is copied on the run's stream to memory of ours, and an output is written there and copied from
it, run by run. The copies are counted (`SyncLog.copies`), as they cost bandwidth that an aligned array would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.command import BUFFER_ALIGNMENT
from gpuexec.resources.syncs import SyncLog
from gpuexec.runtime.device import Region, Stream
from gpuexec.target import Target


def find_alignment(target: Target, dtype: np.dtype[Any], *, by_element: bool = False) -> int:
    """Return what an array must start at a multiple of to be read and written where it lies, in bytes.

    Args:
        target: What the plan is made for.
        dtype: Of the array's elements.
        by_element: The plan's kernels are known to read and write one element at a time.
    """
    return BUFFER_ALIGNMENT if target.has_kernels and not by_element else dtype.itemsize


def is_aligned(region: Region, alignment: int) -> bool:
    """Return whether bytes start at such a multiple; where there are none, it does not matter."""
    return not region.nbytes or region.address % alignment == 0


@dataclass(frozen=True, slots=True)
class Move:
    """A copy on the device between memory of the caller's and memory of ours; ``why`` says what the former misses."""

    value: str
    why: str
    destination: Region
    source: Region
    nbytes: int

    @staticmethod
    def of_input(name: str, given: Region, aligned: Region, alignment: int) -> Move:
        """Return the copy of an input to where kernels can read it."""
        return Move(name, _describe("input", given, alignment), aligned, given, given.nbytes)

    @staticmethod
    def of_output(name: str, aligned: Region, given: Region, alignment: int, nbytes: int) -> Move:
        """Return the copy of an output from where kernels could write it."""
        return Move(name, _describe("output", given, alignment), given, aligned, nbytes)

    def issue(self, stream: Stream, syncs: SyncLog) -> None:
        """Put the copy on a stream, and count it."""
        if self.nbytes:
            stream.copy(self.destination.address, self.source.address, self.nbytes)
        syncs.note_copy(self.value, self.why, self.nbytes)


def _describe(role: str, region: Region, alignment: int) -> str:
    return f"the {role} starts {region.address % alignment} bytes past a multiple of {alignment}"
