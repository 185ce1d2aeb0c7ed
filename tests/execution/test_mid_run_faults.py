"""Failures in the middle of a run: raised to its waiters, with the node; later runs work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cpu.cpu import CpuDevice
from gpuexec.ir.command import Kernel
from gpuexec.ir.operator import Emitter, Operator, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from tests.devices.opening import SCALE_SOURCE, make_simulator
from tests.model.host_value_cases import ints, put_on_device
from tests.model.small_models import CPU, make_tracer, ramp
from tests.model.staged_models import MODELS, inputs
from tests.ops.operators import CALLED

Array = np.ndarray[Any, Any]
SIMULATOR = gx.BackendType.SIMULATOR


@operator("Fault", "test")
@dataclass(frozen=True, slots=True)
class Fault(Operator):
    """Fail; on a device with kernels, read where nothing is."""

    tolerance: ClassVar[Tolerance] = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, *, out: Sequence[Array | None] | None = None) -> tuple[Array, ...]:
        raise ValueError("nothing is there")

    def lower(self, emit: Emitter, inputs: Any, outputs: Any) -> None:
        emit.launch(Kernel(SCALE_SOURCE, "fault_reading"), (1, 1, 1), (1, 1, 1), [outputs[0], None], [0])


@pytest.fixture(params=["cpu", "simulator"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """A backend of the test's own: it is lost, or refuses memory."""
    is_cpu = request.param == "cpu"
    device = CpuDevice() if is_cpu else make_simulator()
    yield Backend(device, CPU if is_cpu else SIMULATOR, "for a test")
    device.close()


def load(text: str) -> gx.Model:
    text = f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {text}'
    from onnx import parser

    return gx.load(parser.parse_model(text).SerializeToString())


CALLING = """(float[n, k] x) => (int64[2, m] y, float[n, k] z) {
  positive = Relu (x) z = test.Call <key = "in the middle"> (positive) y = NonZero (z)
}"""


def test_exception_in_a_host_function_names_the_node_and_the_worker_goes_on(backend: Backend) -> None:
    def fail(x: Array) -> Array:
        raise ZeroDivisionError("no more numbers")

    x = inputs(0)
    with gx.Worker(load(CALLING), backend=backend) as worker:
        held = None
        for _ in range(3):
            CALLED["in the middle"] = fail
            run = worker.schedule(x)
            requests = [tensor.readback_request() for tensor in run.outputs.values()]
            for wait in (run.wait, *(request.result for request in requests), run.outputs["z"].readback_and_clone):
                with pytest.raises(gx.DeviceError, match=r"Call_1.*ZeroDivisionError: no more numbers") as caught:
                    wait()
                assert caught.value.node == "Call_1"
            CALLED["in the middle"] = np.negative
            y, z = worker.run(x)
            np.testing.assert_array_equal(z, -np.maximum(x, 0))
            np.testing.assert_array_equal(y, np.array(np.nonzero(z)))
            del run, requests, wait, caught
            worker.trim()
            held = held or worker.memory_stats()
            assert worker.memory_stats() == held


def test_exception_in_a_host_function_ends_a_run_of_steps(backend: Backend) -> None:
    def fail(x: Array) -> Array:
        raise ZeroDivisionError("no more numbers")

    x = inputs(0)
    CALLED["in the middle"] = fail
    with gx.Worker(load(CALLING), backend=backend) as worker:
        with pytest.raises(gx.DeviceError, match="Call_1"):
            # On the CPU it is a command among others, whose error comes where the run is waited for.
            list(worker.schedule_iterable(x)) and worker.read_output("z")
        CALLED["in the middle"] = np.negative
        list(worker.schedule_iterable(x))
        np.testing.assert_array_equal(worker.read_output("z"), -np.maximum(x, 0))


