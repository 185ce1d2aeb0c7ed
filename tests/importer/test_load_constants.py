"""Import of initializers and constants: read-only, of the declared content and type, or refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, parser

from gpuexec.errors import ModelError
from gpuexec.importer import load_graph
from gpuexec.ir.spec import STRING, DeclaredSpec


def parse(body: str, opset: int = 18, imports: str = "") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}{imports}]> {body}')


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_initializer_becomes_read_only_constant(array: np.ndarray) -> None:
    model = parse("agraph (float[1] x) => (float[1] y) { y = Relu (x) }")
    model.graph.initializer.append(numpy_helper.from_array(array, "w"))
    ((value, got),) = load_graph(model).graph.constants.items()
    assert value.name == "w"
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert got.tobytes() == array.tobytes()
    assert not got.flags.writeable


def test_initializer_that_is_an_output_has_what_is_declared_of_it() -> None:
    model = parse("agraph (float[2] x) => (float[2] y, int64[3] w) <int64[3] w = {1, 2, 3}> { y = Relu (x) }")
    _, w = load_graph(model).graph.outputs
    assert (w.name, w.declared) == ("w", DeclaredSpec(np.dtype(np.int64), (3,)))


def test_initializer_that_is_also_an_input_is_a_constant() -> None:
    model = parse("agraph (float[2] x, float[2] w) => (float[2] y) { y = Add (x, w) }")
    model.ir_version = 3
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = load_graph(model).graph
    assert [value.name for value in graph.inputs] == ["x"]
    assert [value.name for value in graph.constants] == ["w"]


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1.0, 2.0}", np.array([1, 2], np.float32)),
        ("value_float = 2.5", np.array(2.5, np.float32)),
        ("value_floats = [1.0, 2.0]", np.array([1, 2], np.float32)),
        ("value_int = 7", np.array(7, np.int64)),
        ("value_ints = [7, 8]", np.array([7, 8], np.int64)),
    ],
)
def test_constant_node_becomes_constant(attribute: str, expected: np.ndarray) -> None:
    graph = load_graph(
        parse(f"agraph (float[2] x) => (float[2] y) {{ c = Constant <{attribute}> () y = Cast <to = 1> (c) }}")
    ).graph
    (array,) = graph.constants.values()
    assert [node.operator.name for node in graph.nodes] == ["Cast"]
    assert (array.dtype, array.shape, array.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def test_constant_of_an_upgrade_yields_to_a_name_of_the_file() -> None:
    model = parse("agraph (float[1, 3] x) => (float[3] y) { y = Squeeze <axes = [0]> (x) }", opset=11)
    ((taken, _),) = load_graph(model).graph.constants.items()
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), taken.name))
    names = [value.name for value in load_graph(model).graph.constants]
    assert len(set(names)) == 2


def test_strings_of_initializers_and_constants_are_text() -> None:
    model = parse(
        'agraph () => (string[2] y) <string[2] w = {"a", "b"}> '
        '{ c = Constant <value_strings = ["b", "c"]> () d = Constant <value_string = "d"> () '
        "y = Concat <axis = 0> (w, c, d) }"
    )
    model.graph.initializer[0].string_data[1] = "ü".encode()
    graph = load_graph(model).graph
    found = {value.name: array for value, array in graph.constants.items()}
    assert {name: (array.dtype, array.tolist()) for name, array in found.items()} == {
        "w": (STRING, ["a", "ü"]),
        "c": (STRING, ["b", "c"]),
        "d": (STRING, "d"),
    }
    assert all(not array.flags.writeable for array in found.values())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"string_data": [b"a"]}, r"the content does not fill string\[2\]: expected 2 entries of string_data, got 1"),
        ({"raw_data": b"ab"}, "expected 2 entries of string_data, got 0"),
        ({"string_data": [b"a", b"\xff"]}, "is not text in UTF-8"),
    ],
    ids=["short", "raw", "no text"],
)
def test_broken_strings_are_refused(change: dict[str, Any], message: str) -> None:
    model = parse('agraph () => (string[2] y) <string[2] w = {"a", "b"}> { y = Identity (w) }')
    (tensor,) = model.graph.initializer
    del tensor.string_data[:]
    tensor.MergeFrom(TensorProto(**change))
    with pytest.raises(ModelError, match=message):
        load_graph(model)


def test_content_that_does_not_fill_its_shape_is_refused() -> None:
    model = parse("agraph (float[2] x) => (float[2] y) { y = Relu (x) }")
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "w")
    tensor.dims[0] = 4
    model.graph.initializer.append(tensor)
    with pytest.raises(ModelError, match=r"Initializer %w: the content does not fill float32\[4\]"):
        load_graph(model)
