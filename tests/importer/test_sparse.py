"""Sparse tensors: read as dense constants; contradictory ones are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gpuexec.errors import ModelError, UnsupportedError
from gpuexec.importer.load import load_graph


def make_sparse(
    values: Any, indices: Any, dims: Sequence[int], dtype: int = TensorProto.FLOAT, index_type: int = TensorProto.INT64
) -> onnx.SparseTensorProto:
    values, indices = np.asarray(values), np.asarray(indices)
    return helper.make_sparse_tensor(
        helper.make_tensor("w", dtype, values.shape, values.reshape(-1).tolist()),
        helper.make_tensor("i", index_type, indices.shape, indices.reshape(-1).tolist()),
        dims,
    )


def read_initializer(sparse: onnx.SparseTensorProto) -> np.ndarray:
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")])
    graph.sparse_initializer.append(sparse)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (array,) = load_graph(model).graph.constants.values()
    return array


def read_constant(sparse: onnx.SparseTensorProto) -> np.ndarray:
    node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (array,) = load_graph(model).graph.constants.values()
    return array


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans(), st.booleans(), st.data())
def test_dense_tensor_has_the_values_in_their_places(
    dims: list[int], is_flat: bool, is_initializer: bool, data: st.DataObject
) -> None:
    size = int(np.prod(dims))
    places = sorted(data.draw(st.sets(st.integers(0, size - 1)))) if size else []
    values = np.arange(1, len(places) + 1, dtype=np.float32)
    expected = np.zeros(size, np.float32)
    expected[places] = values
    indices = places if is_flat else np.stack(np.unravel_index(places, dims), 1) if places else np.zeros((0, len(dims)))
    sparse = make_sparse(values, np.asarray(indices, np.int64), dims)
    got = read_initializer(sparse) if is_initializer else read_constant(sparse)
    assert got.dtype == np.float32 and not got.flags.writeable
    np.testing.assert_array_equal(got, expected.reshape(dims))


def test_types_of_integers_are_kept() -> None:
    got = read_initializer(make_sparse([-5], [1], [3], TensorProto.INT8))
    assert got.dtype == np.int8 and got.tolist() == [0, -5, 0]


@pytest.mark.parametrize(
    ("sparse", "message"),
    [
        (
            make_sparse([1.0, 2.0], [1], [3]),
            r"expected values \[n\] and int64 indices \[n\] or \[n,1\], got .*\[2\] and",
        ),
        (make_sparse([1.0], [1], [3], index_type=TensorProto.INT32), r"got float32\[1\] and int32\[1\]"),
        (make_sparse([1.0], [3], [3]), r"an index lies outside of the shape \[3\]"),
        (make_sparse([1.0], [-1], [3]), r"an index lies outside of the shape \[3\]"),
        (make_sparse([1.0], [[1, 3]], [2, 3]), r"an index lies outside of the shape \[2, 3\]"),
        (make_sparse([1.0, 2.0], [1, 1], [3]), "two of its values stand in the same place"),
        (make_sparse([1.0], [1], [-3]), "extents of 0 or more"),
    ],
)
def test_contradictions_are_refused(sparse: onnx.SparseTensorProto, message: str) -> None:
    for read in (read_initializer, read_constant):
        with pytest.raises(ModelError, match=message):
            read(sparse)


def test_tensor_too_large_when_dense_is_refused_before_it_is_made() -> None:
    with pytest.raises(
        UnsupportedError, match=r"sparse tensor of 1099511627776 elements when dense: 1 \(initializer %w\)"
    ):
        read_initializer(make_sparse([1.0], [1], [2**20, 2**20]))
