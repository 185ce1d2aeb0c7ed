"""Workers after a failure: still usable, or lost with their device; and the message."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.device import MemoryBlock, Stream
from gpuexec.ir.command import Kernel
from gpuexec.ir.operator import Emitter, operator
from tests.devices.opening import SCALE_SOURCE
from tests.model.small_models import CPU, DOMAIN, GATES, affine, expect_affine, gated, make_model, ramp
from tests.ops.operators import Scale, Slots

ON_ALL = pytest.mark.parametrize("backend", ["cpu", "simulator", "standin"], indirect=True)
ON_KERNELS = pytest.mark.parametrize("backend", ["simulator", "standin"], indirect=True)
X = ramp(2, 3)


@operator("Stray", DOMAIN)
@dataclass(frozen=True, slots=True)
class Stray(Scale):
    """Launches far beyond its output."""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x, y = inputs[0], outputs[0]
        arguments = [x, y, np.float32(1), np.zeros(3, np.int32).tobytes(), np.int32(1 << 30)]
        emit.launch(Kernel(SCALE_SOURCE, "scale<float>"), (1 << 24, 1, 1), (64, 1, 1), arguments, writes=[1])


def stray() -> gx.Model:
    node = helper.make_node("Stray", ["x"], ["y"], name="stray", domain=DOMAIN)
    return make_model([node], {"x": ["n", 3]}, {"y": ["n", 3]})


def use_all(worker: gx.Worker, run: gx.Run) -> list[Callable[[], object]]:
    """Return every way to use a Worker and what came of a run."""
    tensor = run.peek_output()
    return [
        lambda: worker.run(X),
        lambda: worker.prepare(ramp(7, 3)),
        lambda: next(iter(worker.schedule_iterable(X))),
        worker.wait_for_completion,
        worker.copy_output,
        tensor.readback_and_clone,
        lambda: tensor.readback_request().result(),
    ]


@ON_KERNELS
def test_device_fault_is_reported_by_everything_on_the_device(backend: Backend) -> None:
    worker, other = gx.Worker(affine(), backend=backend), gx.Worker(affine(), backend=backend)
    np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
    before = other.schedule(X)
    held = before.peek_output().readback_request()
    taken = held.result()
    bad = gx.Worker(stray(), backend=backend)
    run = bad.schedule(X)
    with pytest.raises(gx.DeviceLostError) as caught:
        run.wait()
    for each, ran in ((worker, worker.schedule), (other, other.schedule)):
        with pytest.raises(gx.DeviceLostError) as again:
            ran(X)
        assert str(again.value) == str(caught.value)
        assert each.backend_type is backend.type
    for use in [*use_all(other, before), *use_all(bad, run)]:
        with pytest.raises(gx.DeviceLostError):
            use()
    with pytest.raises(gx.DeviceLostError):
        held.result()
    np.testing.assert_array_equal(taken, expect_affine(X))
    for each in (worker, other, bad):
        each.close()


@ON_KERNELS
def test_device_fault_says_what_is_known(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker, gx.Worker(stray(), backend=backend) as bad:
        worker.run(X)
        with pytest.raises(gx.DeviceLostError) as caught:
            bad.run(X)
    if backend.type is gx.BackendType.SIMULATOR:
        assert "scale.cu:scale<float>" in str(caught.value), "the simulator knows the culprit"
    else:
        assert "Known to be done, last, is elementwise_binary.cu:" in str(caught.value)
        assert "GPUEXEC_SYNC_EACH=1" in str(caught.value)


@ON_KERNELS
def test_device_fault_leaves_other_devices_alone(backend: Backend) -> None:
    with gx.Worker(stray(), backend=backend) as bad, gx.Worker(affine(), backend=CPU) as worker:
        with pytest.raises(gx.DeviceLostError):
            bad.run(X)
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))


class Refusals:
    """Lets a device refuse its next allocations."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._allocate = 0, backend.device.allocate
        monkeypatch.setattr(backend.device, "allocate", self._refuse_or_allocate)

    def _refuse_or_allocate(self, nbytes: int, stream: Stream | None = None) -> MemoryBlock:
        if self.left:
            self.left -= 1
            raise gx.OutOfMemoryError(f"There is no room for {nbytes} bytes.")
        return self._allocate(nbytes, stream)


