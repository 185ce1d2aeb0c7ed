"""Placement of nodes: host values, host fallback, host reads, and reports of them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.ir.operator import Operator, find_operator, operator_names
from tests.devices.backends import on
from tests.model.control_models import ControlModel
from tests.model.host_value_cases import TERMS
from tests.model.small_models import affine, expect_affine, make_model, ramp, trace
from tests.model.staged_models import MODELS, inputs

X = ramp(6)


def load(text: str) -> gx.Model:
    return gx.load(ControlModel(text, (), 21).parse())


@pytest.mark.feature("B16", "S66", "T4")
@on("simulator")
def test_a_missing_kernel_is_numpys_and_in_the_report(backend: Backend) -> None:
    staged = MODELS["host call"]
    with gx.Worker(staged.load(), backend=backend) as worker:
        for number in range(2):
            staged.check(inputs(number), worker.run(inputs(number)))
        (row,) = worker.report().host_calls
        assert (row.operator, row.node, row.times) == ("test.NoKernel", "NoKernel_1", 2)
        assert row.why == "no lowering for this device" and row.computed_ms > 0
        assert "NoKernel_1" in worker.summary()


@pytest.mark.feature("S64")
@on("cpu")
def test_nothing_is_a_fallback_on_the_cpu(backend: Backend) -> None:
    staged = MODELS["host call"]
    with gx.Worker(staged.load(), backend=backend, strict=True) as worker:
        staged.check(inputs(0), worker.run(inputs(0)))
        assert worker.report().host_calls == worker.report().host_reads == ()
        assert len(worker.plans) == 1


@pytest.mark.feature("S66")
def test_every_operator_has_a_numpy_form() -> None:
    found = {name: find_operator(name) for name in operator_names()}
    # Tests register operators of their own.
    kinds = {name: kind for name, kind in found.items() if kind is None or kind.__module__.startswith("gpuexec.")}
    lacking = {name for name, kind in kinds.items() if kind is not None and kind.compute is Operator.compute}
    assert lacking <= {"If", "Loop", "Scan"}  # the host drives those over planned bodies
    assert len(kinds) > 140


@pytest.mark.feature("S65")
@on("tracer")
def test_shape_and_size_never_touch_the_data(backend: Backend) -> None:
    text = "(float[n, m] x) => (int64[2] s, int64 z) { y = Neg (x) s = Shape (y) z = Size (y) }"
    with gx.Worker(load(text), backend=backend, strict=True) as worker:
        worker.schedule(ramp(4, 3))
        (plan,) = worker.plans
        assert plan.inputs[0].buffer is None
        assert not any("Neg" in str(kernel) for kernel in plan.kernels())
        assert "copy_to_host" not in trace(backend)


@pytest.mark.feature("S65")
def test_shape_and_size_are_right(backend: Backend) -> None:
    text = """(float[n, m] x) => (int64[2] s, int64 z) { y = Neg (x) s = Shape (y) z = Size (y) }"""
    with gx.Worker(load(text), backend=backend, strict=True) as worker:
        for rows in (4, 2, 0):
            s, z = worker.run(ramp(rows, 3))
            assert (s.tolist(), int(z)) == ([rows, 3], 3 * rows)


@pytest.mark.feature("S36")
def test_what_the_host_reads_stays_on_the_device_for_later_layers(backend: Backend) -> None:
    text = """(float[n] x, float[m, k] w) => (float[a, b] y, float[r] z) <int64[1] last = {-1}, int64 one = {1}> {
      sums = ReduceSum <keepdims = 0> (w, last)
      whole = Cast <to = 7> (sums)
      y = Reshape (x, whole)
      z = Neg (sums)
    }"""
    w = np.zeros((2, TERMS), np.float32)
    w[:, 3] = (2, 3)
    with gx.Worker(load(text), backend=backend) as worker:
        for _ in range(2):
            y, z = worker.run({"x": X, "w": w})
            np.testing.assert_array_equal(y, X.reshape(2, 3))
            np.testing.assert_array_equal(z, [-2, -3])


@pytest.mark.feature("B46")
def test_operators_of_several_outputs_are_ordinary(backend: Backend) -> None:
    text = """(float[n, 6] x) => (float[n, 2] top, int64[n, 2] at, float[n, 4] left, float[n, 2] right)
    <int64[1] two = {2}, int64[2] sizes = {4, 2}> {
      top, at = TopK (x, two) left, right = Split <axis = 1> (x, sizes)
    }"""
    x = np.random.default_rng(3).permutation(18).reshape(3, 6).astype(np.float32)
    with gx.Worker(load(text), backend=backend) as worker:
        top, at, left, right = worker.run(x)
    order = np.argsort(-x, axis=1)[:, :2]
    np.testing.assert_array_equal(at, order)
    np.testing.assert_array_equal(top, np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(np.concatenate([left, right], 1), x)


@pytest.mark.feature("B46")
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_of_any_kind_run(kind: str, backend: Backend) -> None:
    import onnxruntime

    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    random = np.random.default_rng(1)
    w = random.normal(size=(1, gates * 5, 3)).astype(np.float32)
    r = random.normal(size=(1, gates * 5, 5)).astype(np.float32)
    node = helper.make_node(kind, ["x", "w", "r"], ["y", "h"], hidden_size=5)
    model = make_model([node], {"x": (4, 2, 3)}, {"y": (4, 1, 2, 5), "h": (1, 2, 5)}, w=w, r=r)
    graph = helper.make_graph(
        [node],
        "cell",
        [helper.make_tensor_value_info("x", 1, (4, 2, 3))],
        [helper.make_tensor_value_info(name, 1, None) for name in ("y", "h")],
        [helper.make_tensor(name, 1, a.shape, a.tobytes(), raw=True) for name, a in (("w", w), ("r", r))],
    )
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = random.normal(size=(4, 2, 3)).astype(np.float32)
    session = onnxruntime.InferenceSession(source.SerializeToString(), providers=["CPUExecutionProvider"])
    with gx.Worker(model, backend=backend) as worker:
        for got, expected in zip(worker.run(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.feature("E61")
@pytest.mark.parametrize("name", ["if", "loop", "scan", "many"])
def test_branches_and_loops_run_on_few_instructions(name: str, backend: Backend) -> None:
    staged = MODELS[name]
    with gx.Worker(staged.load(), backend=backend) as worker:
        for number in range(3):
            run = worker.schedule(inputs(number))
            staged.check(inputs(number), [tensor.readback_and_clone() for tensor in run.outputs.values()])
        kinds = {type(command).__name__ for plan in worker.plans for command in plan.segment.commands}
    assert kinds <= {"Launch", "Copy", "Fill", "HostCall"}


@pytest.mark.feature("S27")
def test_workers_on_two_backends_don_t_disturb_each_other(backend: Backend) -> None:
    model = affine()
    other = open_backend(gx.BackendType.CPU)
    with gx.Worker(model, backend=backend) as one:
        y = one.schedule(ramp(2, 3)).peek_output()
        with gx.Worker(model, backend=other) as two:
            two.run(ramp(4, 3))
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))


@pytest.mark.feature("B10")
@pytest.mark.parametrize("code", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_half_weights_and_activations_are_summed_in_float(code: int, backend: Backend) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(code)
    x, w = np.full((1, 4096), 1, dtype), np.full((4096, 1), 0.25, dtype)
    w[0] = 512  # in half, 512 + 0.25 is 512 again
    model = make_model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (1, 4096)}, {"y": (1, 1)}, code, w=w)
    with gx.Worker(model, backend=backend) as worker:
        y = worker.run(x)[0]
    assert isinstance(y, np.ndarray) and y.dtype == dtype
    assert y.item() == np.asarray(512 + 4095 * 0.25, dtype).item()
