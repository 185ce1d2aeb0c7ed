"""Function inlining: each function's own opset imports, and unique value names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.errors import ModelError
from gpuexec.importer import load_graph, run_oracle
from tests.model.small_models import CPU

X = np.float32([[1, -2, 3], [-4, 5, 6]])
RELU = '<domain: "l", opset_import: ["": {inner}]> f (p) => (q) {{ q = Relu (p) }}'
BRANCHES = """<domain: "l", opset_import: ["": {inner}]> h (p) => (q) {{ c = Constant <value = bool {{1}}> ()
  q = If (c) <then_branch = t () => (float[n, m] r) {{ r = Neg (p) }},
              else_branch = e () => (float[n, m] r) {{ r = Abs (p) }}> }}"""
LOOP = """<domain: "l", opset_import: ["": {inner}]> g (p) => (q) {{
  trips = Constant <value = int64 {{2}}> ()
  q = Loop (trips, , p) <body = b (int64 i, bool again, float[n, m] x) => (bool on, float[n, m] sum) {{
    on = Identity (again) sum = Add (x, p) }}> }}"""
FLAT = '<domain: "l", opset_import: ["": {inner}]> flat (p) => (q) {{ q = Squeeze <axes = [0]> (p) }}'
NORMAL = """<domain: "l", opset_import: ["": {inner}, "l": 1]> normal <axis, low: float = 0.5> (p) => (q) {{
  s = Softmax <axis: int = @axis> (p) t = l.shift <by: float = @low> (s) q = Neg (t) }}"""
SHIFT = """<domain: "l", opset_import: ["": {inner}]> shift <by> (p) => (q) {{
  c = Constant <value_float: float = @by> () q = Add (p, c) }}"""


def make(opset: int, body: str, *functions: str, extra: str = "") -> onnx.ModelProto:
    """Return a model of input x and output y with these functions in domain l."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "l": 1{extra}]>'
    return parser.parse_model(f"{head} agraph (float[n, m] x) => (y) {{ {body} }}" + " ".join(functions))


def check(model: onnx.ModelProto, expected: Any = None) -> None:
    """Check that a Worker computes what is expected, or what another engine makes of the model."""
    if expected is None:
        _, found = run_oracle(model, {"x": X})
        expected = found["y"]
    for backend in (CPU, gx.BackendType.SIMULATOR):
        with gx.Worker(gx.load(model.SerializeToString()), backend=backend) as worker:
            worker.schedule(X)
            np.testing.assert_allclose(worker.read_output("y"), expected, rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("inner", [13, 17, 18, 21])
@pytest.mark.parametrize("name", ["h", "g"])
def test_function_with_bodies_takes_the_output_of_another_whatever_their_opsets(
    opset: int, inner: int, name: str
) -> None:
    functions = [text.format(inner=inner) for text in (RELU, BRANCHES, LOOP)]
    check(make(opset, f"a = l.f (x) y = l.{name} (a)", *functions), {"h": -1, "g": 3}[name] * np.maximum(X, 0))


@pytest.mark.parametrize("opset", [7, 11, 18])
def test_a_node_of_a_function_has_the_form_of_the_functions_opset(opset: int) -> None:
    # Axes are an attribute up to opset 12.
    deep = '<domain: "l", opset_import: ["": 12]> deep (p) => (q) { q = Unsqueeze <axes = [0]> (p) }'
    check(make(opset, "a = l.deep (x) y = l.flat (a)", deep, FLAT.format(inner=11)), X)


def test_a_function_calls_one_of_another_opset_in_it() -> None:
    # Before opset 13 Softmax normalizes all axes from this one on.
    functions = [NORMAL.format(inner=11), SHIFT.format(inner=19)]
    flat = np.exp(X.astype(np.float64))
    check(make(18, "y = l.normal <axis = 0> (x)", *functions), -(flat / flat.sum() + 0.5))
    check(make(18, "y = l.normal <axis = 0, low = 2.0> (x)", *functions), -(flat / flat.sum() + 2))
    functions = [NORMAL.format(inner=13), SHIFT.format(inner=12)]
    check(make(11, "y = l.normal <axis = 0> (x)", *functions), -(flat / flat.sum(0) + 0.5))


def test_overloads_are_functions_of_their_own() -> None:
    model = make(18, "a = l.f (x) y = l.f (a)", RELU.format(inner=18), RELU.format(inner=13))
    model.functions[1].overload = "other"
    model.functions[1].node[0].op_type = "Neg"
    model.graph.node[1].overload = "other"
    check(model, -np.maximum(X, 0))


def test_a_function_may_import_a_domain_that_the_model_does_not() -> None:
    text = '<domain: "l", opset_import: ["com.microsoft": 1]> f (p) => (q) { q = com.microsoft.QuickGelu (p) }'
    model = make(18, "y = l.f (x)", text)
    check(model, X / (1 + np.exp(-1.702 * X)))
    assert load_graph(model).opsets == {"": 18, "l": 1, "com.microsoft": 1}


def test_a_domain_is_imported_at_another_version_than_the_models() -> None:
    old = """<domain: "l", opset_import: ["": 15, "ai.onnx.ml": 1]> f (p) => (q) {
      i = Cast <to = 7> (p) s = ai.onnx.ml.LabelEncoder <classes_strings = ["a", "b"]> (i)
      q = ai.onnx.ml.LabelEncoder <classes_strings = ["b", "a"]> (s) }"""
    body = "i = l.f (z) j = ai.onnx.ml.LabelEncoder <keys_int64s = [0, 1], values_floats = [5.0, 6.0]> (i)"
    body = "z = Clip (x, low, high) low = Constant <value_float = 0.0> () high = Constant <value_float = 1.0> ()" + body
    model = make(18, body + " y = Identity (j)", old, extra=', "ai.onnx.ml": 3')
    check(model, np.where(np.clip(X, 0, 1) == 0, 6, 5).astype(np.float32))


def test_values_of_a_function_hide_none_of_the_model() -> None:
    function = """<domain: "l", opset_import: ["": 18]> f (x, z) => (y, a) { c = Constant <value = bool {1}> ()
      b = Add (x, z) a = Neg (b)
      y = If (c) <then_branch = t () => (float[n, m] r) { p = Mul (b, x) r = Sub (p, a) },
                  else_branch = e () => (float[n, m] b2) { b2 = Identity (x) }> }"""
    body = "p = Neg (x) r = Abs (x) b, c = l.f (r, p) a, t = l.f (b, c) y = Add (a, t)"
    check(make(18, body, function))


def test_outputs_that_are_handed_on_and_inputs_that_are_left_out() -> None:
    function = """<domain: "l", opset_import: ["": 18]> f (p, low, high) => (p, q, twice, unused) {
      q = Clip (p, low, high) unused = Neg (p) }"""
    body = "zero = Constant <value_float = 0.0> () a, b, c = l.f (x, zero) s = Add (a, b) y = Add (s, c)"
    model = make(18, body, function)
    model.functions[0].output[2] = "q"
    check(model, X + 2 * np.maximum(X, 0))


def test_bodies_given_as_attributes_take_values_from_where_they_stand() -> None:
    function = """<domain: "l", opset_import: ["": 18]> f <first> (p) => (q) { x = Neg (p)
      c = Constant <value = bool {1}> ()
      q = If (c) <then_branch: graph = @first, else_branch: graph = @second> }"""
    model = make(18, "a = Abs (x) y = l.f (a)", function)
    standing = "g () => (float[n, m] r) { r = Mul (x, x) }"
    model.functions[0].attribute_proto.append(
        onnx.helper.make_attribute("second", parser.parse_graph("g () => (float[n, m] r) { r = Identity (x) }"))
    )
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("first", parser.parse_graph(standing)))
    check(model, X * X)  # of the model, where x is the input
    del model.graph.node[1].attribute[:], model.functions[0].attribute[:]
    model.functions[0].attribute_proto.append(onnx.helper.make_attribute("first", parser.parse_graph(standing)))
    model.graph.node[0].op_type = "Sign"
    check(model, np.square(np.sign(X)))  # of the function, where x is the negated argument


