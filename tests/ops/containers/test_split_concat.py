"""SplitToSequence and ConcatFromSequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.containers import make_sequence, read_sequence
from gpuexec.ir.operator import build
from gpuexec.ir.spec import SEQUENCE, TensorSpec
from tests.ops.objects import ObjectCase, apply, check_case, sequence, tensor

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
WORDS = np.array([["a", "b", ""], ["c", "d", "e"]], object)
INT64 = tensor(TensorProto.INT64)
TEXT = TensorProto.STRING
SEQ, ONE = sequence(), tensor()


def split(id: str, x: Any, lengths: Any = None, expected: Any = None, **attributes: Any) -> ObjectCase:
    code = TEXT if x.dtype == object else TensorProto.FLOAT
    types = (tensor(code),) if lengths is None else (tensor(code), INT64)
    inputs = (x,) if lengths is None else (x, np.asarray(lengths, np.int64))
    wanted = None if expected is None else [expected]
    return ObjectCase(f"split_{id}", "SplitToSequence", inputs, types, (sequence(code),), attributes, wanted)


def concat(id: str, items: list[Any], expected: Any = None, **attributes: Any) -> ObjectCase:
    code = TEXT if items[0].dtype == object else TensorProto.FLOAT
    wanted = None if expected is None else [expected]
    return ObjectCase(
        f"concat_{id}", "ConcatFromSequence", (items,), (sequence(code),), (tensor(code),), attributes, wanted
    )


CASES = (
    split("rows", X),
    split("rows_without_axis", X, keepdims=0, axis=1),
    split("last_axis", X, axis=-1),
    split("of_2", X, 2, axis=2),
    split("of_2_and_a_rest", X, 2, axis=1),
    split("of_more_than_there_is", X, 9, axis=1),
    split("lengths", X, [1, 2], axis=1),
    split("lengths_of_zero", X, [0, 3, 0], [X[:, :0], X, X[:, :0]], axis=1),
    split("lengths_ignore_keepdims", X, [1, 3], axis=2, keepdims=0),
    split("nothing", X[:, :0], expected=[], axis=1),
    split("strided", X.transpose(2, 0, 1)[::2], axis=0),
    split("text", WORDS, axis=1, keepdims=0),
    concat("along_0", [X, X[:1]], axis=0),
    concat("along_last", [X, X[:, :, :1]], axis=-1),
    concat("stacked", [X, X + 1], axis=0, new_axis=1),
    concat("stacked_last", [X, X + 1], axis=-1, new_axis=1),
    concat("one", [X], axis=1),
    concat("empty_tensors", [X[:0], X], axis=0),
    concat("scalars", [np.float32(1).reshape(()), np.float32(2).reshape(())], axis=0, new_axis=1),
    concat("text", [WORDS, WORDS[:, :1]], axis=1),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_split_and_concat(case: ObjectCase) -> None:
    check_case(case)


def test_parts_are_no_memory_of_the_tensor() -> None:
    x = X.copy()
    (made,) = compute_arrays(build("SplitToSequence", {"axis": 1}), [x])
    x[:] = 0
    assert made is not None
    np.testing.assert_array_equal(np.concatenate(read_sequence(made), 1), X)


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "message"),
    [
        ("SplitToSequence", {"axis": 3}, [X], "rank 3: expected -3 to 2, got 3"),
        ("SplitToSequence", {}, [X, np.zeros((1, 1), np.int64)], "integers of rank 0 or 1"),
        ("SplitToSequence", {}, [X, np.float32(1).reshape(())], "integers of rank 0 or 1"),
        ("SplitToSequence", {}, [X, np.asarray(0)], "positive lengths, got"),
        ("SplitToSequence", {}, [X, np.asarray(-1)], "positive lengths, got"),
        ("SplitToSequence", {}, [X, np.array([3, -1])], "positive lengths, got"),
        ("SplitToSequence", {}, [X, np.array([1, 2])], r"lengths \[1, 2\] must sum up to 2"),
        ("ConcatFromSequence", {"axis": 0}, [X], "expects a sequence, got float32"),
        ("ConcatFromSequence", {"axis": 0}, [make_sequence([])], "at least one tensor, got an empty one"),
        ("ConcatFromSequence", {"axis": 3}, [make_sequence([X])], "rank 3: expected -3 to 2, got 3"),
        ("ConcatFromSequence", {"axis": 4, "new_axis": 1}, [make_sequence([X])], "rank 4: expected -4 to 3, got 4"),
        (
            "ConcatFromSequence",
            {"axis": 0},
            [make_sequence([X, X[:, :1]])],
            r"beside axis 0: element 1 is float32\[2,1,4\]",
        ),
        ("ConcatFromSequence", {"axis": 0}, [make_sequence([X, X[0]])], r"element 1 is float32\[3,4\]"),
        ("ConcatFromSequence", {"axis": 0, "new_axis": 1}, [make_sequence([X, X[:1]])], r"agree: element 1"),
        ("ConcatFromSequence", {"axis": 0}, [make_sequence([X, X.astype(np.int8)])], r"element 1 is int8\[2,3,4\]"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, attributes: dict[str, Any], inputs: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply(name, attributes, inputs)


def test_what_is_joined_is_inferred_only_where_it_is_known() -> None:
    with pytest.raises(NeedsHostValue):
        infer_specs(build("ConcatFromSequence", {"axis": 0}), [TensorSpec((), SEQUENCE)])
