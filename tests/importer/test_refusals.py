"""Refusal of contradictory and oversized files: at load, by name, before anything is made of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.importer import load_graph
from gpuexec.importer.growth import MAX_NODES

HEAD = '<ir_version: 10, opset_import: ["": 18, "loc": 1]>'


def parse(body: str = "{ y = Relu (x) }", functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(f"{HEAD} agraph (float[2] x) => (float[2] y) {body} {functions}")


def with_tensor(**fields: object) -> onnx.ModelProto:
    model = parse()
    model.graph.initializer.append(TensorProto(name="w", **fields))  # type: ignore[arg-type]
    return model


def test_all_contradictions_are_reported_together_with_what_is_not_supported() -> None:
    model = parse("{ a = Relu (x, x) b = loc.Odd (a) c = Softmax <axis = 1.5> (b) y = Add (c) }")
    model.graph.initializer.append(TensorProto(name="w", dims=[4], data_type=1, raw_data=bytes(12)))
    with pytest.raises(ModelError) as caught:
        load_graph(model)
    lines = [line.strip() for line in str(caught.value).splitlines()]
    assert lines[0] == "ModelProto (opset 18) contradicts itself:"
    assert lines[1].startswith("Initializer %w: the content does not fill float32[4]: expected 16 bytes, got 12")
    assert lines[2].startswith("Relu 'a' takes at most 1 inputs")
    assert lines[3].startswith("Softmax 'c': attribute 'axis' is of type INT, got FLOAT")
    assert lines[4].startswith("Add 'y' lacks its input 1")
    assert lines[5:-1] == ["and uses what is not supported:", "operator Odd (loc 1): 1 (Odd_1)"]
    assert lines[-1].startswith("`gpuexec ops` lists what is supported. Operators of your own")
    assert caught.value.value == "w"
    assert not isinstance(caught.value, UnsupportedError)


def test_contradictions_beyond_twenty_are_counted() -> None:
    body = " ".join(f"t{i + 1} = Relu (t{i}, t{i})" for i in range(30))
    model = parser.parse_model(f"{HEAD} agraph (float[2] t0) => (float[2] t30) {{ {body} }}")
    with pytest.raises(ModelError, match="and 10 more like these"):
        load_graph(model)


def test_all_names_that_nothing_makes_are_reported() -> None:
    with pytest.raises(ModelError) as caught:
        load_graph(parse("{ a = Add (x, p) y = Add (a, q) }"))
    assert "Add 'a': input %p is made by no node; Add 'y': input %q is made by no node." in str(caught.value)
    assert caught.value.value == "p"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dims": [2], "data_type": 1, "raw_data": bytes(7)}, r"expected 8 bytes, got 7"),
        ({"dims": [2], "data_type": 1, "float_data": [1, 2, 3]}, r"expected 2 entries of float_data, got 3"),
        ({"dims": [2**40], "data_type": 1}, r"expected 1099511627776 entries of float_data, got 0"),
        ({"dims": [2**62, 2], "data_type": 1}, r"can't exist"),
        ({"dims": [0, 2**62], "data_type": 1}, r"can't exist"),
        ({"dims": [1] * 65, "data_type": 1, "raw_data": bytes(4)}, r"65 axes can't exist: expected at most 64"),
        ({"dims": [-2], "data_type": 1}, r"%w: float32\[-2\] can't exist"),
        ({"dims": [1], "data_type": 99, "raw_data": bytes(4)}, r"%w: element type 99 is none that ONNX defines"),
        ({"dims": [1], "data_type": 1, "raw_data": bytes(4), "segment": TensorProto.Segment(begin=0)}, r"is a segment"),
    ],
)
def test_tensor_whose_content_does_not_fit_is_refused_before_it_is_made(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        load_graph(with_tensor(**fields))
    assert "%w" in str(caught.value)


def test_any_byte_but_0_is_true() -> None:
    graph = load_graph(with_tensor(dims=[3], data_type=9, raw_data=b"\0\x02\xff")).graph
    (array,) = graph.constants.values()
    assert array.view(np.uint8).tolist() == [0, 1, 1]
    (scalar,) = load_graph(with_tensor(dims=[], data_type=9, raw_data=b"\x05")).graph.constants.values()
    assert (scalar.shape, scalar.view(np.uint8).item()) == ((), 1)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda info: info.type.tensor_type.shape.dim.extend(dims_of(64)), "%x: a float32 tensor of 65 axes"),
        (lambda info: info.type.tensor_type.shape.dim.extend(dims_of(2, 2**40)), "%x: float32.* can't exist"),
    ],
)
def test_input_that_can_not_exist_is_refused(spoil: Callable[[onnx.ValueInfoProto], None], message: str) -> None:
    model = parse()
    spoil(model.graph.input[0])
    with pytest.raises(ModelError, match=message):
        load_graph(model)


def dims_of(count: int, extent: int = 1) -> list[onnx.TensorShapeProto.Dimension]:
    return [onnx.TensorShapeProto.Dimension(dim_value=extent) for _ in range(count)]


@pytest.mark.parametrize("place", ["node", "output", "input", "initializer", "attribute", "producer", "body"])
def test_name_that_is_no_text_is_refused(place: str) -> None:
    model = parse(
        "{ c = Constant <value = bool {1}> () y = If (c) <then_branch = t () => (float[2] p) { p = Neg (x) }, "
        "else_branch = e () => (float[2] q) { q = Relu (x) }> }"
    )
    mark = "a_name_to_be_spoilt"
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    node = model.graph.node[1]
    if place == "node":
        node.name = mark
    elif place == "output":
        node.output.append(mark)
    elif place == "input":
        model.graph.input[0].name = mark
    elif place == "initializer":
        model.graph.initializer[0].name = mark
    elif place == "attribute":
        node.attribute[0].name = mark
    elif place == "producer":
        model.producer_name = mark
    else:
        node.attribute[0].g.node[0].op_type = mark
    content = model.SerializeToString().replace(mark.encode(), b"\xff\xfe" + b"\x80" * (len(mark) - 2))
    with pytest.raises(ModelError, match=r"a name or text in the model is not UTF-8: b'\\xff\\xfe"):
        load_graph(content)


def test_attribute_that_onnx_requires_is_missed_at_load() -> None:
    model = parse()
    model.opset_import[0].version = 11
    model.graph.node[0].op_type = "Unsqueeze"
    with pytest.raises(ModelError, match="Unsqueeze 'y' lacks its attribute 'axes'"):
        load_graph(model)


def test_cast_to_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"operator Cast: Element type 77 is not supported.*: 1 \(Cast_0\)"):
        load_graph(parse("{ y = Cast <to = 77> (x) }"))


def test_attribute_of_a_later_opset_is_refused() -> None:
    model = parse("{ y = MaxPool <kernel_shape = [1], dilations = 2> (x) }")
    model.opset_import[0].version = 8
    with pytest.raises(UnsupportedError, match=r"attribute 'dilations': unknown to opset 8: 1 \(MaxPool_0\)"):
        load_graph(model)


def test_input_left_out_among_any_number_is_refused() -> None:
    with pytest.raises(ModelError, match="Concat 'y' lacks its input 1"):
        load_graph(parse('{ y = Concat <axis = 0> (x, "", x) }'))


def test_version_beyond_an_int_is_no_operator() -> None:
    model = parse("{ y = loc.Relu (x) }")
    model.opset_import[1].version = 2**40
    with pytest.raises(UnsupportedError, match="Relu"):
        load_graph(model)


def nest(depth: int) -> onnx.ModelProto:
    """Return a model whose function calls the next one twice, and so on."""
    calls = [("Relu", "")] + [(f"f{i}", "loc") for i in range(depth)]
    model = parse(f"{{ y = loc.f{depth - 1} (x) }}")
    for i, (op_type, domain) in enumerate(calls[:-1]):
        nodes = [helper.make_node(op_type, [a], [b], domain=domain) for a, b in (("a", "m"), ("m", "b"))]
        model.functions.append(helper.make_function("loc", f"f{i}", ["a"], ["b"], nodes, model.opset_import))
    return model


def test_functions_that_double_again_and_again_are_counted_before_they_are_expanded() -> None:
    assert len(load_graph(nest(5)).graph.nodes) == 32
    for depth in (18, 60):
        with pytest.raises(ModelError, match=f"function of {2**depth} nodes the model has more than {MAX_NODES}"):
            load_graph(nest(depth))


def test_functions_that_call_each_other_are_refused_by_name() -> None:
    functions = "".join(
        f'<domain: "loc", opset_import: ["": 18, "loc": 1]> {name} (a) => (b) {{ b = loc.{callee} (a) }} '
        for name, callee in (("f", "g"), ("g", "h"), ("h", "g"))
    )
    with pytest.raises(ModelError, match="A function of the model calls itself: 'g' calls 'h' calls 'g'"):
        load_graph(parse("{ y = loc.f (x) }", functions))


@pytest.mark.parametrize("call", ["y = loc.f (x, x)", "y, z = loc.f (x)"])
def test_call_with_more_than_the_function_has_is_refused(call: str) -> None:
    functions = '<domain: "loc", opset_import: ["": 18]> f (a) => (b) { b = Relu (a) }'
    with pytest.raises(ModelError, match=r"f 'y': the function takes at most 1 inputs and 1 outputs"):
        load_graph(parse(f"{{ {call} }}", functions))


@pytest.mark.parametrize("operator", ["EyeLike <dtype = 1>", 'RegexFullMatch <pattern = "a">'])
def test_operator_that_onnx_can_not_infer_is_kept_from_it(operator: str) -> None:
    # Of what an unknown operator makes no type is known; nor is one declared of the output, so it is asked for.
    model = parse(f"{{ t = loc.Odd (x) y = {operator} (t) }}")
    model.graph.output[0].ClearField("type")
    with pytest.raises(UnsupportedError, match="operator Odd"):
        load_graph(model)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    model = parse("{ y = Add (x, w) }")
    tensor = TensorProto(name="w", dims=[2], data_type=1, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    model.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w.bin").write_bytes(np.array([3, 4, 5, 6], np.float32).tobytes())
    return tmp_path / "m.onnx"


def with_row(path: Path, key: str, value: str) -> Path:
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("key", ["length", "offset"])
def test_number_of_thousands_of_digits_is_reported_by_its_tensor_and_field(external: Path, key: str) -> None:
    with pytest.raises(ModelError, match=rf"%w: .*'w\.bin' can't be read: its {key} is '9999.* \(5000 char") as caught:
        load_graph(with_row(external, key, "9" * 5000))
    assert caught.value.value == "w" and len(str(caught.value)) < 400


def test_number_behind_thousands_of_zeros_is_that_number(external: Path) -> None:
    (array,) = load_graph(with_row(external, "offset", "0" * 5000 + "4")).graph.constants.values()
    assert array.tolist() == [4, 5]


def test_external_data_without_a_length_is_read_as_far_as_it_is_needed(external: Path) -> None:
    (array,) = load_graph(with_row(external, "offset", "4")).graph.constants.values()
    assert array.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("length", "16"),
        ("length", str(2**60)),
        ("length", "x"),
        ("length", "-1"),
        ("length", ""),
        ("length", "9" * 5000),
        ("length", "0" * 5000 + "x"),
        ("length", "\N{ARABIC-INDIC DIGIT EIGHT}"),
        ("offset", "9" * 5000),
        ("offset", "-" + "9" * 5000),
        ("offset", "1_0"),
        ("offset", "12"),
        ("offset", "99999"),
        ("offset", "-4"),
        ("offset", str(2**70)),
        ("offset", "1e3"),
    ],
)
def test_external_data_of_odd_places_is_refused_by_name(external: Path, key: str, value: str) -> None:
    with pytest.raises(ModelError, match=r"Initializer %w: its content in the file 'w.bin'"):
        load_graph(with_row(external, key, value))


def test_pipe_in_place_of_external_data_is_refused_and_not_waited_for(external: Path) -> None:
    (external.parent / "w.bin").unlink()
    os.mkfifo(external.parent / "w.bin")
    with pytest.raises(ModelError, match=r"Initializer %w: its content in the file 'w.bin'"):
        load_graph(external)
