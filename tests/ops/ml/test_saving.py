"""Round trip of ai.onnx.ml operators through ONNX files and program files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, TypeProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.ir.operator import operator_names
from gpuexec.ir.spec import STRING, TensorSpec, dtype_row, is_container
from tests.model.objects import are_equal
from tests.ops.calls import ML_CALLS
from tests.ops.harness import Case, build_operator
from tests.ops.ml.cases import DOMAIN, ml
from tests.ops.objects import tensor

WORDS = np.array(["b", "a"], STRING)
CLASSES = ["a", "b"]
SCORES = np.array([[0.25, 0.75]], np.float32)
OLD = ml("places of words", "LabelEncoder", WORDS, classes_strings=CLASSES, default_int64=7)
# What some take follows from their attributes, so that a row of floats is nothing for them.
CHOSEN = {case.op for case in ML_CALLS if case.id != case.op}
CASES = [
    *(case for case in ML_CALLS if case.id != case.op or case.op not in CHOSEN),
    OLD,
    ml("extract", "ArrayFeatureExtractor", np.arange(6.0).reshape(2, 3), np.array([0, 2])),
    ml("words at places", "LabelEncoder", np.array([1, 5]), classes_strings=CLASSES, default_string="?"),
    ml("words of words", "LabelEncoder", WORDS, keys_strings=["a"], values_strings=["x"]),
    ml("named", "ZipMap", SCORES, classlabels_strings=CLASSES),
]
# Types of containers, which arrays don't tell.
GIVEN = {
    "CastMap": helper.make_map_type_proto(TensorProto.INT64, tensor(TensorProto.FLOAT)),
    "DictVectorizer": helper.make_map_type_proto(TensorProto.STRING, tensor(TensorProto.INT64)),
}
FEEDS = {"CastMap": {1: np.float32(1)}, "DictVectorizer": {"a": np.int64(1)}}


def write_type(case: Case, spec: TensorSpec) -> TypeProto:
    if not is_container(spec.dtype):
        return tensor(dtype_row(spec.dtype).code)
    if case.op in GIVEN:
        return GIVEN[case.op]
    key = TensorProto.STRING if "classlabels_strings" in case.attributes else TensorProto.INT64
    return helper.make_sequence_type_proto(helper.make_map_type_proto(key, tensor(TensorProto.FLOAT)))


def load(case: Case) -> gx.Model:
    """Return a model of the case's node, followed by nothing."""
    op, inputs = build_operator(case)
    specs = [TensorSpec.of(x) for x in inputs if x is not None]
    made = op.infer(*specs)
    attributes = {
        key: numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
        for key, value in case.attributes.items()
    }
    names, results = [f"x{i}" for i in range(len(specs))], [f"y{i}" for i in range(len(made))]
    graph = helper.make_graph(
        [helper.make_node(case.op, names, results, "node", domain=DOMAIN, **attributes)],
        "saved",
        [helper.make_value_info(name, write_type(case, spec)) for name, spec in zip(names, specs, strict=True)],
        [helper.make_value_info(name, write_type(case, spec)) for name, spec in zip(results, made, strict=True)],
    )
    opset = 1 if "classes_strings" in case.attributes else 5
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, opset)]
    return gx.load(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def feed(case: Case) -> dict[str, Any]:
    return {f"x{i}": x for i, x in enumerate((FEEDS[case.op],) if case.op in FEEDS else case.inputs)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.id}")
def test_what_is_saved_comes_back(case: Case, tmp_path: Path) -> None:
    model = load(case)
    model.save(tmp_path / "model.onnx")
    gx.Program.build({"forward": model}).save(tmp_path / "model.gxp")
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        expected = run(worker, case)
    with gx.Worker(gx.load(tmp_path / "model.onnx"), backend=gx.BackendType.CPU) as worker:
        assert are_equal(run(worker, case), expected)
    with gx.Module(tmp_path / "model.gxp", backend=gx.BackendType.CPU) as module:
        assert are_equal(list(module.forward(feed(case))), expected)


def run(worker: gx.Worker, case: Case) -> list[Any]:
    return [y.readback_and_clone() for y in worker.schedule(feed(case)).outputs.values()]


def test_every_operator_has_a_case() -> None:
    known = {name.removeprefix(f"{DOMAIN}.") for name in operator_names() if name.startswith(f"{DOMAIN}.")}
    assert {case.op for case in CASES} == known


def test_operators_of_two_ages_are_saved_if_a_version_has_both(tmp_path: Path) -> None:
    places = load(OLD).rename({"x0": "words", "y0": "places"})
    scaled = places.append(load(ml("", "Binarizer", np.array([1]))))
    scaled.save(tmp_path / "both.onnx")
    assert [each.version for each in onnx.load(tmp_path / "both.onnx").opset_import if each.domain == DOMAIN] == [1]
    newer = load(ml("", "LabelEncoder", np.array([1]), keys_int64s=[0], values_int64s=[1]))
    with pytest.raises(gx.GpuexecError, match=f"'node.*attribute classes_strings.* no form in opset 4 of {DOMAIN}"):
        places.append(newer).save(tmp_path / "none.onnx")
