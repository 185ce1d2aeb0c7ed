"""CategoryMapper, CastMap, DictVectorizer, ZipMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, TypeProto, helper

import gpuexec as gx
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import MAP, SEQUENCE, STRING, TensorSpec
from tests.model.objects import BACKENDS, are_equal, check_everywhere
from tests.ops.ml.cases import DOMAIN
from tests.ops.objects import tensor

INT, TEXT, FLOAT, DOUBLE = TensorProto.INT64, TensorProto.STRING, TensorProto.FLOAT, TensorProto.DOUBLE
NAMES = ("CategoryMapper", "CastMap", "DictVectorizer", "ZipMap")


def map_of(key: int, value: int) -> TypeProto:
    """Return the type of a map."""
    return helper.make_map_type_proto(key, tensor(value))


def make_model(op: str, given: TypeProto, made: TypeProto, attributes: Mapping[str, Any]) -> onnx.ModelProto:
    """Return a model of one node."""
    node = helper.make_node(op, ["x"], ["y"], "node", domain=DOMAIN, **attributes)
    values = [helper.make_value_info(name, kind) for name, kind in (("x", given), ("y", made))]
    graph = helper.make_graph([node], "maps", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def f32(*numbers: float) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.float32)


CATS = {"cats_int64s": [3, -1, 3], "cats_strings": ["a", "ü", "a"]}
HELD = {4: np.float32(2.5), -7: np.float32(np.inf), 0: np.float32(-1.9)}
WORDS = {2: "1e2", 0: "-3"}
PROBABILITIES = np.array([[0.25, 0.5], [np.nan, 1]], np.float32)

# Operator, attributes, types, input, output.
CASES: dict[str, tuple[str, dict[str, Any], TypeProto, TypeProto, Any, Any]] = {
    "numbers_of_words": ("CategoryMapper", CATS, tensor(TEXT), tensor(INT), np.array([["ü", "a"], ["b", ""]], object),
                         np.array([[-1, 3], [-1, -1]])),
    "words_of_numbers": ("CategoryMapper", {**CATS, "default_string": "?"}, tensor(INT), tensor(TEXT),
                         np.array([3, -1, 2**62]), np.array(["a", "ü", "?"], object)),
    "another_default": ("CategoryMapper", {**CATS, "default_int64": 9}, tensor(TEXT), tensor(INT),
                        np.array("b", object), np.array(9)),
    "last_of_equal": ("CategoryMapper", {"cats_int64s": [1, 2], "cats_strings": ["a", "a"]}, tensor(TEXT), tensor(INT),
                      np.array(["a"], object), np.array([2])),
    "no_categories": ("CategoryMapper", {}, tensor(INT), tensor(TEXT), np.zeros((0, 2), np.int64),
                      np.zeros((0, 2), object)),
    "dense": ("CastMap", {}, map_of(INT, FLOAT), tensor(FLOAT), HELD, f32(np.inf, -1.9, 2.5)[None]),
    "dense_words": ("CastMap", {"cast_to": "TO_FLOAT"}, map_of(INT, TEXT), tensor(FLOAT), WORDS, f32(-3, 100)[None]),
    "dense_integers": ("CastMap", {"cast_to": "TO_INT64"}, map_of(INT, FLOAT), tensor(INT), {1: np.float32(-2.5)},
                       np.array([[-2]])),
    "dense_text": ("CastMap", {"cast_to": "TO_STRING"}, map_of(INT, FLOAT), tensor(TEXT), {1: np.float32(0.5)},
                   np.array([["0.5"]], object)),
    "dense_nothing": ("CastMap", {}, map_of(INT, FLOAT), tensor(FLOAT), {}, np.zeros((1, 0), np.float32)),
    "sparse": ("CastMap", {"map_form": "SPARSE", "max_map": 4}, map_of(INT, TEXT), tensor(FLOAT), WORDS,
               f32(-3, 0, 100, 0)[None]),
    "sparse_text": ("CastMap", {"map_form": "SPARSE", "max_map": 3, "cast_to": "TO_STRING"}, map_of(INT, TEXT),
                    tensor(TEXT), WORDS, np.array([["-3", "", "1e2"]], object)),
    "vocabulary": ("DictVectorizer", {"string_vocabulary": ["a", "c", "b", "z"]}, map_of(TEXT, INT), tensor(INT),
                   {"a": np.int64(4), "c": np.int64(8)}, np.array([[4, 8, 0, 0]])),
    "vocabulary_and_others": ("DictVectorizer", {"string_vocabulary": ["a", "c"]}, map_of(TEXT, FLOAT), tensor(FLOAT),
                              {"q": 1, "c": 8.5, "": 2}, f32(0, 8.5)[None]),
    "vocabulary_of_one": ("DictVectorizer", {"string_vocabulary": ["a", "c"]},
                          helper.make_map_type_proto(TEXT, helper.make_tensor_type_proto(FLOAT, [1])), tensor(FLOAT),
                          {"a": 1, "c": np.float32(8.5)}, f32(1, 8.5)[None]),
    "vocabulary_integers": ("DictVectorizer", {"int64_vocabulary": [5, -2]}, map_of(INT, DOUBLE), tensor(DOUBLE),
                            {-2: np.float64(0.1)}, np.array([[0, 0.1]])),
    "vocabulary_texts": ("DictVectorizer", {"int64_vocabulary": [5, -2]}, map_of(INT, TEXT), tensor(TEXT),
                         {5: "five"}, np.array([["five", ""]], object)),
    "vocabulary_of_no_doubles": ("DictVectorizer", {"int64_vocabulary": [5, -2]}, map_of(INT, DOUBLE), tensor(DOUBLE),
                                 {}, np.zeros((1, 2))),
    "vocabulary_of_no_texts": ("DictVectorizer", {"int64_vocabulary": [5]}, map_of(INT, TEXT), tensor(TEXT), {},
                               np.array([[""]], object)),
    "vocabulary_nothing": ("DictVectorizer", {"string_vocabulary": ["a"]}, map_of(TEXT, FLOAT), tensor(FLOAT), {},
                           f32(0)[None]),
    "zip_words": ("ZipMap", {"classlabels_strings": ["no", "ü"]}, tensor(FLOAT),
                  helper.make_sequence_type_proto(map_of(TEXT, FLOAT)), PROBABILITIES[:1],
                  [{"no": np.float32(0.25), "ü": np.float32(0.5)}]),
    "zip_integers": ("ZipMap", {"classlabels_int64s": [7, -1]}, tensor(FLOAT),
                     helper.make_sequence_type_proto(map_of(INT, FLOAT)), np.array([[1, 2], [3, np.inf]], np.float32),
                     [{7: np.float32(1), -1: np.float32(2)}, {7: np.float32(3), -1: np.float32(np.inf)}]),
    "zip_row": ("ZipMap", {"classlabels_int64s": [7, -1]}, tensor(FLOAT),
                helper.make_sequence_type_proto(map_of(INT, FLOAT)), f32(1, 2),
                [{7: np.float32(1), -1: np.float32(2)}]),
    "zip_no_rows": ("ZipMap", {"classlabels_int64s": [7]}, tensor(FLOAT),
                    helper.make_sequence_type_proto(map_of(INT, FLOAT)), np.zeros((0, 1), np.float32), []),
}  # fmt: skip


@pytest.mark.parametrize("id", CASES)
def test_maps_go_in_and_come_out_on_every_backend(id: str) -> None:
    op, attributes, given, made, x, expected = CASES[id]
    check_everywhere(make_model(op, given, made, attributes), {"x": x}, [expected])


@pytest.mark.parametrize(
    "id",
    [
        *("numbers_of_words", "words_of_numbers", "dense", "dense_integers", "zip_words", "zip_integers"),
        *("vocabulary_and_others", "vocabulary_of_one"),
    ],
)
def test_onnxruntime_gives_the_same(id: str) -> None:
    import onnxruntime

    op, attributes, given, made, x, expected = CASES[id]
    if op == "CategoryMapper":  # there it takes numbers from 0 up alone
        attributes = {**attributes, "cats_int64s": [3, 1, 3]}
        x = np.where(x == -1, 1, x) if x.dtype != object else x
        expected = np.where(expected == -1, 1, expected) if expected.dtype != object else expected
        x, expected = x.reshape(-1)[:2], expected.reshape(-1)[:2]
    model = make_model(op, given, made, attributes)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given_there = {key: float(item) for key, item in x.items()} if isinstance(x, dict) else x
    (found,) = session.run(None, {"x": given_there})
    if op == "ZipMap":
        assert found == expected
    else:
        assert are_equal(found, expected)


@pytest.mark.parametrize(
    ("id", "changes", "x", "words"),
    [
        ("sparse", {}, {4: "1"}, r"keys from 0 to 3 \(max_map\), got 4"),
        ("sparse", {}, {-1: "1"}, r"keys from 0 to 3 \(max_map\), got -1"),
        ("dense", {}, {1: np.ones(2, np.float32)}, r"one element by each key, got float32\[2\] by 1"),
        ("dense_words", {}, {1: "x"}, "to convert to float32, got 'x'"),
        ("vocabulary", {}, {"a": np.array([1, 2])}, r"one element by each key, got int64\[2\] by 'a'"),
    ],
    ids=str,
)
def test_maps_that_do_not_fit_are_refused(id: str, changes: dict[str, Any], x: Any, words: str) -> None:
    op, attributes, given, made, good, expected = CASES[id]
    model = gx.load(make_model(op, given, made, {**attributes, **changes}))
    for backend in BACKENDS:
        with gx.Worker(model, backend=backend) as worker:
            with pytest.raises(gx.InputError, match=words):
                worker.run({"x": x})
            assert are_equal(worker.run({"x": good})[0], expected)  # it stays usable


@pytest.mark.parametrize(
    ("op", "attributes", "spec", "words"),
    [
        ("CategoryMapper", {}, TensorSpec((2,), np.dtype(np.int32)), "input of type string, int64, got int32"),
        ("CastMap", {}, TensorSpec((), SEQUENCE), "CastMap expects a map, got sequence"),
        ("DictVectorizer", {"int64_vocabulary": (1,)}, TensorSpec((1,), STRING), r"expects a map, got string\[1\]"),
        ("ZipMap", {"classlabels_int64s": (1, 2)}, TensorSpec((3, 3), np.dtype(np.float32)), r"\[rows, 2\] or \[2\]"),
        ("ZipMap", {"classlabels_int64s": (1,)}, TensorSpec((3, 1), np.dtype(np.float64)), "input of type float32"),
    ],
    ids=str,
)
def test_inputs_of_other_kinds_are_refused(op: str, attributes: dict[str, Any], spec: TensorSpec, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        infer_specs(build(f"{DOMAIN}.{op}", attributes), [spec])


@pytest.mark.parametrize(
    ("op", "attributes", "words"),
    [
        ("CategoryMapper", {"cats_int64s": (1, 2), "cats_strings": ("a",)}, "got 1 and 2 of them"),
        ("CastMap", {"cast_to": "TO_HALF"}, "got 'TO_HALF', 'DENSE' and 1"),
        ("CastMap", {"map_form": "THIN"}, "map_form of DENSE, SPARSE"),
        ("CastMap", {"max_map": 0}, "max_map of 1 or more"),
        ("DictVectorizer", {}, "int64_vocabulary or string_vocabulary, got 0 and 0 words"),
        ("ZipMap", {"classlabels_int64s": (1,), "classlabels_strings": ("a",)}, "got 1 and 1 keys"),
    ],
    ids=str,
)
def test_attributes_that_do_not_fit_are_refused(op: str, attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        build(f"{DOMAIN}.{op}", attributes)


def test_keys_that_are_strings_have_no_order_here() -> None:
    from gpuexec.ir.containers import make_map

    with pytest.raises(gx.InputError, match="keys are integers, got key 'a'"):
        build(f"{DOMAIN}.CastMap", {}).compute(make_map({"a": np.array(1.0)}))
    assert build(f"{DOMAIN}.CastMap", {"map_form": "SPARSE", "max_map": 3}).infer(TensorSpec((), MAP))[0].shape == (
        1,
        3,
    )


@pytest.mark.parametrize("op", NAMES)
def test_the_host_computes_them_and_says_why(op: str) -> None:
    found = type(build(f"{DOMAIN}.{op}", next(row[1] for row in CASES.values() if row[0] == op)))
    assert found.lower is None and found.host_reason.endswith("on the host")
