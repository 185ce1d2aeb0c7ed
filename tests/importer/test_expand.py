"""Function expansion: functions of the model, and operators that ONNX defines by a body."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from gpuexec.errors import InputError, ModelError, UnsupportedError
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.ir import operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.control.interpret import infer_graph

HEAD = '<ir_version: 10, opset_import: ["": 18, "loc": 1]>'


def load_and_compare(model: onnx.ModelProto, **feeds: np.ndarray) -> list[str]:
    """Return the operators of the graph, after checking that it computes what the model does."""
    graph = load_graph(model).graph
    _, expected = run_oracle(model, feeds)
    _, got = run_oracle(to_model(graph), feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)
    return [node.operator.name for node in graph.nodes]


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def test_function_of_the_model_is_expanded_at_every_call() -> None:
    model = parser.parse_model(
        HEAD + "agraph (float[3, 4] x) => (float[3, 4] y) { t = loc.twice (x) y = loc.twice (t) }"
        '<domain: "loc", opset_import: ["": 18]> twice (a) => (b) { c = Add (a, a) b = Neg (c) }'
    )
    assert load_and_compare(model, x=X) == ["Add", "Neg", "Add", "Neg"]


def test_function_in_a_function_is_expanded() -> None:
    model = parser.parse_model(
        HEAD + "agraph (float[3, 4] x) => (float[3, 4] y) { y = loc.outer (x) }"
        '<domain: "loc", opset_import: ["": 18, "loc": 1]> outer (a) => (b) { c = loc.inner (a) b = Abs (c) }'
        '<domain: "loc", opset_import: ["": 18]> inner (a) => (b) { b = Neg (a) }'
    )
    assert load_and_compare(model, x=X) == ["Neg", "Abs"]


def test_attribute_of_the_call_reaches_the_body() -> None:
    model = parser.parse_model(
        HEAD + "agraph (float[3, 4] x) => (float[4, 3] y) { y = loc.turn <order = [1, 0]> (x) }"
        '<domain: "loc", opset_import: ["": 18]> turn <order> (a) => (b) { b = Transpose <perm: ints = @order> (a) }'
    )
    assert load_and_compare(model, x=X) == ["Transpose"]


def test_function_of_another_opset_is_converted() -> None:
    model = parser.parse_model(
        HEAD + "agraph (float[1, 4] x) => (float[4] y) { y = loc.flat (x) }"
        '<domain: "loc", opset_import: ["": 11]> flat (a) => (b) { b = Squeeze <axes = [0]> (a) }'
    )
    assert load_and_compare(model, x=X[:1]) == ["Squeeze"]


def test_recursive_function_is_refused() -> None:
    model = parser.parse_model(
        HEAD + "agraph (float[1, 4] x) => (float[1, 4] y) { y = loc.again (x) }"
        '<domain: "loc", opset_import: ["": 18, "loc": 1]> again (a) => (b) { b = loc.again (a) }'
    )
    with pytest.raises(ModelError, match="calls itself: 'again' calls 'again'"):
        load_graph(model)


def test_weights_stay_out_of_the_way_of_function_names() -> None:
    model = parser.parse_model(
        HEAD
        + "agraph (float[3, 4] x) => (float[3, 4] y) <float[3, 4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float c__1 = {2}> "
        "{ t = loc.half (x) u = Mul (t, w) y = Add (u, c__1) }"
        '<domain: "loc", opset_import: ["": 18]> half (a) => (b) { c = Constant <value_float = 0.5> () b = Mul (a, c) }'
    )
    assert load_and_compare(model, x=X) == ["Mul", "Mul", "Add"]


@pytest.mark.parametrize(
    ("op_type", "opset", "attributes", "is_context_dependent"),
    [
        ("MeanVarianceNormalization", 13, {"axes": [0, 1]}, False),
        ("MeanVarianceNormalization", 18, {"axes": [1]}, False),
        ("Celu", 12, {"alpha": 2.0}, True),
        ("Celu", 22, {"alpha": 2.0}, True),
    ],
)
def test_operator_that_is_not_registered_is_expanded_by_its_schema(
    op_type: str, opset: int, attributes: dict[str, object], is_context_dependent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != op_type})
    schema = onnx.defs.get_schema(op_type, opset, "")
    assert schema.has_context_dependent_function is is_context_dependent
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Neg", ["x"], ["t"]), helper.make_node(op_type, ["t"], ["y"], **attributes)],
            "agraph",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [3, 4])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3, 4])],
        ),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=8,
    )
    assert op_type not in load_and_compare(model, x=X)


def test_default_of_an_attribute_reaches_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {k: v for k, v in operator._OPERATORS.items() if k != "MeanVarianceNormalization"}
    monkeypatch.setattr(operator, "_OPERATORS", others)
    model = parser.parse_model(
        HEAD + "agraph (float[2, 3, 2, 2] x) => (float[2, 3, 2, 2] y) { y = MeanVarianceNormalization (x) }"
    )
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 2, 2) ** 2
    assert "ReduceMean" in load_and_compare(model, x=x)


def test_node_that_leaves_out_an_input_between_others_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != "Attention"})
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]>'
        "agraph (float[1, 2, 3, 4] x, float[1, 2, 5, 4] past) => (float[1, 2, 3, 4] y, float[1, 2, 8, 4] keys)"
        "{ q = Neg (x) y, keys, values = Attention <is_causal = 1> (q, x, x, , past, past) }"
    )
    generator = np.random.default_rng(0)
    feeds = {"x": generator.normal(size=(1, 2, 3, 4)), "past": generator.normal(size=(1, 2, 5, 4))}
    assert "Attention" not in load_and_compare(model, **{name: x.astype(np.float32) for name, x in feeds.items()})


def test_type_of_a_large_weight_is_known_to_the_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != "Celu"})
    model = parser.parse_model(
        HEAD
        + "agraph (float[3, 4] x) => (float[3, 4] y) { c = Celu (w) s = ReduceSum <keepdims = 0> (c) y = Add (x, s) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(np.linspace(-1, 1, 200, dtype=np.float32), "w"))
    assert "Celu" not in load_and_compare(model, x=X)


def test_body_with_an_operator_that_is_missing_reports_that_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != "Neg"})
    model = parser.parse_model(
        HEAD + "agraph (float[3, 4] x) => (float[3, 4] y) { y = loc.minus (x) }"
        '<domain: "loc", opset_import: ["": 18]> minus (a) => (b) { b = Neg (a) }'
    )
    with pytest.raises(UnsupportedError, match=r"operator Neg: 1 \("):
        load_graph(model)


def test_operator_whose_body_can_not_be_had_is_reported_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_OPERATORS", {k: v for k, v in operator._OPERATORS.items() if k != "Celu"})
    model = parser.parse_model(HEAD + "agraph (float[3, 4] x) => (float[3, 4] y) { t = loc.unknown (x) y = Celu (t) }")
    with pytest.raises(UnsupportedError) as caught:
        load_graph(model)
    assert "operator unknown (loc 1): 1" in str(caught.value)
    assert "operator Celu: 1" in str(caught.value)


def test_errors_of_an_expanded_node_name_the_node_of_the_model() -> None:
    kinds = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["b", "h", n, f"{n}d"]) for n in ("q", "k", "v")]
    scores = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("s", "t")]
    body = helper.make_graph([helper.make_node("Neg", ["s"], ["t"])], "negate", scores[:1], scores[1:])
    nodes = [
        helper.make_node("Relu", ["q"], ["r"], "relu"),
        helper.make_node("FlexAttention", ["r", "k", "v"], ["y"], "first", None, "ai.onnx.preview", score_mod=body),
        helper.make_node("FlexAttention", ["y", "k", "v"], ["z"], "second", None, "ai.onnx.preview", score_mod=body),
    ]
    out = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    model = helper.make_model(helper.make_graph(nodes, "two", kinds, [out]), opset_imports=opsets, ir_version=11)
    graph = load_graph(model).graph
    wholes = dict.fromkeys(node.part_of for node in graph.nodes)
    assert list(wholes) == ["", "FlexAttention 'first'", "FlexAttention 'second'"]
    assert [node.name for node in graph.nodes if not node.part_of] == ["relu"]
    assert all(v.name != "z" or node.part_of.endswith("'second'") for node in graph.nodes for v in node.outputs if v)
    specs = {"q": (1, 2, 3, 4), "k": (1, 2, 5, 4), "v": (1, 2, 5, 6)}
    given = [TensorSpec(shape, np.dtype(np.float32)) for shape in specs.values()]
    with pytest.raises(InputError, match=r"FlexAttention 'second', in its MatMul .* float32\[1,2,3,6\]"):
        infer_graph(graph, given)
