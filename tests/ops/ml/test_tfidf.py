"""TfIdfVectorizer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import gpuexec as gx
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from tests.ops.harness import Case, run_case
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
MIN_INT64, MAX_INT64 = np.iinfo(np.int64).min, np.iinfo(np.int64).max
POOL = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}
ROWS = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]])
# 1 and 2 tokens twice each, 3 tokens twice.
TRIPLES = {
    "ngram_counts": [0, 2, 6],
    "ngram_indexes": [0, 1, 2, 3, 4, 5],
    "pool_int64s": [-1, 5, 5, 5, 5, -1, 5, 5, 5, MAX_INT64, MIN_INT64, 0],
}
LONG = np.random.RandomState(3).choice([-1, 5, 5, 5, 7], (3, 40))


def case(id: str, x: Array, min_length: int, max_length: int, skips: int, mode: str = "TF", **more: Any) -> Case:
    """Return a case of the pool, or of another one."""
    fields = {key: more.pop(key) for key in ("expected", "oracle") if key in more}
    bounds = {"min_gram_length": min_length, "max_gram_length": max_length, "max_skip_count": skips, "mode": mode}
    attributes = {**(POOL if "ngram_counts" not in more else {}), **bounds, **more}
    return Case(id, "TfIdfVectorizer", (x,), attributes, terms=4, **fields)


WEIGHTS = [0.5, 2.0, -1.0, 3.0, 0.25, 10.0, np.inf]
CASES = [
    case("bigrams", ROWS, 2, 2, 0),
    case("bigrams_skips", ROWS, 2, 2, 5),
    case("both_skips", ROWS, 1, 2, 5),
    case("unigrams", ROWS, 1, 1, 3),
    case("int32", ROWS.astype(np.int32), 1, 2, 1),
    case("one_row", ROWS[1], 1, 2, 2),
    case("strided", ROWS[:, ::-2], 1, 2, 2),
    case("transposed", ROWS.T, 1, 2, 1),
    case("tf_weights", ROWS, 1, 2, 5, "TF", weights=WEIGHTS[:6] + [1.5], oracle="onnxruntime"),
    case("idf", ROWS, 1, 2, 5, "IDF", oracle="onnxruntime"),
    case("idf_weights", ROWS, 1, 2, 5, "IDF", weights=WEIGHTS[:6] + [1.5]),
    case("tfidf", ROWS, 1, 2, 5, "TFIDF", oracle="onnxruntime"),
    case("tfidf_weights", ROWS, 1, 2, 5, "TFIDF", weights=WEIGHTS[:6] + [1.5]),
    case("nothing_of_a_length", ROWS, 2, 2, 0, ngram_counts=[0, 0], ngram_indexes=[0, 1], pool_int64s=[5, 6, 7, 8]),
    case("long", LONG, 1, 3, 3, **TRIPLES),
    case("triples_alone", LONG, 3, 3, 20, **TRIPLES),
    case("extremes", np.array([[5, MAX_INT64, MIN_INT64, 0, MAX_INT64]]), 2, 3, 0, **TRIPLES),
    case("no_tokens", ROWS[:, :0], 1, 2, 1, expected=(np.zeros((2, 7), np.float32),)),
    case("no_rows", ROWS[:0], 1, 2, 1, expected=(np.zeros((0, 7), np.float32),)),
    case("int32_beyond", np.array([5, -1], np.int32), 1, 2, 0, ngram_counts=[0, 2], ngram_indexes=[0, 1, 2],
         pool_int64s=[2**32 + 5, 2**32 - 1, 5, -1], expected=(np.array([0, 0, 1], np.float32),)),
    # Columns between n-grams, one that two share, and weights by n-gram and not by column.
    case("shared", np.array([[1, 1, 2, 3]]), 1, 1, 0, "TFIDF", ngram_counts=[0], ngram_indexes=[4, 0, 4],
         pool_int64s=[1, 2, 3], weights=[10.0, 2.0, 0.5], expected=(np.array([[2, 0, 0, 0, 20.5]], np.float32),)),
    case("infinite_weight", np.array([1]), 1, 1, 0, "IDF", ngram_counts=[0], ngram_indexes=[0, 1], pool_int64s=[1, 2],
         weights=[np.inf, 1.0], expected=(np.array([np.inf, 0], np.float32),)),
    case("equal_ngrams", np.array([7, 7]), 1, 1, 0, ngram_counts=[0], ngram_indexes=[0, 1], pool_int64s=[7, 7]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_ngrams_are_counted(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=8, unique_by=tuple),
    st.integers(0, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from(["TF", "IDF", "TFIDF"]),
    st.integers(1, 9),
)
def test_any_pool_agrees(
    checks: str, grams: list[list[int]], skips: int, one: int, other: int, mode: str, count: int
) -> None:
    ordered = sorted(grams, key=len)
    starts = [sum(len(gram) for gram in ordered if len(gram) < length) for length in (1, 2, 3)]
    x = np.random.RandomState(count).randint(0, 4, (2, count))
    weights = [0.5 * number - 1 for number in range(len(grams))]
    pool = {"weights": weights, "ngram_counts": starts, "pool_int64s": [token for gram in ordered for token in gram]}
    given = case("any", x, min(one, other), max(one, other), skips, mode, ngram_indexes=list(range(len(grams))), **pool)
    run_case(given, checks)


TEXT, FLOAT = tensor(TensorProto.STRING), tensor()
WORDS = np.array([["a", "b", "a", "ü"], ["", "b", "b", "c"]], object)


@pytest.mark.parametrize("x", [WORDS, WORDS[0], WORDS[:, :0]], ids=["rows", "row", "none"])
def test_strings_are_counted(x: Array) -> None:
    attributes = {
        "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 2, 3, 4],
        "pool_strings": ["a", "ü", "", "a", "b", "b", "c"],
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 1,
        "mode": "TFIDF",
        "weights": [1.0, 2.0, 3.0, 4.0, 5.0],
    }
    # ab: once beside each other, and a before b's neighbour no other time; bc: with and without one between.
    expected = np.array([[2, 2, 0, 4, 0], [0, 0, 3, 0, 10]], np.float32)
    wanted = [expected[0] if x.ndim == 1 else expected * (x.shape[-1] > 0)]
    check_case(ObjectCase("strings", "TfIdfVectorizer", (x,), (TEXT,), (FLOAT,), attributes, wanted))


GOOD = case("good", ROWS, 1, 2, 0).attributes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "DF"}, "mode expects TF, IDF, TFIDF, got 'DF'"),
        ({"min_gram_length": 3}, "1 <= min_gram_length <= max_gram_length"),
        ({"max_gram_length": 3}, "<= the number of ngram_counts"),
        ({"max_skip_count": -1}, "a max_skip_count of 0 or more, got 1, 2, 2 and -1"),
        ({"pool_strings": ["a"]}, "got both or neither"),
        ({"pool_int64s": None}, "got both or neither"),
        ({"ngram_counts": [0, 5]}, "those of 2 are 5"),
        ({"ngram_counts": [4, 0]}, "those of 1 are -4"),
        ({"ngram_counts": [0, 12]}, "those of 2 are -2"),
        ({"ngram_indexes": [0, 1]}, "expected ngram_indexes of 0 or more and weights for 7 n-grams"),
        ({"ngram_indexes": [0, 1, 2, 3, 4, 5, -1]}, "expected ngram_indexes of 0 or more"),
        ({"weights": [1.0]}, "and 1 weights"),
    ],
    ids=str,
)
def test_attributes_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        build("TfIdfVectorizer", {**GOOD, **changes})


def test_inputs_that_do_not_fit_are_refused() -> None:
    op = build("TfIdfVectorizer", GOOD)
    with pytest.raises(gx.InputError, match=r"input of type int32, int64, got string\[2\]"):
        op.infer(TensorSpec((2,), STRING))
    with pytest.raises(gx.InputError, match=r"tokens \[count\] or \[rows, count\], got int64\[1,1,2\]"):
        op.infer(TensorSpec((1, 1, 2), np.dtype(np.int64)))
    strings = build("TfIdfVectorizer", {**GOOD, "pool_int64s": None, "pool_strings": list("abcdefghij")})
    with pytest.raises(gx.InputError, match=r"input of type string, got int64\[2\]"):
        strings.infer(TensorSpec((2,), np.dtype(np.int64)))


def test_attributes_are_those_of_onnx() -> None:
    made: Any = build("TfIdfVectorizer", GOOD)
    schema = onnx.defs.get_schema("TfIdfVectorizer")
    assert set(type(made).__dataclass_fields__) == set(schema.attributes)
    for key, attribute in schema.attributes.items():
        assert attribute.required == (key not in ("pool_int64s", "pool_strings", "weights"))
        if not attribute.required and key not in GOOD:
            assert getattr(made, key) is None


def test_integers_are_counted_on_the_device() -> None:
    chosen = replace(CASES[2], id="device")
    model = gx.load(ObjectCase(
        "device", "TfIdfVectorizer", (ROWS,), (tensor(TensorProto.INT64),), (FLOAT,), chosen.attributes
    ).make_model())  # fmt: skip
    with gx.Worker(model, backend=gx.BackendType.SIMULATOR) as worker:
        first = worker.run(ROWS)[0]
        assert worker.report().host_calls == ()
    np.testing.assert_array_equal(first, build("TfIdfVectorizer", chosen.attributes).compute(ROWS)[0])
