"""Alignment of the caller's memory: what kernels need, and the copies where an address misses it.

An input that misses it is copied on the run's stream to memory of ours, and an output is written there and copied from
it, run by run. The copies are counted (`SyncLog.copies`), as they cost bandwidth that an aligned array would not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.devices.device import Region, Stream
from gpuexec.execution.resources.syncs import SyncLog
from gpuexec.ir.command import BUFFER_ALIGNMENT
from gpuexec.ir.target import Target


def find_alignment(target: Target, dtype: np.dtype[Any], *, by_element: bool = False) -> int:
    """Return the alignment in bytes that kernels need to read and write an array in place.

    Args:
        target: What the plan is made for.
        dtype: Of the array's elements.
        by_element: The plan's kernels are known to read and write one element at a time.
    """
    return BUFFER_ALIGNMENT if target.has_kernels and not by_element else dtype.itemsize


def is_aligned(region: Region, alignment: int) -> bool:
    """Return whether bytes start at a multiple of an alignment; empty ones always do."""
    return not region.nbytes or region.address % alignment == 0


@dataclass(frozen=True, slots=True)
class Move:
    """A device copy between the caller's memory and ours; ``why`` is the alignment that is missed."""

    value: str
    why: str
    destination: Region
    source: Region
    nbytes: int

    @staticmethod
    def of_input(name: str, given: Region, aligned: Region, alignment: int) -> Move:
        """Return the copy of an input to aligned bytes."""
        return Move(name, _describe("input", given, alignment), aligned, given, given.nbytes)

    @staticmethod
    def of_output(name: str, aligned: Region, given: Region, alignment: int, nbytes: int) -> Move:
        """Return the copy of an output from aligned bytes."""
        return Move(name, _describe("output", given, alignment), given, aligned, nbytes)

    def issue(self, stream: Stream, syncs: SyncLog) -> None:
        """Put the copy on a stream, and count it."""
        if self.nbytes:
            stream.copy(self.destination.address, self.source.address, self.nbytes)
        syncs.note_copy(self.value, self.why, self.nbytes)


def _describe(role: str, region: Region, alignment: int) -> str:
    return f"the {role} starts {region.address % alignment} bytes past a multiple of {alignment}"
