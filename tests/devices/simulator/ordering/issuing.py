"""Operations for order tests, and whether they may overlap."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuexec.devices.prepared import PreparedLaunch
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.memory import DeviceMemory
from gpuexec.devices.simulator.stream import SimulatorEvent, SimulatorStream
from gpuexec.ir.command import Kernel, Launch, Slot
from gpuexec.ir.spec import TensorSpec
from tests.devices.simulator.conftest import FOLDER

ADD = Kernel(str(FOLDER / "basic.cu"), "add")
F32 = np.dtype(np.float32)
Begin = Callable[[SimulatorStream], None]


def hold(stream: SimulatorStream) -> None:
    """Let what is issued later not run before the device is closed."""
    stream.hold()


def go(_: SimulatorStream) -> None:
    """Let what is issued run at once."""


def settle(stream: SimulatorStream, begin: Begin) -> None:
    """Wait until what was issued has run, if it may, without the program having seen it."""
    if begin is go:
        stream.thread.mark().wait()


def record(device: SimulatorDevice, stream: SimulatorStream) -> SimulatorEvent:
    event = device.create_event()
    stream.record(event)
    return event


def launch_add(device: SimulatorDevice, stream: SimulatorStream, *places: tuple[DeviceMemory, int]) -> None:
    """Launch c = a + b over four floats each, at byte offsets of their memory, as a command of a plan."""
    slots = [Slot(i, offset, TensorSpec((4,), F32), (1,)) for i, (_, offset) in enumerate(places)]
    command = Launch(ADD, (1, 1, 1), (32, 1, 1), (*slots, np.int32(4)), (2,))
    prepared = PreparedLaunch(device.function(ADD), command, "node")
    for position, (memory, offset) in enumerate(places):
        prepared.set_address(position, memory.address + offset)
    prepared.issue(stream)
