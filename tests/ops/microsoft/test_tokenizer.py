"""Tokenizer: by onnxruntime, and against Python's own expressions where the two mean the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from gpuexec.errors import InputError
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.text.pattern import parse
from gpuexec.ops.text.search import build_searcher
from tests.ops.microsoft.composed import DOMAIN
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
TEXT = tensor(TensorProto.STRING)
LINES = ("a b  c", "", "x", " ", "Hello, World!", "ü 日本 ß")


def tokens(id: str, *texts: str, shape: Sequence[int] | None = None, **fields: Any) -> ObjectCase:
    """Return a case by onnxruntime."""
    x = np.array(texts, object).reshape(shape or (len(texts),))
    attributes = {"mark": 0, "pad_value": "#", "mincharnum": 1} | fields
    case = ObjectCase(id, "Tokenizer", (x,), (TEXT,), (TEXT,), attributes, [], 1, DOMAIN)
    model = case.make_model().SerializeToString()
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x0": x})
    return ObjectCase(id, "Tokenizer", (x,), (TEXT,), (TEXT,), attributes, expected, 1, DOMAIN)


CASES = (
    tokens("space", *LINES, separators=[" "]),
    tokens("space_marked", *LINES, separators=[" "], mark=1),
    tokens("rows", *LINES, shape=(2, 3), separators=[" "], mark=1),
    tokens("least", *LINES, separators=[" "], mincharnum=2),
    tokens("several", "a, b;c", ",;", "a;", separators=[",", ";", " "]),
    tokens("one_of_many", "a, b;c d", separators=["[,; ]+"]),
    tokens("by_turns", "a b,c", separators=[" ", "b,"], mincharnum=2),
    tokens("longest", "abab c", separators=["a|ab"]),
    tokens("lazy", "abcd efgh", tokenexp="ab.*?d|ef"),
    tokens("any_case", "aXbX", separators=["(?i)x"]),
    tokens("empty_matches", "abc", "axbc", separators=["x*"]),
    tokens("empty_pattern", "a,b", separators=["", ","]),
    tokens("begin", "ab cd ab", "x", separators=["^ab", " "]),
    tokens("begin_of_pieces", "x ab", "ab", separators=[" ", "^ab"]),
    tokens("characters", *LINES, separators=[""]),
    tokens("characters_marked", *LINES, separators=[""], mark=1),
    tokens("characters_by_pattern", "a\nb", "ü", tokenexp="."),
    tokens("lines", "a\nb", tokenexp=".+"),
    tokens("words", *LINES, tokenexp="[a-zA-Z]+"),
    tokens("words_of_two", "abc de f ab1", tokenexp=r"\b\w\w+\b", mark=1),
    tokens("words_least", "abc de f", "a", tokenexp="[a-z]+", mincharnum=2),
    tokens("from_the_middle", "aba", "abab", tokenexp="(ab|b)a?", mincharnum=2),
    tokens("sometimes_empty", "abxxc", "abc", tokenexp="x*"),
    tokens("at_the_begin", "aaa", tokenexp="^a"),
    tokens("at_an_edge", "aa aa", tokenexp=r"\baa"),
    tokens("separators_win", "abc", separators=["b"], tokenexp="a"),
    tokens("nothing_found", " ", "", separators=[" "], mark=1),
    tokens("nothing", shape=(0,), separators=[" "]),
    tokens("no_columns", shape=(2, 0), separators=[" "], mark=1),
    tokens("no_rows", shape=(0, 2), separators=[" "]),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_tokens(case: ObjectCase) -> None:
    check_case(case)


def test_behind_the_end_nothing_is_left() -> None:
    fields = {"mark": 0, "mincharnum": 1, "pad_value": ""}
    for pattern, expected in (("$", ["ab c"]), ("c$", ["ab "]), (" |$", ["ab", "c"])):
        (y,) = build(f"{DOMAIN}.Tokenizer", {**fields, "separators": (pattern,)}).compute(np.array(["ab c"], object))
        assert y.tolist() == [expected]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "separators or tokenexp"),
        ({"separators": ()}, "separators or tokenexp"),
        ({"tokenexp": ""}, "separators or tokenexp"),
        ({"separators": (" ",), "mincharnum": 0}, "mincharnum to be 1 or more"),
        ({"separators": ("",), "mincharnum": 2}, "mincharnum 1 where tokens are characters"),
        ({"tokenexp": ".", "mincharnum": 2}, "mincharnum 1 where tokens are characters"),
        ({"separators": ("a", "(")}, "no closing"),
        ({"tokenexp": "(?=a)"}, "a group of an unknown kind"),
    ],
)
def test_attributes_that_onnxruntime_refuses_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(f"{DOMAIN}.Tokenizer", {"mark": 0, "mincharnum": 1, "pad_value": "", **fields})


def test_inputs_that_do_not_fit_are_refused() -> None:
    op = build(f"{DOMAIN}.Tokenizer", {"mark": 0, "mincharnum": 1, "pad_value": "", "separators": (" ",)})
    with pytest.raises(InputError, match=r"strings \[count\] or \[rows, count\]"):
        op.infer(TensorSpec((1, 1, 1), STRING))
    with pytest.raises(InputError, match="of type string"):
        op.infer(TensorSpec((1,), np.dtype(np.float32)))


# No choice of these matches a beginning of another's match, so that Python's first is the longest.
PATTERNS = ("ab+", "(?:ba)*c", "a|b", r"\bb", r"a\b", "a$", "^b", r"\Ba", "(?m)^a$", "[^a]b{1,2}")


@settings(max_examples=300, deadline=None, derandomize=True)
@given(text=st.text("abc \n", max_size=12), pattern=st.sampled_from(PATTERNS), start=st.integers(0, 12))
def test_a_search_finds_what_python_finds(text: str, pattern: str, start: int) -> None:
    start = min(start, len(text))
    found = re.compile(pattern.replace("$", r"\Z" if "(?m)" not in pattern else "$")).search(text, start)
    expected = None if found is None else found.span()
    if pattern == "^b" and start:
        expected = None  # Python begins a line at `pos` of no text either
    assert build_searcher(parse(pattern)).begin(text)(start) == expected


def test_a_search_of_a_pattern_with_many_ways_ends() -> None:
    text = "a" * 3000
    assert build_searcher(parse("(a|aa)*(a|aa)*b")).begin(text)(0) is None
    assert build_searcher(parse("(a|aa)*(a|aa)*b?")).begin(text)(5) == (5, 3000)
