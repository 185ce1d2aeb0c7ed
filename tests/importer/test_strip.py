"""Large-tensor stripping of protobuf messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from gpuexec.errors import ModelError
from gpuexec.importer.load import load_graph
from gpuexec.importer.read import read_model
from gpuexec.importer.strip import LARGE_NBYTES, MalformedMessageError, strip_weights

LARGE = np.arange(LARGE_NBYTES // 4, dtype=np.float32)
SMALL = np.arange(4, dtype=np.float32)


def make_model() -> onnx.ModelProto:
    """Return a model with large and small tensors: initializers, a Constant node, and one in a body."""
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "inner"], ["made"])],
        "then",
        [],
        [helper.make_tensor_value_info("made", 1, None)],
        [numpy_helper.from_array(LARGE + 2, "inner")],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])], "else", [], [helper.make_tensor_value_info("same", 1, None)]
    )
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(LARGE + 1)),
        helper.make_node("If", ["c"], ["b"], then_branch=body, else_branch=other),
        helper.make_node("Sum", ["b", "k", "w"], ["y"]),
        helper.make_node("Add", ["t", "t"], ["u"]),
    ]
    ports = [helper.make_tensor_value_info("x", 1, [LARGE.size]), helper.make_tensor_value_info("c", 9, [])]
    results = [helper.make_tensor_value_info("y", 1, None), helper.make_tensor_value_info("u", 1, None)]
    tensors = [numpy_helper.from_array(LARGE, "w"), numpy_helper.from_array(SMALL, "t")]
    graph = helper.make_graph(nodes, "g", ports, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def arrays_of(source: Any) -> dict[str, Any]:
    graph = load_graph(source).graph
    found = {value.name: array for value, array in graph.constants.items()}
    (node,) = [node for node in graph.nodes if node.operator.name == "If"]
    found.update({v.name: a for v, a in node.operator.then_branch.constants.items()})  # type: ignore[attr-defined]
    return found


def test_large_content_is_left_out_and_named() -> None:
    content = make_model().SerializeToString()
    stripped = strip_weights(memoryview(content))
    assert len(stripped.pieces) == 3 and len(stripped.message) < len(content) - 3 * LARGE_NBYTES + 1000
    assert {content[low : low + nbytes] for low, nbytes in stripped.pieces.values()} == {
        (LARGE + i).tobytes() for i in range(3)
    }
    model = onnx.ModelProto.FromString(stripped.message)
    tensor = model.graph.initializer[0]
    assert tensor.name == "w" and tensor.external_data[0].value in stripped.pieces and not tensor.HasField("raw_data")


@pytest.mark.parametrize("kind", ["path", "bytes", "bytearray", "file", "proto"])
def test_every_source_gives_the_same_arrays(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model().SerializeToString())
    source: Any = {
        "path": lambda: path,
        "bytes": path.read_bytes,
        "bytearray": lambda: bytearray(path.read_bytes()),
        "file": lambda: path.open("rb"),
        "proto": make_model,
    }[kind]()
    found = arrays_of(source)
    for name, array in {"w": LARGE, "k": LARGE + 1, "inner": LARGE + 2, "t": SMALL}.items():
        np.testing.assert_array_equal(found[name], array)
        assert not found[name].flags.writeable and found[name].flags.aligned


def test_arrays_are_no_views_of_bytes_that_may_change() -> None:
    content = bytearray(make_model().SerializeToString())
    found = arrays_of(content)
    content[:] = bytes(len(content))
    np.testing.assert_array_equal(found["w"], LARGE)


def test_whole_model_is_there_for_who_asks(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(make_model().SerializeToString())
    assert read_model(path)[0] == make_model()


def test_tensor_whose_content_does_not_fill_it_is_refused() -> None:
    model = make_model()
    model.graph.initializer[0].dims[0] += 1
    with pytest.raises(ModelError, match=rf"Initializer %w: the content does not fill .*got {LARGE.nbytes}"):
        load_graph(model.SerializeToString())


def test_location_of_a_piece_can_not_be_guessed(tmp_path: Path) -> None:
    content = make_model().SerializeToString()
    first, second = (set(strip_weights(memoryview(content)).pieces) for _ in range(2))
    assert first.isdisjoint(second)
    model = make_model()
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=next(iter(first)))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="can't be read"):
        load_graph(path)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_walked_or_refused(data: st.DataObject) -> None:
    content = bytearray(make_model().SerializeToString())
    for _ in range(data.draw(st.integers(1, 5))):
        # Where the structure is: the front, and what follows each large tensor.
        place = data.draw(st.sampled_from([0, LARGE_NBYTES, 2 * LARGE_NBYTES, 3 * LARGE_NBYTES])) + data.draw(
            st.integers(0, 200)
        )
        content[place % len(content)] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(1, len(content))) :]
    try:
        stripped = strip_weights(memoryview(content))
    except MalformedMessageError:
        return
    assert all(low >= 0 and low + nbytes <= len(content) for low, nbytes in stripped.pieces.values())
