"""Free dimensions on the command line: extents by name, assumed extents, and their messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from gpuexec.cli import main

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")


def write(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], weights: Any = ()) -> str:
    graph = helper.make_graph(
        nodes,
        "free",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        list(weights),
    )
    file = path / "free.onnx"
    file.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    )
    return str(file)


def decoder(path: Path, total: str) -> str:
    """Keys of the past and of the tokens that come are one row each of a mask."""
    nodes = [
        helper.make_node("Concat", ["past_keys", "keys"], ["all"], axis=1),
        helper.make_node("Add", ["all", "mask"], ["y"]),
    ]
    inputs = {"keys": ["batch", "sequence_length"], "past_keys": ["batch", "past_sequence_length"], "mask": [total]}
    return write(path, nodes, inputs)


@pytest.mark.parametrize(
    "total", ["total_sequence_length", "past_sequence_length + sequence_length", "past_sequence_length + 1"]
)
def test_a_total_is_assumed_to_be_the_past_and_what_comes(
    total: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", decoder(tmp_path, total), "--backend", "cpu"]) == 0
    text = capsys.readouterr().out
    assert f"assumed batch=1 sequence_length=1 past_sequence_length=1 {total}=2; others by --dims batch=1" in text
    assert "y float32[1,2]" in text.replace(": ", " ")


def test_extents_given_stay_and_the_rest_is_assumed_by_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = decoder(tmp_path, "total_sequence_length")
    assert main(["run", model, "--backend", "cpu", "--dims", "past_sequence_length=6", "batch=3"]) == 0
    text = capsys.readouterr().out
    assert "assumed sequence_length=1 total_sequence_length=7" in text and "mask: random float32[7]" in text


def test_arrays_read_from_files_say_what_others_must_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "keys.npy", np.ones((2, 4), np.float32))
    model = decoder(tmp_path, "total_sequence_length")
    assert main(["run", model, "--backend", "cpu", "--input", f"keys={tmp_path / 'keys.npy'}"]) == 0
    text = capsys.readouterr().out
    assert "assumed total_sequence_length=5 past_sequence_length=1" in text or "past_sequence_length=1 total" in text
    assert "mask: random float32[5]" in text and "past_keys: random float32[2,1]" in text


def test_an_image_is_as_large_as_the_first_layer_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 7, 7], np.ones(49, np.float32))
    model = write(tmp_path, [helper.make_node("Conv", ["x", "w"], ["y"])], {"x": ["n", 1, None, None]}, [weight])
    assert main(["run", model, "--backend", "cpu"]) == 0
    assert "x: random float32[1,1,8,8]" in capsys.readouterr().out


def test_extents_that_nothing_fits_are_reported_with_what_to_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Concat", ["a", "b"], ["c"], axis=0), helper.make_node("Add", ["c", "d"], ["y"])]
    model = write(tmp_path, nodes, {"a": ["rows"], "b": ["more"], "d": [7]})
    assert main(["run", model, "--backend", "cpu", "--dims", "rows=3"]) == 1
    text = capsys.readouterr().err
    assert "free dimensions, so these were assumed: more=1. Give others: --dims more=1" in text and "Add" in text
    assert main(["run", model, "--backend", "cpu", "--dims", "rows=3", "more=4"]) == 0


@pytest.mark.parametrize("command", [["run"], ["profile", "--static"], ["explain"]])
def test_a_dimension_that_is_not_there_is_refused_by_name(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, DIGITS, "--dims", "bacth=8"]) == 1
    text = capsys.readouterr().err
    assert "--dims bacth=8: the model has no free dimension 'bacth'; it has batch. Did you mean batch=8?" in text


def test_an_extent_below_nothing_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", DIGITS, "--backend", "cpu", "--dims", "batch=-3"]) == 1
    assert "--dims batch=-3: dimension 'batch' must be at least 0." in capsys.readouterr().err
