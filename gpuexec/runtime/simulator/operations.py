"""What a stream or a graph of the simulator does, one operation per command: checked beforehand, arguments copied."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuexec.errors import InputError
from gpuexec.runtime.arguments import PackedArguments
from gpuexec.runtime.simulator.library import Extent, load_runtime
from gpuexec.runtime.simulator.module import Function

if TYPE_CHECKING:
    from gpuexec.runtime.simulator.device import SimulatorDevice

_PATTERNS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Operation:
    """Something to do on a device, and its name for messages."""

    name: str
    run: Callable[[], None]


def make_launch(
    device: SimulatorDevice,
    function: Function,
    grid: Extent,
    block: Extent,
    shared_bytes: int,
    arguments: PackedArguments,
) -> Operation:
    """Return a launch; ``arguments`` may be changed afterwards.

    Raises:
        KernelError: The launch does not fit the kernel's signature or the device.
    """
    function.check_launch(grid, block, shared_bytes, device.target)
    copied = function.copy_arguments(arguments)

    def run() -> None:
        function.run(grid, block, shared_bytes, copied.address, device.next_schedule(), device.target)

    return Operation(f"launch of {function}", run)


def make_copy(
    device: SimulatorDevice,
    destination: int,
    source: int,
    nbytes: int,
    on_device: tuple[int, ...],
    keep: object = None,
) -> Operation:
    """Return a copy of bytes.

    Args:
        device: Whose memory is touched.
        destination: Address.
        source: Address.
        nbytes: How many.
        on_device: Which of the two addresses are the device's.
        keep: What must stay alive until the copy has run.

    Raises:
        DeviceError: A range lies in no allocation of the device.
    """
    name = f"copy of {nbytes} bytes"
    for address in on_device:
        device.check_range(address, nbytes, name)

    def run(_keep: object = keep) -> None:
        for address in on_device:  # once more: it may have been freed since
            device.check_range(address, nbytes, name)
        ctypes.memmove(destination, source, nbytes)

    return Operation(name, run)


def make_fill(device: SimulatorDevice, address: int, pattern: bytes, count: int) -> Operation:
    """Return a fill with ``pattern``, ``count`` times.

    Raises:
        InputError: The pattern has not 1, 2, 4 or 8 bytes.
        DeviceError: The range lies in no allocation of the device.
    """
    if len(pattern) not in _PATTERNS:
        raise InputError(f"A fill pattern must have 1, 2, 4 or 8 bytes, got {len(pattern)}.")
    nbytes = len(pattern) * count
    name = f"fill of {nbytes} bytes"
    device.check_range(address, nbytes, name)

    def run() -> None:
        device.check_range(address, nbytes, name)
        load_runtime().gpuexec_fill(address, pattern, len(pattern), count)

    return Operation(name, run)
