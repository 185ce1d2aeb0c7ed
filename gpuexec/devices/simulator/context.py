"""Context of a simulated device: what its streams, events and graphs share of it, and the failure that ends it."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import replace

from gpuexec.devices.arguments import NodeArguments, PackedArguments
from gpuexec.devices.simulator.address_map import AddressMap
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.findings import Finding, describe
from gpuexec.devices.simulator.library import GridError, Schedule
from gpuexec.devices.simulator.module import FindingsError
from gpuexec.devices.simulator.operations import Operation
from gpuexec.devices.simulator.ordering import Ordering
from gpuexec.errors import CheckError, ClosedError, DeviceError, DeviceLostError, GpuexecError
from gpuexec.ir.target import Target


class SimulatorContext:
    """Memory by address, the order of operations, seeds, and the first failure.

    Args:
        name: Of the device, for messages.
        target: Its limits.
        schedule: As `SimulatorDevice`.
        is_order_checked: Whether operations that nothing orders are refused.

    Attributes:
        blocks: Device memory.
        pinned: Pinned memory.
        counts: What count mode counted, launch by launch.
        lost: Why the device is lost, None while it is not.
        is_closed: Whether the device was closed.
    """

    def __init__(self, name: str, target: Target, schedule: Schedule, is_order_checked: bool) -> None:
        self.name, self.target, self._schedule = name, target, schedule
        self.blocks, self.pinned = AddressMap(), AddressMap()
        spaces = {"device memory": self.blocks, "pinned memory": self.pinned}
        self.ordering = Ordering(spaces, self.is_alive, is_order_checked)
        self.counts: list[LaunchCounts] = []
        self.lost: str | None = None
        self._lost_at: str | None = None  # the node of the failed operation
        self._findings: tuple[Finding, ...] = ()
        self.is_closed = False
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def is_alive(self) -> bool:
        """Return whether no command has failed."""
        return self.lost is None

    def check_alive(self) -> None:
        """Raise unless the device can be used.

        Raises:
            DeviceLostError: A command failed; CheckError if check mode found why.
            ClosedError: The device was closed.
        """
        if self.lost is not None:
            node = self._lost_at
            if self._findings:
                raise CheckError(self.lost, self._findings, node=node)
            raise DeviceLostError(self.lost, node=node)
        if self.is_closed:
            raise ClosedError(f"{self.name} was closed.")

    def check_range(self, address: int, nbytes: int, name: str, *, is_running: bool = False) -> None:
        """Check that a range lies in one allocation of the device; freed ones are valid for ``is_running`` work.

        Raises:
            DeviceError: It does not; the message says where it lies.
        """
        if nbytes and not self.blocks.holds(address, nbytes, is_running=is_running):
            raise DeviceError(f"{name}: {self.blocks.describe(address)}.")

    def check_not_freed(self, arguments: PackedArguments | NodeArguments, name: str) -> None:
        """Check that no pointer lies in an allocation that was freed while work still uses it.

        Raises:
            DeviceError: One does; the message says where.
        """
        if self.blocks.has_retired:
            for position, kind in enumerate(arguments.kinds()):
                if kind == "P8" and self.blocks.is_retired(arguments.pointer(position)):
                    raise DeviceError(f"{name}: {self.blocks.describe(arguments.pointer(position))}.")

    def find_block(self, address: int) -> tuple[int, int] | None:
        """Return address and size of the allocation, pinned or on the device, that contains an address."""
        return self.blocks.find(address) or self.pinned.find(address)

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """Return whether host memory is pinned."""
        return self.pinned.holds(address, nbytes)

    def next_seed(self) -> int:
        """Return the seed of the next stream or launch; no two have the same."""
        return self._schedule.seed + next(self._numbers)

    def next_choice(self) -> Callable[[list[int]], int]:
        """Return the random source that orders the nodes of the next graph launch."""
        if self._schedule.order == "reverse":
            return max
        return random.Random(self.next_seed()).choice

    def next_schedule(self) -> Schedule:
        """Return the schedule of the next launch."""
        if self._schedule.order != "random":
            return self._schedule
        return replace(self._schedule, seed=self.next_seed())

    def lose(self, operation: Operation, error: Exception) -> None:
        """Mark the device lost for a failed operation; the first one counts."""
        what = error.message if isinstance(error, GpuexecError) else f"{operation.name}: {error!r}"
        if isinstance(error, GridError) and error.fault_address:
            what = f"{what}: {self.blocks.describe(error.fault_address)}"
        findings = error.findings if isinstance(error, FindingsError) else ()
        if findings:
            what = f"{operation.name}: {describe(findings)}"
        with self._lock:
            if self.lost is None:
                self._findings, self._lost_at = findings, operation.node or None
                self.lost = f"{self.name}: {what.rstrip('.')}. The device is lost; make a new one."
