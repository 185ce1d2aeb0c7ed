"""Data movement of strings: the same elements at the same places as with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from tests.model.objects import BACKENDS, are_equal
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
X = np.arange(24).reshape(2, 3, 4)
ROWS = np.arange(32).reshape(1, 8, 2, 2)
# A text for each number; that for 0 is the empty one, which stands for nothing as 0 does.
TEXTS = np.array(["", *(f"text {number}" for number in range(1, 100))], object)

GRID = np.linspace(-2, 2, 30, dtype=np.float32).reshape(1, 5, 3, 2)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# Operator, attributes, inputs, and which of those are text.
MOVES: tuple[tuple[str, dict[str, Any], tuple[Array | None, ...], tuple[int, ...]], ...] = (
    ("Identity", {}, (X,), (0,)),
    ("Reshape", {}, (X, ints(4, -1)), (0,)),
    ("Flatten", {}, (X,), (0,)),
    ("Squeeze", {}, (X[:1], ints(0)), (0,)),
    ("Unsqueeze", {}, (X, ints(0, -1)), (0,)),
    ("Transpose", {"perm": (2, 0, 1)}, (X,), (0,)),
    ("Expand", {}, (X, ints(2, 2, 3, 4)), (0,)),
    ("Concat", {"axis": -2}, (X, X), (0, 1)),
    ("Split", {"axis": 2, "num_outputs": 2}, (X,), (0,)),
    ("Slice", {}, (X, ints(-1), ints(-9), ints(0), ints(-1)), (0,)),
    ("Gather", {"axis": 1}, (X, ints(2, 0)), (0,)),
    ("GatherElements", {"axis": 2}, (X, np.full((2, 3, 2), -1)), (0,)),
    ("GatherND", {}, (X, np.array([[0, 1], [1, 2]])), (0,)),
    # One text, of which NumPy would make a type of its own.
    ("Gather", {}, (X[0, 0], np.array(2)), (0,)),
    ("GatherND", {}, (X, ints(1, 2, 3)), (0,)),
    ("Identity", {}, (X[1, 1, 1:2].reshape(()),), (0,)),
    ("Expand", {}, (np.array(3), ints()), (0,)),
    ("Tile", {}, (np.array(3), ints()), (0,)),
    ("Transpose", {}, (np.array(3),), (0,)),
    ("Where", {}, (np.array(True), np.array(3), np.array(4)), (1, 2)),
    ("ScatterND", {}, (X[0, 0], ints(1), np.array(5)), (0, 2)),
    ("Squeeze", {}, (X[0, 0, :1],), (0,)),
    ("ScatterElements", {"axis": 2}, (X, np.zeros((2, 3, 1), np.int64), X[:, :, :1] + 1), (0, 2)),
    ("ScatterND", {}, (X, np.array([[1]]), X[:1] + 1), (0, 2)),
    ("Where", {}, (X % 2 == 0, X, X[0, 0] + 1), (1, 2)),
    ("Tile", {}, (X, ints(2, 1, 0)), (0,)),
    ("Compress", {"axis": 1}, (X, np.array([True, False, True])), (0,)),
    ("Unique", {}, (X % 5,), (0,)),
    ("Unique", {"sorted": 0, "axis": 1}, (X % 5,), (0,)),
    ("NonZero", {}, (X % 3,), (0,)),
    ("Pad", {}, (X, ints(0, 1, 0, 0, 0, 2)), (0,)),
    ("Pad", {}, (X, ints(0, 1, 0, 0, -1, 2), np.array(7)), (0, 2)),
    ("Pad", {"mode": "edge"}, (X, ints(0, 1, 0, 0, 0, 2)), (0,)),
    ("ReverseSequence", {"batch_axis": 0, "time_axis": 1}, (X, ints(2, 3)), (0,)),
    ("OneHot", {}, (ints(1, 0, 3), np.array(4), ints(0, 5)), (2,)),
    ("Trilu", {"upper": 0}, (X,), (0,)),
    ("DepthToSpace", {"blocksize": 2}, (ROWS,), (0,)),
    ("SpaceToDepth", {"blocksize": 2}, (ROWS,), (0,)),
    ("Resize", {"mode": "nearest"}, (X[None], None, None, ints(1, 2, 6, 8)), (0,)),
    ("GridSample", {"mode": "nearest"}, (X[None] + 1, GRID), (0,)),
    ("GridSample", {"mode": "nearest", "padding_mode": "reflection", "align_corners": 1}, (X[None] + 1, GRID), (0,)),
    ("Shape", {}, (X,), (0,)),
    ("Size", {}, (X,), (0,)),
    ("Equal", {}, (X, X[::-1]), (0, 1)),
    ("Equal", {}, (X, X[:1, :, :1]), (0, 1)),
)


@pytest.mark.parametrize(("name", "attributes", "inputs", "texts"), MOVES, ids=[row[0] for row in MOVES])
def test_strings_go_where_numbers_go(
    name: str, attributes: dict[str, Any], inputs: tuple[Array | None, ...], texts: tuple[int, ...]
) -> None:
    operator = build(name, attributes)
    # The texts of these numbers have the order of the numbers where that matters.
    given = [
        each if each is None or index not in texts else np.asarray(TEXTS[each], object)
        for index, each in enumerate(inputs)
    ]
    wanted = compute_arrays(operator, inputs)
    specs = infer_specs(operator, [None if each is None else TensorSpec.of(each) for each in given])
    made = compute_arrays(operator, given)
    for expected, got, spec in zip(wanted, made, specs, strict=True):
        assert expected is not None and got is not None
        assert (got.shape, got.dtype) == (spec.shape, spec.dtype)
        if got.dtype == STRING:
            assert all(type(item) is str for item in got.flat)
        assert are_equal(got, np.asarray(TEXTS[expected], object) if got.dtype == STRING else expected)


@pytest.mark.parametrize("name", ["NonZero", "Compress", "Unique"])
def test_strings_whose_number_depends_on_content_come_from_a_run(name: str) -> None:
    words = np.array(["b", "", "a", "b"], object)
    inputs = [words] if name != "Compress" else [words, np.array([True, False, True, False])]
    kinds = (TensorProto.STRING, TensorProto.BOOL)
    graph = helper.make_graph(
        [helper.make_node(name, [f"x{i}" for i in range(len(inputs))], ["y"])],
        "g",
        [helper.make_tensor_value_info(f"x{i}", kinds[i], ["n"]) for i in range(len(inputs))],
        [helper.make_value_info("y", tensor(TensorProto.INT64 if name == "NonZero" else TensorProto.STRING))],
    )
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    wanted = {"NonZero": np.array([[0, 2, 3]]), "Compress": words[[0, 2]], "Unique": np.array(["", "a", "b"], object)}
    for backend in BACKENDS:
        with gx.Worker(model, backend=backend) as worker:
            for _ in range(2):
                assert are_equal(worker.run(inputs)[0], wanted[name])


TEXT, BOOL = tensor(TensorProto.STRING), tensor(TensorProto.BOOL)
CASES = (
    ObjectCase("equal", "Equal", (TEXTS[X], TEXTS[X[:1]]), (TEXT, TEXT), (BOOL,)),
    ObjectCase("equal_scalar", "Equal", (TEXTS[X], np.array("text 1", object)), (TEXT, TEXT), (BOOL,)),
    ObjectCase("where", "Where", (X % 2 == 0, TEXTS[X], TEXTS[X[0]]), (BOOL, TEXT, TEXT), (TEXT,)),
    ObjectCase("concat", "Concat", (TEXTS[X], TEXTS[X]), (TEXT, TEXT), (TEXT,), {"axis": 1}),
    ObjectCase("transpose", "Transpose", (TEXTS[X],), (TEXT,), (TEXT,)),
    ObjectCase("identity_0d", "Identity", (np.array("ü", object),), (TEXT,), (TEXT,)),
    ObjectCase("concat_empty", "Concat", (TEXTS[X[:0]], TEXTS[X]), (TEXT, TEXT), (TEXT,), {"axis": 0}),
    ObjectCase("identity_rank_8", "Identity", (TEXTS[X].reshape(1, 2, 1, 3, 1, 4, 1, 1),), (TEXT,), (TEXT,)),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_strings_in_models(case: ObjectCase) -> None:
    check_case(case)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=12), st.booleans())
def test_unique_of_any_text_agrees_with_numpy(words: list[str], is_sorted: bool) -> None:
    given_words = np.array(words, object)
    y, firsts, inverse, counts = compute_arrays(build("Unique", {"sorted": int(is_sorted)}), [given_words])
    assert y is not None and firsts is not None and inverse is not None and counts is not None
    assert y.tolist() == (sorted(set(words)) if is_sorted else list(dict.fromkeys(words)))
    assert y[inverse].tolist() == words
    assert given_words[firsts].tolist() == y.tolist()
    assert [words.count(each) for each in y] == counts.tolist()


def test_strings_and_numbers_are_not_compared() -> None:
    words, numbers = TensorSpec((2,), STRING), TensorSpec((2,), np.dtype(np.int64))
    with pytest.raises(gx.InputError, match=r"inputs of one type, got string\[2\], int64\[2\]"):
        infer_specs(build("Equal", {}), [words, numbers])
    for name in ("Add", "Less"):
        with pytest.raises(gx.InputError, match=rf"{name} expects .*float32.*, got string\[2\]"):
            infer_specs(build(name, {}), [words, words])