@ON_ALL
def test_allocation_refused_once_is_tried_again_after_a_trim(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals(backend, monkeypatch)
    with gx.Worker(affine(), backend=backend) as worker:
        worker.run(X)
        refusals.left = 1
        large = ramp(300, 3)
        np.testing.assert_array_equal(worker.run(large)[0], expect_affine(large))
        assert [why for _, why in worker.report().host_syncs] == ["the device was out of memory"]


@ON_ALL
def test_allocation_refused_for_good_is_reported_with_the_plans_sizes(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = Refusals(backend, monkeypatch)
    with gx.Worker(affine(), backend=backend) as worker:
        for _ in range(2):  # both frames have what they need
            worker.run(X)
        refusals.left = 1000
        large = ramp(300, 3)
        with pytest.raises(
            gx.OutOfMemoryError, match=r"no room for .*\. The plan needs \d+ bytes of arena and \d+ of outputs"
        ):
            worker.run(large)
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
        refusals.left = 0
        np.testing.assert_array_equal(worker.run(large)[0], expect_affine(large))


@pytest.mark.parametrize("backend", ["cpu", "simulator", "standin"], indirect=True)
@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (RuntimeError("no such luck"), gx.DeviceError),
        (MemoryError("no such luck"), gx.OutOfMemoryError),
        (gx.InputError("no such luck"), gx.InputError),
    ],
    ids=["raw", "memory", "ours"],
)
def test_exception_in_a_host_function_names_the_node_and_leaves_the_worker_usable(
    backend: Backend, failure: Exception, kind: type[gx.GpuexecError]
) -> None:
    model, gate = gated()
    GATES.open[gate].set()
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            GATES.failures[gate] = failure
            with pytest.raises(kind, match=r"gate.*no such luck") as caught:
                worker.run(X)
            assert caught.value.node is not None and "gate" in caught.value.node
            np.testing.assert_array_equal(worker.run(X)[0], X + 1)


@ON_ALL
def test_worker_closed_while_a_run_waits_for_its_input_ends_it_first(backend: Backend) -> None:
    model, gate = gated()
    consumer = gx.Worker(affine(), backend=backend)
    # Nobody opens the gate if this fails.
    consumer.prepare(X)
    with gx.Worker(model, backend=CPU) as producer:
        request = consumer.schedule(producer.schedule(X).peek_output()).peek_output().readback_request()
        assert GATES.entered[gate].wait()
        closing = threading.Thread(target=consumer.close)
        closing.start()
        assert not request.is_done()
        GATES.open[gate].set()
        closing.join()
        np.testing.assert_array_equal(request.result(), expect_affine(X + 1))
        with pytest.raises(gx.ClosedError):
            consumer.run(X)


def endless() -> tuple[gx.Model, int]:
    """Return a model that adds x to itself ``n`` times, through a gate, and the gate."""
    gate = GATES.new()
    body = helper.make_graph(
        [
            helper.make_node("Gate", ["carried"], ["passed"], name="gate", domain=DOMAIN, number=gate),
            helper.make_node("Add", ["passed", "x"], ["more"]),
            helper.make_node("Identity", ["on"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", 7, []),
            helper.make_tensor_value_info("on", 9, []),
            helper.make_tensor_value_info("carried", 1, [2]),
        ],
        [helper.make_tensor_value_info("next", 9, []), helper.make_tensor_value_info("more", 1, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body, name="loop")],
        "endless",
        [helper.make_tensor_value_info("n", 7, []), helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_value_info("y", 1, [2])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return gx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10)), gate


@pytest.mark.parametrize("backend", ["cpu", "simulator"], indirect=True)
def test_loop_without_end_can_be_given_up(backend: Backend) -> None:
    model, gate = endless()
    x = np.array([1, 2], np.float32)
    feeds: dict[str, Any] = {"n": np.array(1 << 62), "x": x}
    with gx.Worker(model, backend=backend) as worker:
        run = worker.schedule(feeds)
        assert GATES.entered[gate].wait()
        assert run.cancel()
        GATES.open[gate].set()
        with pytest.raises(gx.CancelledError):
            run.wait()
        np.testing.assert_array_equal(worker.run({"n": np.array(3), "x": x})[0], 4 * x)
