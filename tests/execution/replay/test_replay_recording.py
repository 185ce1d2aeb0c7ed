"""Recording of replays: streams of submissions, and content that plans follow from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import parser

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel)
from gpuexec.devices.backend import Backend
from tests.execution.held import holding
from tests.model.host_value_cases import ints, put_on_device
from tests.model.small_models import affine, expect_affine, ramp

X = ramp(2, 3)
Y = expect_affine(X)


def load(text: str) -> gx.Model:
    return gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {text}'))


@pytest.mark.feature("S32")
def test_a_submission_is_in_the_order_of_the_stream_it_is_put_on(backend: Backend) -> None:
    with gx.Worker(affine(), backend=backend) as worker, worker.record((2, 3)) as replay:
        mine = backend.device.create_stream()
        with holding(mine) as gate:
            made = replay.submit(X, stream=mine)["y"]
            assert not made.is_done()
            np.testing.assert_array_equal(worker.run(X + 1)[0], expect_affine(X + 1))  # on its own stream still
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), Y)


LOOP = """(float[k] x, int64 n) => (float[k] y) {
  y = Loop (n, "", x) <body = b (int64 i, bool go, float[k] v) => (bool on, float[k] w) {
    on = Identity (go) w = Add (v, v)
  }>
}"""
READ = "(float[k] x) => (int64[1, m] y) { a = Neg (x) y = NonZero (a) }"


@pytest.mark.feature("S35")
@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (READ, {"x": (5,)}, "is read for NonZero"),
        (LOOP, {"x": (5,), "n": np.array(3)}, "Loop.* is driven by the host"),
    ],
    ids=["read", "loop"],
)
def test_what_the_host_has_a_say_in_is_refused_with_the_reason(
    text: str, given: dict[str, Any], message: str, backend: Backend
) -> None:
    with gx.Worker(load(text), backend=backend) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=message):
            worker.record(given)
        # The Worker runs it all the same.
        x = np.array([0, 1, 0, 2, 3], np.float32)
        got = worker.run({**given, "x": x})[0]
        np.testing.assert_array_equal(got, np.stack(np.nonzero(x)) if text is READ else 8 * x)


@pytest.mark.feature("S35")
def test_content_that_the_plan_follows_from_is_part_of_the_recording(backend: Backend) -> None:
    text = "(float[n] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"
    with gx.Worker(load(text), backend=backend) as worker, worker.record({"x": ramp(6), "shape": ints(2, 3)}) as replay:
        np.testing.assert_array_equal(replay.submit({"x": ramp(6) + 1})["y"].readback_and_clone(), X + 1)
        for other in (ints(3, 2), put_on_device(ints(2, 3), backend)):
            with pytest.raises(gx.InputError, match=r"'shape' was recorded as \[2 3\]"):
                replay.submit({"shape": other})
