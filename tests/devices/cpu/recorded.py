"""Host calls over small buffers, recorded for a CPU device."""

from __future__ import annotations

import numpy as np

from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.devices.cpu.cpu_memory import CpuMemory
from gpuexec.devices.device import Recording, Region
from gpuexec.ir.command import Command, HostCall, Slot
from gpuexec.ir.plan import Segment
from gpuexec.ir.spec import TensorSpec
from tests.ops.operators import Array

BYTE = np.dtype(np.uint8)
# Large enough that a command is worth a thread.
LARGE = 1 << 19
SMALL = 16


def window(buffer: int, extent: int, offset: int = 0) -> Slot:
    return Slot(buffer, offset, TensorSpec((extent,), BYTE), (1,))


def call(key: str, source: int, destination: int, extent: int = SMALL, operator: str = "test.Call") -> HostCall:
    return HostCall(operator, (("key", key),), (window(source, extent),), (window(destination, extent),))


class Bench:
    """Memory for some buffers, a stream, and recordings over them."""

    def __init__(self, device: CpuDevice, buffers: int, extent: int = SMALL) -> None:
        self.device = device
        self.memory = {i: Region(CpuMemory(extent), 0, extent) for i in range(buffers)}
        self.stream = device.create_stream()
        for i in range(buffers):
            self.array(i)[:] = 0

    def array(self, buffer: int) -> Array:
        array = self.memory[buffer].memory.array
        assert array is not None
        return array

    def record(self, *commands: Command, edges: tuple[tuple[int, int], ...] = ()) -> Recording:
        segment = Segment(commands, edges, tuple(f"node{i}" for i in range(len(commands))))
        return self.device.record(segment, self.memory)

    def begin(self, recording: Recording) -> None:
        """Submit a recording as another run."""
        self.stream.begin_run()
        recording.submit(self.stream, {})

    def run(self, recording: Recording) -> None:
        self.begin(recording)
        self.stream.synchronize()
