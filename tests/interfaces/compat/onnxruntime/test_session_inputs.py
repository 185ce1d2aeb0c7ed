"""Input conversion of sessions: strings of any objects, maps of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as real
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
import gpuexec.compat.onnxruntime as ours
from tests.interfaces.compat.onnxruntime.sessions import CPU, F32, SIMULATOR, make_bytes
from tests.model.objects import are_equal

WORDS = make_bytes("g (string[] x) => (string[] y) { y = Identity (x) }")
LISTS = make_bytes("g (seq(string[n]) x) => (seq(string[n]) y) { y = Identity (x) }")


class Written:
    """An object with a text of its own."""

    def __str__(self) -> str:
        return "written"


def objects(*items: Any) -> np.ndarray[Any, Any]:
    return np.array([*items, None], object)[:-1]


def run_both(model: bytes, feed: Any, provider: str = CPU) -> tuple[Any, Any]:
    """Return what the installed ONNX Runtime gives, and what its look-alike gives."""
    theirs = real.InferenceSession(model, providers=[CPU]).run(None, {"x": feed})
    return theirs, ours.InferenceSession(model, providers=[provider]).run(None, {"x": feed})


TEXTS: dict[str, Any] = {
    "nan": objects("a", float("nan"), np.float64("nan")),
    "none": objects("a", None),
    "numbers": objects(3, 2.5, True, np.float32(1.5), np.int8(-3), np.float64(0.1), 10**30),
    "bytes among objects": objects("a", b"b", b"\xff"),
    "others": objects(Written(), (1, "a"), [2]),
    "two axes": np.array([["a", None], [1, "ü"]], object),
    "an object with a NUL": objects("a\0b", "c\0"),
    "not dense": np.array([["a", 1], [None, 2.0]], object)[:, 1],
    "a list": ["a", None, 3, float("nan")],
    "a list of lists": [["a", 1], [None, b"b"]],
    "a list of numbers": [1, 2],
    "none of them": objects(),
    "void": np.array([b"must", b"have"], np.void),
    "void with NUL": np.array([b"A\0A\0", b"B\0\0\0"], np.void).reshape(1, 2),
    "void of UTF-8": np.array(["ü".encode(), b"ab"], np.void),
    "a scalar": np.array(None, object),
}


@pytest.mark.parametrize("provider", [CPU, SIMULATOR])
@pytest.mark.parametrize("feed", TEXTS.values(), ids=TEXTS)
def test_text_of_objects_and_bytes_is_the_same(feed: Any, provider: str) -> None:
    assert are_equal(*run_both(WORDS, feed, provider))


def test_strings_in_sequences_are_written_alike() -> None:
    assert are_equal(*run_both(LISTS, [objects("a", None), objects(1.5)]))


def test_arrays_of_objects_stay_as_they_are() -> None:
    feed = objects("a", None)
    run_both(WORDS, feed)
    assert feed.tolist() == ["a", None]


def test_object_without_text_is_refused() -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError("silence")

    session = ours.InferenceSession(WORDS, providers=[CPU])
    with pytest.raises(ValueError, match=r"Input 'x': a Mute can't be written as text: silence"):
        session.run(None, {"x": objects(Mute())})
    assert session.run(None, {"x": objects("a")})[0].tolist() == ["a"]


@pytest.mark.parametrize("item", [None, 3, float("nan")])
def test_workers_take_strings_alone(item: Any) -> None:
    with (
        gx.Worker(gx.load(WORDS), backend=gx.BackendType.CPU) as worker,
        pytest.raises(gx.InputError, match="expected strings"),
    ):
        worker.run({"x": objects("a", item)})


def make_vectorizer(key: int, words: Sequence[Any], value_shape: Sequence[int | None], made: Sequence[int]) -> bytes:
    """Return a model of one DictVectorizer, as scikit-learn's converter writes it."""
    held = helper.make_tensor_type_proto(TensorProto.FLOAT, value_shape)
    x = helper.make_value_info("x", helper.make_map_type_proto(key, held))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, made)
    vocabulary = "string_vocabulary" if key == TensorProto.STRING else "int64_vocabulary"
    node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **{vocabulary: words})
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(  # type: ignore[no-any-return]
        helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=9
    ).SerializeToString()


BY_NAME = (TensorProto.STRING, ["a", "b", "c"])
BY_NUMBER = (TensorProto.INT64, [10, 20])
MAPS: dict[str, tuple[Any, dict[Any, Any]]] = {
    "numbers of Python": (BY_NAME, {"a": 1.0, "c": 2}),
    "booleans": (BY_NAME, {"a": True, "b": False}),
    "scalars of NumPy": (BY_NAME, {"a": F32(1.5), "b": np.float64(0.1), "c": np.int64(3)}),
    "arrays of rank 0": (BY_NAME, {"a": np.array(1.5), "b": np.array(2)}),
    "a key of NumPy": (BY_NAME, {np.str_("b"): 1.0}),
    "keys that are no words": (BY_NAME, {"z": 3.0, "a": 1.0}),
    "infinity": (BY_NAME, {"a": float("inf")}),
    "integer keys": (BY_NUMBER, {20: 1.0, 30: 2.0}),
    "integer keys of NumPy": (BY_NUMBER, {np.int32(20): np.float64(1), np.int64(10): 2}),
}


@pytest.mark.parametrize("shape", [[], [1], [None], [1, 1]], ids=str)
@pytest.mark.parametrize(("words", "feed"), MAPS.values(), ids=MAPS)
def test_maps_of_plain_numbers_are_vectorized_alike(words: Any, feed: Any, shape: list[int | None]) -> None:
    theirs, mine = run_both(make_vectorizer(*words, shape, [1, len(words[1])]), feed)
    assert are_equal(theirs, mine)
    assert mine[0].shape == (1, len(words[1]))


@pytest.mark.parametrize(
    ("feed", "why"),
    [
        ({"a": "q"}, "the value of 'a': expected float32"),
        ({"a": None}, "the value of 'a': expected float32"),
        ({"a": np.ones(2, F32)}, "the value of 'a': expected float32"),
        ({1: 1.0}, "keys of type string, got 1"),
        ([{"a": 1.0}], "expected a dict, got a list"),
    ],
    ids=str,
)
def test_maps_of_something_else_are_refused(feed: Any, why: str) -> None:
    model = make_vectorizer(*BY_NAME, [1], [1, 3])
    with pytest.raises(Exception):  # noqa: B017, PT011  (it is refused there too)
        real.InferenceSession(model, providers=[CPU]).run(None, {"x": feed})
    session = ours.InferenceSession(model, providers=[CPU])
    with pytest.raises(ValueError, match=why):
        session.run(None, {"x": feed})
    np.testing.assert_array_equal(session.run(None, {"x": {"a": 1.0}})[0], [[1, 0, 0]])


def test_output_declared_of_one_axis_is_a_row_all_the_same() -> None:
    theirs, mine = run_both(make_vectorizer(*BY_NAME, [], [3]), {"b": 2.0})
    assert are_equal(theirs, mine)