def test_calls_in_bodies_of_the_model_are_inlined() -> None:
    body = """c = Constant <value = bool {1}> ()
      y = If (c) <then_branch = t () => (float[n, m] r) { q = l.f (x) r = l.h (q) },
                  else_branch = e () => (float[n, m] x2) { x2 = Identity (x) }>"""
    check(make(18, body, RELU.format(inner=17), BRANCHES.format(inner=13)), -np.maximum(X, 0))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (RELU.format(inner=99), r"Function 'f': .* is of opset 99; expected 1 to"),
        ('<domain: "l", opset_import: ["": 18]> f (p) => (q) { q = Relu (lost) }', "Function 'f': .*%lost is made by"),
        ('<domain: "l", opset_import: ["": 18]> f (p) => (q) { r = Relu (p) }', "Function 'f': %q is made by no node"),
        (
            """<domain: "l", opset_import: ["": 18]> f (p) => (q) { c = Constant <value = bool {1}> () q = If (c)
              <then_branch = t () => (float r) { r = Neg (a) }, else_branch = e () => (float s) { s = Neg (p) }> }""",
            "Function 'f': %a is made by no node",
        ),
    ],
)
def test_functions_that_contradict_themselves_are_refused_by_name(function: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_graph(make(18, "a = Neg (x) y = l.f (a)", function))


def test_calls_that_nest_without_end_in_sight_and_empty_calls_without_number_are_refused() -> None:
    step = '<domain: "l", opset_import: ["": 18, "l": 1]> f{0} (p) => (q) {{ {1} }}'
    chain = [step.format(i, f"q = l.f{i + 1} (p)") for i in range(100)]
    with pytest.raises(ModelError, match="nest more than 64 deep"):
        load_graph(make(18, "y = l.f0 (x)", *chain, step.format(100, "q = Neg (p)")))
    empty = make(18, "y = l.f0 (x)", *[step.format(i, f"r = l.f{i + 1} (p) q = l.f{i + 1} (r)") for i in range(40)])
    empty.functions.append(onnx.FunctionProto(domain="l", name="f40", input=["p"], output=["p"]))
    with pytest.raises(ModelError, match="the most that is expanded"):
        load_graph(empty)
