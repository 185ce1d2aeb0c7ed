"""Programs and models: other models within a program, and a program as a model that is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.importer import load_graph, run_oracle, to_model
from tests.model.tracing.test_program_refusals import ramp
from tests.model.tracing.tracing import check_devices, compute, trace

fn = gx.fn
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SPECS = {"x": ("float32", ("n", 4)), "y": ("float32", (4,))}
AFFINE = """<ir_version: 10, opset_import: ["": 18]> affine (float[n, 4] x) => (float[n, 2] y, float[n, 4] t)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { t = Relu (x)  y = MatMul (t, w) }"""


def test_forward_takes_a_model_in_and_leaves_it_as_it_is() -> None:
    model = gx.load(parser.parse_model(AFFINE))
    before = repr(model)
    weight = next(iter(model.info.graph.constants.values()))

    def function(x: Any) -> Any:
        first, inner = fn.forward(model, x)
        second, _ = fn.forward(model, x=inner * 2)
        return first + 1, second

    composed = gx.graph(function, model)
    relu = np.maximum(X, 0)
    check_devices(function, X, expected=[relu @ weight + 1, relu * 2 @ weight])
    assert repr(model) == before
    assert any(array is weight for array in composed.info.graph.constants.values())


def test_forward_takes_models_with_branches_and_sizes_of_their_own(tmp_path: Path) -> None:
    def choose(x: Any) -> Any:
        kept = x[x[:, 0] > 0]
        return fn.cond(kept.shape[0] > 1, lambda: kept * 2, lambda: x), fn.fori_loop(0, 3, lambda i, y: y + 1, x)

    inner = gx.graph(choose, [("float32", ("n", 4))])

    def function(x: Any) -> Any:
        first, more = fn.forward(inner, x)
        return first + 1, *fn.forward(inner, more)

    x = X + 3
    kept, others = x[x[:, 0] > 0], (x + 3)[(x + 3)[:, 0] > 0]
    expected = [kept * 2 + 1, others * 2, x + 6]
    model = trace(function, x, free=True)
    model.save(tmp_path / "composed.onnx")
    for each in (model, gx.load(tmp_path / "composed.onnx")):
        for got, wanted in zip(compute(each, x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    check_devices(function, x, expected=expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: fn.forward(m), "'x' is missing; its inputs are x"),
        (lambda m, x: fn.forward(m, x, x), "has 1 inputs, got 2 arrays"),
        (lambda m, x: fn.forward(m, x, z=x), "'z' is unknown or given twice"),
        (lambda m, x: fn.forward(m, x.astype("float16")), r"convert it by x.astype\('float32'\)"),
        (lambda m, x: fn.forward(m, x[:, :3]), r"Input x: float32\[n,4\] got "),
    ],
)
def test_forward_refuses_what_does_not_fit(call: Any, message: str) -> None:
    model = gx.load(parser.parse_model(AFFINE))
    with pytest.raises(gx.InputError, match=r"test_program_models.py:\d+: .*" + message):
        trace(lambda x: call(model, x), X)


def test_forward_refuses_memories() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[2] s, float[2] x) => (float[2] t) { t = Add (s, x) }'
    model = gx.load(parser.parse_model(text)).bind_state({"t": "s"})
    with pytest.raises(gx.InputError, match=r"has memories .*use bind_state on the result"):
        trace(lambda x: fn.forward(model, x), X[0, :2])


def test_a_program_is_saved_runs_elsewhere_and_loads_equal(tmp_path: Path) -> None:
    def function(x: Any, y: Any) -> Any:
        z = x[::-1, 1:] * y[1:] + fn.gelu(x[:, :3])
        return {"z": z, "best": fn.top_k(z, 2)[1], "kept": z[z > 0], "mean": z.mean(0) / x.shape[0]}

    model = gx.graph(function, SPECS)
    model.save(tmp_path / "program.onnx")
    again = gx.load(tmp_path / "program.onnx")
    assert [str(port) for port in again.inputs] == [str(port) for port in model.inputs]
    assert [str(node) for node in again.graph.nodes] == [str(node) for node in model.graph.nodes]
    inputs = {"x": X, "y": X[1]}
    _, oracle = run_oracle(to_model(load_graph(tmp_path / "program.onnx").graph), inputs)
    for port, ours, theirs in zip(
        model.outputs, compute(model, *inputs.values()), compute(again, X, X[1]), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(oracle[port.name], ours, rtol=1e-5, atol=1e-6)


def test_a_program_file_and_states_are_made_of_it(tmp_path: Path) -> None:
    model = gx.graph(lambda total, x: {"left": total + x}, {"total": ("float32", (4,)), "x": ("float32", (4,))})
    with gx.Worker(model.bind_state({"left": "total"}), backend=gx.BackendType.CPU) as worker:
        for _ in range(3):
            worker.schedule(X[0])
        np.testing.assert_array_equal(worker.state.get("total"), X[0] * 3)
    gx.Program.build({"forward": model}).save(tmp_path / "program.gxp")
    method = gx.Program.load(gx.FileDataLoader(tmp_path / "program.gxp")).load_method("forward")
    for index, array in enumerate((X[0], X[1])):
        method.set_input(index, array)
    method.execute()
    np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), X[0] + X[1])


def test_what_may_be_cut_to_less_is_no_named_extent() -> None:
    def function(x: Any) -> Any:
        top = fn.maximum(x.shape[0], 100_000)
        return x[:100], x[:16_000], x[-100_000:], fn.zeros((top,)), x[:-1]

    model = gx.graph(function, {"x": ("float32", ("n",))})
    assert [port.spec.dims for port in model.outputs] == [(None,)] * 5
    (_, cut, *_) = compute(model, ramp(20_000))
    assert cut.shape == (16_000,)


def test_dimensions_that_no_input_names_are_refused() -> None:
    with pytest.raises(gx.InputError, match="no dimension 'm'; it has n"):
        gx.graph(lambda x: x, {"x": ("float32", ("n", "k"))}, dims={"k": 2, "m": 3})


def test_many_sizes_that_only_a_run_knows_are_distinguished() -> None:
    model = gx.graph(lambda x: sum(x[x > i].sum() for i in range(200)), {"x": ("float32", ("n",))})
    (got,) = compute(model, ramp(9))
    assert got == sum(i * i for i in range(9))


def test_an_output_that_nobody_reads_is_saved_with_a_name(tmp_path: Path) -> None:
    for function in (fn.sort, fn.argsort):
        trace(function, X, free=True).save(tmp_path / "model.onnx")
        onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)


def test_nodes_report_the_line_they_come_from() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return y * y

    line = function.__code__.co_firstlineno
    names = [node.name for node in trace(function, X).graph.nodes]
    assert names == [f"test_program_models.py:{line + 1} Add", f"test_program_models.py:{line + 2} Mul"]


def test_what_is_done_twice_is_there_once() -> None:
    model = trace(lambda x: (x + 1) * (x + 1) + fn.exp(x) * 0 + (fn.exp(x), x - 9)[0], X)
    assert [node.operator.name for node in model.info.graph.nodes].count("Exp") == 1
    assert "Sub" not in [node.operator.name for node in model.info.graph.nodes]


def test_a_weight_used_twice_is_there_once_as_it_was_at_each_use() -> None:
    weight = np.arange(400, dtype=np.float32).reshape(4, 100)

    def function(x: Any) -> Any:
        first = x @ weight + (x * 2) @ weight
        weight[0] = 7
        return first, x @ weight

    before = weight.copy()
    model = trace(function, X)
    assert sum(array.shape == (4, 100) for array in model.info.graph.constants.values()) == 2
    for got, wanted in zip(compute(model, X), (X @ before * 3, X @ weight), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
