"""Constant folding of weights in files: little host memory, and views of files stay views."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import gpuexec as gx
from gpuexec.system.mapped import find_source

SIDE = 64


def save(nodes: list[onnx.NodeProto], arrays: dict[str, Any], dims: Any, folder: Path, **more: Any) -> Path:
    ports = [helper.make_tensor_value_info("x", 1, dims), helper.make_tensor_value_info("y", 1, None)]
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, folder / "m.onnx", **more)
    return folder / "m.onnx"


BESIDE = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
W = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
X = np.ones((2, SIDE), np.float32)


def limit(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    for name in ("fold_constants", "fuse_conv_batchnorm"):
        monkeypatch.setattr(sys.modules[f"gpuexec.passes.{name}"], "COPIED_NBYTES", nbytes)


def run(model: gx.Model, x: Any) -> Any:
    results = []
    for backend in (gx.BackendType.CPU, gx.BackendType.SIMULATOR):
        with gx.Worker(model, backend=backend) as worker:
            results.append(worker.run(x)[0])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-4)
    return results[0]


@pytest.mark.parametrize(
    ("options", "room", "is_folded"), [(BESIDE, 0, False), (BESIDE, W.nbytes, True), ({}, 0, True)]
)
def test_what_is_worked_out_of_files_is_limited(
    options: Any, room: int, is_folded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, room)
    nodes = [helper.make_node("Neg", ["w"], ["n"]), helper.make_node("MatMul", ["x", "n"], ["y"])]
    model = gx.load(save(nodes, {"w": W}, [2, SIDE], tmp_path, **options))
    assert ["Neg"] * (not is_folded) + ["MatMul"] == [node.operator.name for node in model.graph.nodes]
    np.testing.assert_allclose(run(model, X), X @ -W, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("room", "operators"), [(0, ["Conv", "BatchNormalization"]), (1 << 20, ["Conv"])])
def test_batch_norm_goes_into_weights_in_files_within_the_limit(
    room: int, operators: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, room)
    arrays: dict[str, Any] = {name: np.full(SIDE, 0.5 + i, np.float32) for i, name in enumerate("sbmv")}
    arrays["w"] = W.reshape(SIDE, 16, 4)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", *"sbmv"], ["y"]),
    ]
    path = save(nodes, arrays, [1, 16, 9], tmp_path, **BESIDE)
    model = gx.load(path)
    assert [node.operator.name for node in model.graph.nodes] == operators
    x = np.ones((1, 16, 9), np.float32)
    unfused = gx.load(path, disabled_passes=["fuse_conv_batchnorm"])
    np.testing.assert_allclose(run(model, x), run(unfused, x), rtol=1e-4, atol=1e-4)


def test_transposed_weight_stays_a_view_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 0)
    nodes = [helper.make_node("Transpose", ["w"], ["t"]), helper.make_node("MatMul", ["x", "t"], ["y"])]
    model = gx.load(save(nodes, {"w": W}, [2, SIDE], tmp_path, **BESIDE))
    assert [node.operator.name for node in model.graph.nodes] == ["MatMul"]
    (array,) = model.graph.constants.values()
    assert find_source(array) is not None and not array.flags.c_contiguous
    np.testing.assert_allclose(run(model, X), X @ W.T, rtol=1e-4, atol=1e-4)


def test_file_of_two_names_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(nodes, {"w": W}, [2, SIDE], tmp_path, **BESIDE)
    os.link(tmp_path / "w.bin", tmp_path / "other.bin")
    with pytest.raises(gx.ModelError, match=r"%w: its content in the file 'w.bin' can't be read: .*one name"):
        gx.load(path)
