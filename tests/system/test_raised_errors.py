"""Raised errors: ExecuTorch's codes, pickling, node and value."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.errors import ErrorCode, GpuexecError
from tests.model.small_models import GATES, affine, gated, make_model, ramp

CODES = {
    gx.ModelError: 0x23,
    gx.UnsupportedError: 0x14,
    gx.InputError: 0x12,
    gx.StateError: 0x02,
    gx.StaleError: 0x02,
    gx.ClosedError: 0x02,
    gx.DeviceError: 0x22,
    gx.DeviceNotFoundError: 0x20,
    gx.OutOfMemoryError: 0x21,
    gx.GpuexecError: 0x01,
}


@pytest.mark.feature("E79")
@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_errors_have_executorchs_codes_and_cross_borders(kind: type[GpuexecError]) -> None:
    error = kind("what is wrong", node="conv1", value="w")
    assert error.code == CODES[kind] and isinstance(error.code, ErrorCode) and isinstance(error, gx.GpuexecError)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.node, copy.value, copy.code) == (
        *(kind, "what is wrong", "conv1", "w"),
        error.code,
    )


@pytest.mark.feature("E79")
def test_errors_are_pythons_own_kinds_too() -> None:
    for kind, base in ((gx.InputError, ValueError), (gx.StateError, RuntimeError), (gx.OutOfMemoryError, MemoryError)):
        assert issubclass(kind, base)


@pytest.mark.feature("E79", "E62")
def test_errors_name_node_value_expected_and_got(backend: Backend) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"], name="product")]
    model = make_model(nodes, {"x": ("n", "k")}, {"y": ("n", 5)}, w=ramp(4, 5))
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(
            gx.InputError, match=r"MatMul 'product' \(%a: float32\[2,3\], %w: float32\[4,5\]\)"
        ) as caught:
            worker.schedule(ramp(2, 3))
        assert caught.value.node == "product"
        assert worker.run(ramp(2, 4))[0].shape == (2, 5)


@pytest.mark.feature("E79")
def test_errors_of_a_run_come_to_whoever_asks(backend: Backend) -> None:
    from tests.model.staged_models import MODELS, inputs

    with gx.Worker(MODELS["if"].load(), backend=backend) as worker:
        with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError) as caught:
            worker.schedule(inputs(0)).wait()
        assert caught.value.code == 0x02
    model, number = gated()
    GATES.open[number].set()
    GATES.failures[number] = MemoryError("none left")
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        run = worker.schedule(ramp(2, 3))
        asks: tuple[Any, ...] = (run.wait, run.peek_output().readback_and_clone, run.peek_output().readback_request)
        for ask in asks[:2]:
            with pytest.raises(gx.OutOfMemoryError, match="gate"):
                ask()


@pytest.mark.feature("E47", "B26")
def test_an_error_before_any_work_changes_nothing(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        for wrong in (ramp(2, 4), {"z": ramp(2, 3)}, [ramp(2, 3), ramp(2, 3)]):
            with pytest.raises(gx.InputError):
                worker.schedule(wrong)
        assert y.readback_and_clone().shape == (2, 3) and worker.report().runs == 1
