"""Narrow elements in ONNX files: packed or not, internal or external, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gpuexec as gx
from gpuexec.errors import ModelError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import DTYPES

NARROW = [row for row in DTYPES if row.is_narrow]
OPSET, IR_VERSION = 25, 13


def elements(row: Any, count: int) -> Array:
    """Return elements of all bits; 13 and 2051 fill no whole number of bytes."""
    bits = np.random.default_rng(row.code).integers(0, 1 << row.width, count, np.uint8)
    return bits.view(row.numpy)


def pack(array: Array, width: int) -> bytes:
    """Return elements as ONNX packs them: the first in the low bits."""
    total = sum(int(bits) << (i * width) for i, bits in enumerate(array.view(np.uint8)))
    return total.to_bytes((array.size * width + 7) // 8, "little")


def make_model(row: Any, tensor: TensorProto, count: int) -> onnx.ModelProto:
    """Return a model that gives its one weight as it is."""
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["w", "shape"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", row.code, [1, count])],
        [tensor, numpy_helper.from_array(np.array([1, count]), "shape")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def run(model: gx.Model) -> Array:
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        return np.asarray(worker.run()[0]).reshape(-1)


def assert_same(got: Array, expected: Array) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("form", ["raw_data", "int32_data", "external"])
@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_weights_are_read_in_every_form(tmp_path: Path, row: Any, form: str) -> None:
    array = elements(row, 13)
    packed = pack(array, row.width)
    tensor = TensorProto(name="w", data_type=row.code, dims=[13])
    if form == "int32_data":
        # Types of 6 bits have an entry for each element there.
        tensor.int32_data.extend(array.view(np.uint8).tolist() if row.width == 6 else list(packed))
    else:
        tensor.raw_data = packed
    model = make_model(row, tensor, 13)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=form == "external", size_threshold=0)
    assert_same(run(gx.load(path)), array)


@pytest.mark.parametrize("external_data", [None, True], ids=["inside", "beside"])
@pytest.mark.parametrize("row", NARROW, ids=lambda row: row.name)
def test_weights_are_written_as_onnx_has_them(tmp_path: Path, row: Any, external_data: bool | None) -> None:
    array = elements(row, 2051)
    tensor = TensorProto(name="w", data_type=row.code, dims=[2051], raw_data=pack(array, row.width))
    model = gx.load(make_model(row, tensor, 2051).SerializeToString())
    path = tmp_path / "m.onnx"
    model.save(path, external_data=external_data)
    written = onnx.load(path)
    (weight,) = [each for each in written.graph.initializer if each.data_type == row.code]
    assert weight.raw_data == pack(array, row.width)
    assert_same(run(gx.load(path)), array)


def test_content_that_does_not_fill_a_tensor_is_refused() -> None:
    row = next(row for row in NARROW if row.name == "int4")
    tensor = TensorProto(name="w", data_type=row.code, dims=[13], raw_data=bytes(13))
    with pytest.raises(ModelError, match="expected 7 bytes, got 13"):
        gx.load(make_model(row, tensor, 13).SerializeToString())
