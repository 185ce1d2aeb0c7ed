"""Numeric gap by layer: zero without faults, accumulated behind one, and at the right layer alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
import pytest

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.execution.debugging.references import keep_all
from tests.execution.debugging.models import X, parse, wrong_tanh
from tests.model.small_models import CPU
from tests.model.state_models import running_sum

SIMULATOR = gx.BackendType.SIMULATOR
on_both = pytest.mark.parametrize("backend", [CPU, SIMULATOR])
everybody = pytest.mark.parametrize("against", [CPU, "onnxruntime", "reference"])


@on_both
@everybody
def test_a_model_that_is_right_is_close_everywhere(backend: gx.BackendType, against: gx.BackendType | str) -> None:
    report = gx.measure_gap(gx.load(parse()), X, backend, against)
    assert [(row.node, row.operator, row.value) for row in report.rows] == [
        ("first", "MatMul", "a"),
        ("tanh", "Tanh", "b"),
        ("second", "MatMul", "c"),
        ("softmax", "Softmax", "y"),
    ]
    for row in report.rows:
        assert row.accumulated is not None and row.alone is not None
        assert row.accumulated.share < 0.1 and row.alone.share < 0.1
        assert row.accumulated.size == row.alone.size > 0
    assert report.is_close
    assert list(report.outputs) == ["y"]


@on_both
@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_a_wrong_layer_is_off_alone_and_its_error_goes_on(
    backend: gx.BackendType, against: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with wrong_tanh(monkeypatch):
        report = gx.measure_gap(gx.load(parse()), X, backend, against)
    alone = {row.node: row.alone.is_close for row in report.rows if row.alone is not None}
    along = {row.node: row.accumulated.is_close for row in report.rows if row.accumulated is not None}
    assert alone == {"first": True, "tanh": False, "second": True, "softmax": True}
    assert along == {"first": True, "tanh": False, "second": False, "softmax": False}
    assert not report.is_close
    (worst,) = report.worst()
    assert worst.node == "tanh"
    a = X @ np.array(onnx.numpy_helper.to_array(parse().graph.initializer[0]))
    assert worst.alone is not None
    assert worst.alone.max_abs == pytest.approx(np.abs(a - np.tanh(a)).max(), rel=1e-5)


@on_both
def test_a_model_with_other_weights_is_measured_against_the_first(backend: gx.BackendType) -> None:
    model = gx.load(parse())
    changed = gx.load(_halve_second_weight(parse()))
    report = gx.measure_gap(changed, X, backend, model)
    rows = {row.node: row for row in report.rows}
    first, second, last = (rows[name].accumulated for name in ("first", "second", "softmax"))
    assert first is not None and second is not None and last is not None
    assert first.max_abs == 0
    assert second.max_rel == pytest.approx(0.5)
    assert second.snr_db == pytest.approx(20 * np.log10(2))
    assert last.max_abs > 0
    assert rows["softmax"].alone is not None and rows["softmax"].alone.is_close
    assert rows["second"].alone is not None and not rows["second"].alone.is_close


LOOP = """
<ir_version: 10, opset_import: ["": 18]>
agraph (float[2] x) => (float[2] y) <int64 trips = {3}, bool yes = {1}, float two = {2}> {
  y = Loop (trips, yes, x) <body = walk (int64 i, bool c, float[2] v) => (bool c_out, float[2] v_out) {
    c_out = Identity (c)
    v_out = Mul (v, two)
  }>
}
"""


@on_both
def test_a_body_has_a_row_for_each_trip(backend: gx.BackendType) -> None:
    model = gx.load(onnx.parser.parse_model(LOOP))
    x = np.array([1, 3], np.float32)
    report = gx.measure_gap(model, [x], backend, CPU)
    rows = [row for row in report.rows if row.value == "v_out"]
    assert [row.accumulated.max_abs for row in rows if row.accumulated is not None] == [0, 0, 0]
    history = keep_all(model, {"x": x}, open_backend(backend))
    np.testing.assert_array_equal(history["v_out"], [2 * x, 4 * x, 8 * x])


RANDOM = """
<ir_version: 10, opset_import: ["": 20]>
agraph (float[n] x) => (float[n] y) {
  r = RandomNormalLike (x)
  y = Add (x, r)
}
"""


@on_both
def test_models_that_draw_random_numbers_draw_alike_on_both_sides(backend: gx.BackendType) -> None:
    model, x = gx.load(onnx.parser.parse_model(RANDOM)), np.ones(1000, np.float32)
    for against in (CPU, gx.load(onnx.parser.parse_model(RANDOM))):
        report = gx.measure_gap(model, x, backend, against)
        assert report.is_close
        assert {row.value for row in report.rows} >= {"r", "y"}
    with pytest.raises(gx.InputError, match="draws random numbers"):
        gx.bisect(onnx.parser.parse_model(RANDOM), x, backend=backend)


HALF = """
<ir_version: 10, opset_import: ["": 18]>
agraph (float[n, 64] x) => (float[n, 64] y) {
  a = Cast <to = 10> (x)
  b = MatMul (a, w)
  c = Softmax (b)
  d = MatMul (c, w)
  e = LayerNormalization (d, s)
  y = Cast <to = 1> (e)
}
"""


def half_model(scale: float = 1.0) -> gx.Model:
    model = onnx.parser.parse_model(HALF)
    w = np.random.default_rng(0).normal(0, 0.3, (64, 64)) * scale
    for name, array in (("w", w), ("s", np.ones(64))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float16), name))
    return gx.load(model)


@on_both
def test_roundings_of_half_may_add_up(backend: gx.BackendType) -> None:
    x = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float32)
    report = gx.measure_gap(half_model(), x, backend, "onnxruntime")
    assert report.is_close and max(gap.share for gap in report.outputs.values()) > 0
    assert not gx.measure_gap(half_model(), x, backend, "onnxruntime", rtol=1e-3, atol=1e-5).is_close
    assert not gx.measure_gap(half_model(1.05), x, backend, half_model()).is_close


def test_the_table_has_a_line_for_each_layer_and_a_gap_can_be_missing() -> None:
    report = gx.measure_gap(gx.load(parse()), {"x": X}, CPU, CPU)
    lines = str(report).splitlines()
    assert lines[0] == "cpu against NumPy"
    assert lines[1].split()[:3] == ["layer", "operator", "value"]
    assert [line.split()[0] for line in lines[2:]] == ["first", "tanh", "second", "softmax", "output"]
    rows = tuple([replace(row, accumulated=None, alone=None) for row in report.rows])
    assert str(replace(report, rows=rows)).splitlines()[2].split() == ["first", "MatMul", "a"]


def test_what_can_not_be_measured_is_refused() -> None:
    model = gx.load(parse())
    with pytest.raises(gx.InputError, match=r"'onnxruntime', 'reference' or a Model, got <BackendType\.SIMULATOR"):
        gx.measure_gap(model, X, CPU, SIMULATOR)
    with pytest.raises(gx.InputError, match="The engine is one of onnxruntime, reference, got 'torch'"):
        gx.measure_gap(model, X, CPU, "torch")
    with pytest.raises(gx.InputError, match=r"takes 1 inputs \(x\), got 2"):
        gx.measure_gap(model, [X, X], CPU)
    with pytest.raises(gx.InputError, match=r"has memories \(held\)"):
        gx.measure_gap(running_sum(), X, CPU)


def _halve_second_weight(proto: onnx.ModelProto) -> onnx.ModelProto:
    weight = onnx.numpy_helper.to_array(proto.graph.initializer[1])
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(weight * np.float32(0.5), "v"))
    return proto