def test_error_behind_a_read_is_reported_by_the_run_though_the_caller_got_so_far() -> None:
    # Nothing on the tracer takes time, and what is read from it is zeros, which x can't be reshaped to.
    backend = make_tracer()
    text = "(float[n] x, int64[2] shape) => (float[a, b] y) { y = Reshape (x, shape) }"
    with gx.Worker(load(text), backend=backend) as worker:
        run = worker.schedule({"x": ramp(6), "shape": put_on_device(ints(2, 3), backend)})
        with pytest.raises(gx.InputError, match="Reshape_0") as caught:
            run.wait()
        assert caught.value.node == "Reshape_0"
        with pytest.raises(gx.InputError):
            run.peek_output().readback_and_clone()
        worker.schedule({"x": ramp(6), "shape": ints(2, 3)}).wait()


class Refusing:
    """A device's ``allocate`` that refuses the calls of some numbers, counted from 0."""

    def __init__(self, allocate: Any) -> None:
        self._allocate = allocate
        self.calls = 0
        self.refused: range = range(0)

    def __call__(self, nbytes: int, stream: Any = None) -> Any:
        self.calls += 1
        if self.calls - 1 in self.refused:
            raise gx.OutOfMemoryError(f"The device has no room for {nbytes} bytes.")
        return self._allocate(nbytes, stream)


@pytest.fixture
def refusing(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Refusing:
    made = Refusing(backend.device.allocate)
    monkeypatch.setattr(type(backend.device), "allocate", lambda self, nbytes, stream=None: made(nbytes, stream))
    return made


@pytest.mark.parametrize("name", ["read", "if", "loop", "scan", "many"])
def test_refused_memory_is_asked_for_once_more_after_a_trim(name: str, backend: Backend, refusing: Refusing) -> None:
    staged, x = MODELS[name], inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        worker.schedule(x).wait()
    total = refusing.calls
    assert total > 2
    for number in range(total):
        refusing.calls, refusing.refused = 0, range(number, number + 1)
        with gx.Worker(staged.load(), backend=backend) as worker:
            staged.check(x, [tensor.readback_and_clone() for tensor in worker.schedule(x).outputs.values()])
            assert refusing.calls > number


@pytest.mark.parametrize("name", ["read", "if", "loop", "scan", "many"])
def test_memory_refused_for_good_is_reported_with_sizes(name: str, backend: Backend, refusing: Refusing) -> None:
    staged, x = MODELS[name], inputs(0)
    with gx.Worker(staged.load(), backend=backend) as worker:
        worker.schedule(x).wait()
    total = refusing.calls
    for number in range(total):
        refusing.calls, refusing.refused = 0, range(number, 1000)
        with gx.Worker(staged.load(), backend=backend) as worker:
            with pytest.raises(gx.OutOfMemoryError, match=r"no room for \d+ bytes"):
                worker.schedule(x).wait()
            refusing.refused = range(0)
            staged.check(x, [tensor.readback_and_clone() for tensor in worker.schedule(x).outputs.values()])


FAULTY = """(float[n, k] x) => (int64[2, m] y) { found = NonZero (x) y = test.Fault (found) }"""


def test_fault_in_a_later_plan_is_reported_by_everything_on_the_device() -> None:
    device = make_simulator()
    backend = Backend(device, SIMULATOR, "for a test")
    worker = gx.Worker(load(FAULTY), backend=backend)
    other = gx.Worker(MODELS["if"].load(), backend=backend)
    kept = other.schedule(inputs(0)).peek_output()
    kept.readback_and_clone()
    run = worker.schedule(inputs(0))
    y = run.peek_output()
    for use in (
        run.wait,
        y.readback_and_clone,
        lambda: y.shape and y.readback_request().result(),
        lambda: worker.schedule(inputs(1)).wait(),
        lambda: other.schedule(inputs(0)).wait(),
        lambda: kept.readback_request() and other.copy_output().readback_and_clone(),
    ):
        with pytest.raises(gx.DeviceLostError):
            use()
    other.close()
    worker.close()
    device.close()


def test_fault_is_named_at_the_call_where_runs_are_synchronous() -> None:
    device = make_simulator()
    worker = gx.Worker(load(FAULTY), backend=Backend(device, SIMULATOR, "for a test"), synchronous=True)
    with pytest.raises(gx.DeviceLostError, match="Fault_1") as caught:
        worker.schedule(inputs(0))
    assert caught.value.node == "Fault_1"
    worker.close()
    device.close()
