"""Errors of the CUDA device: faults, out of memory, and no device."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda import CudaDevice, CudaEvent
from gpuexec.devices.cuda.driver import probe
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.errors import DeviceLostError, DeviceNotFoundError, OutOfMemoryError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.devices.cuda.launching import ORDINARY
from tests.devices.cupy_standin import Standin, install


def test_every_call_raises_device_lost_after_a_fault(device: CudaDevice, source: str) -> None:
    kernel, stream, event = Kernel(source, "fault"), device.create_stream(), device.create_event()
    device.load([kernel])
    memory, arguments = device.allocate(16), PackedArguments([None])
    stream.launch(device.function(kernel), LaunchConfig(ORDINARY, (1, 1, 1)), arguments)
    with pytest.raises(DeviceLostError, match="waiting for a stream"):
        stream.synchronize()
    for call in (
        stream.synchronize,
        stream.is_done,
        event.is_done,
        lambda: stream.record(event),
        lambda: stream.fill(memory.address, b"\0", 1),
        lambda: stream.launch(device.function(kernel), LaunchConfig(ORDINARY, (1, 1, 1)), arguments),
        lambda: device.allocate(16),
        device.create_stream,
    ):
        with pytest.raises(DeviceLostError, match="waiting for a stream"):
            call()


def test_is_done_raises_when_a_fault_is_what_ends_the_work(device: CudaDevice, standin: Standin) -> None:
    event = device.create_event()
    standin.cupy.cuda.runtime.eventQuery = lambda handle: 719
    with pytest.raises(DeviceLostError, match="asking whether work is done"):
        event.is_done()


def test_allocate_says_out_of_memory_and_goes_on_once_memory_is_freed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = SimulatorDevice(lambda source: (), memory_bytes=4096)
    install(monkeypatch, Standin(small))
    device = CudaDevice()
    memory = device.allocate(4096)
    with pytest.raises(OutOfMemoryError, match="allocating 4096 bytes"):
        device.allocate(4096)
    memory.free()
    memory.free()
    assert device.allocate(4096).nbytes == 4096
    small.close()


def test_event_gives_up_when_time_runs_out() -> None:
    event = CudaEvent.__new__(CudaEvent)
    runtime = SimpleNamespace(eventQuery=id)
    event._context = SimpleNamespace(cupy=SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))  # type: ignore[assignment]
    event._context.is_success = lambda status: False  # type: ignore[method-assign]
    event._spin_us = 0
    event.event = SimpleNamespace(ptr=0)
    assert event.synchronize(timeout_s=0.002) is False


@pytest.mark.parametrize(
    ("architecture", "count", "ordinal", "says"),
    [
        ((7, 0), 1, 0, r"GPU 0 \(Stand-in\) is sm_70; gpuexec needs sm_75 or newer"),
        ((9, 0), 0, 0, "CUDA can't be used: cudaError 100"),
        ((9, 0), 1, 1, "There is no GPU 1; CUDA shows 1"),
    ],
)
def test_device_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, architecture: tuple[int, int], count: int, ordinal: int, says: str
) -> None:
    install(monkeypatch, Standin(None, architecture, count))
    with pytest.raises(DeviceNotFoundError, match=says):
        CudaDevice(ordinal)


def test_device_names_the_command_when_cupy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceNotFoundError, match=r"pip install 'gpuexec\[cuda1[23]\]'"):
        CudaDevice()


FAULT = """
import sys
from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.errors import DeviceLostError
from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.cuda.cuda import CudaDevice

device = CudaDevice()
kernel, stream, event = Kernel(sys.argv[1], "fault"), device.create_stream(), device.create_event()
device.load([kernel])
stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), (1, 1, 1)), PackedArguments([None]))
for call in (stream.synchronize, event.is_done, lambda: stream.record(event), lambda: device.allocate(16)):
    try:
        call()
    except DeviceLostError as error:
        assert "waiting for a stream" in str(error), error
    else:
        sys.exit(f"{call} said nothing of the fault")
print("lost")
"""


@pytest.mark.gpu
def test_fault_of_a_gpu_is_reported_by_every_call(source: str) -> None:
    if probe().reason:
        pytest.skip(probe().reason)
    # A process of its own: a fault ends the context of the one that has it.
    done = subprocess.run([sys.executable, "-c", FAULT, source], capture_output=True, text=True, check=False)
    assert done.stdout == "lost\n", done.stderr
