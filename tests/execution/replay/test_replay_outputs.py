"""Outputs of a replay: bound memory, and refused overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.ir.spec import TensorSpec
from tests.devices.opening import make_simulator
from tests.execution.replay.replaying import SIMULATOR, Buffer, float32, read
from tests.model.small_models import affine, expect_affine, make_model, ramp, two_inputs


def test_outputs_stay_where_they_are_asked_to_lie_until_asked_otherwise() -> None:
    device = make_simulator()
    backend = Backend(device, SIMULATOR, "for a test")
    mine, y = device.create_stream(), Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(ramp(2, 3), stream=mine)
        for number, outputs in enumerate(({"y": y}, {}, {"y": None}, None)):
            made = replay.submit(ramp(2, 3) + number, outputs=outputs)["y"]
            assert (made._content.region.address == y.memory.address) == (number < 2)
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3) + number))
        got = y.read(mine)
        mine.synchronize()
        np.testing.assert_array_equal(got, expect_affine(ramp(2, 3) + 1))
    device.close()


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("z", (2, 3), np.float32, "There is no output 'z'; the model has y"),
        ("y", (3, 2), np.float32, r"Output 'y' is float32\[2,3\], got float32 of shape \(3, 2\)"),
        ("y", (2, 3), np.int32, r"Output 'y' is float32\[2,3\], got int32"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(name: str, shape: Any, dtype: Any, message: str) -> None:
    backend = open_backend(SIMULATOR)
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        with pytest.raises(gx.InputError, match=message):
            replay.submit(ramp(2, 3) + 1, outputs={name: Buffer(backend, TensorSpec(shape, np.dtype(dtype)))})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


def test_host_array_is_no_output_on_a_device() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker:
        replay = worker.record(ramp(2, 3))
        with pytest.raises(gx.InputError, match="it lies on the host"):
            replay.submit(outputs={"y": ramp(2, 3)})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


def test_input_in_the_bytes_of_an_output_is_refused_and_nothing_changes() -> None:
    backend = open_backend(SIMULATOR)
    own = Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        y = replay.submit()["y"]
        with pytest.raises(gx.InputError, match="'x' lies in the bytes of output 'y', which the run writes"):
            replay.submit(y)
        with pytest.raises(gx.InputError, match="'x' lies in the bytes of output 'y'"):
            replay.submit(own, outputs={"y": own})
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))
        made = replay.submit()["y"]
        assert made._content.region.address != own.memory.address
        np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3)))


def test_outputs_may_not_share_bytes() -> None:
    both = Buffer(open_backend(SIMULATOR), float32(2, 3))
    with gx.Worker(two_inputs(), backend=SIMULATOR) as worker:
        replay = worker.record([ramp(2, 3), ramp(2, 3)])
        with pytest.raises(gx.InputError, match="'sum' lies in the bytes of output 'difference'"):
            replay.submit(outputs={"sum": both, "difference": both})


def test_exported_output_is_not_written_again() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        kept = replay.submit()["y"]
        address = kept.__cuda_array_interface__["data"][0]
        made = replay.submit(ramp(2, 3) + 1)["y"]
        assert made.__cuda_array_interface__["data"][0] != address
        np.testing.assert_array_equal(kept.readback_and_clone(), expect_affine(ramp(2, 3)))


def test_two_arrays_that_take_turns_carry_a_state_on() -> None:
    """Nothing is waited for, and nothing copied: what one submission writes, the next one reads."""
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    mine, turns = device.create_stream(), [Buffer(backend, float32(2, 3)) for _ in range(2)]
    nodes = [helper.make_node("Add", ["x", "held"], ["total"]), helper.make_node("Neg", ["total"], ["y"])]
    model = make_model(nodes, {"x": (2, 3), "held": (2, 3)}, {"y": (2, 3), "total": (2, 3)})
    turns[0].write(mine, np.zeros((2, 3), np.float32))
    with gx.Worker(model, backend=backend) as worker, worker.record([(2, 3), (2, 3)], stream=mine) as replay:
        for number in range(5):
            one, other = turns[number % 2], turns[1 - number % 2]
            made = replay.submit({"x": ramp(2, 3), "held": one}, outputs={"total": other})
            np.testing.assert_array_equal(read(made), -(number + 1) * ramp(2, 3))
        assert worker.report().host_syncs == ()
    device.close()
