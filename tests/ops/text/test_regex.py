"""RegexFullMatch: RE2's syntax, and the same answers as Python's own expressions where the two mean the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from gpuexec.ops.text.automaton import build_automaton
from gpuexec.ops.text.pattern import parse
from tests.ops.objects import ObjectCase, check_case, tensor

TEXT, BOOL = tensor(TensorProto.STRING), tensor(TensorProto.BOOL)

# Pattern, what matches, what does not.
MATCHES: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("", ("",), ("a",)),
    ("abc", ("abc",), ("ab", "abcd", "xabc")),
    ("a|bc|", ("a", "bc", ""), ("abc", "b")),
    ("a.c", ("abc", "aüc", "a\U0001f600c"), ("a\nc", "ac")),
    ("(?s)a.c", ("a\nc",), ("ac",)),
    ("(?s:a.)c.", ("a\ncb",), ("a\nc\n",)),
    ("a*b+c?", ("b", "aabbc"), ("ac", "")),
    ("a*?b+?c??", ("aabbc", "b"), ("ac",)),
    ("a{2}", ("aa",), ("a", "aaa")),
    ("a{2,}", ("aa", "aaaaa"), ("a",)),
    ("a{0,2}b", ("b", "ab", "aab"), ("aaab",)),
    ("a{,2}", ("a{,2}",), ("aa",)),
    ("a{b", ("a{b",), ("a",)),
    ("(ab){2}(?:c)(?P<n>d)(?<m>e)", ("ababcde",), ("abcde",)),
    ("[a-c]+", ("abc",), ("abd", "")),
    ("[^a-c]", ("d", "\n"), ("a",)),
    ("[]a]+", ("]a",), ("b",)),
    ("[^]a]", ("b",), ("]", "a")),
    ("[a-]+", ("a-",), ("b",)),
    (r"[\d.\]]+", ("1.]",), ("a",)),
    (r"[^\d]", ("a",), ("1",)),
    (r"[[:alpha:]_[:^alnum:]]+", ("a_!",), ("1",)),
    (r"[\x41-\x{43}\103]+", ("ABC",), ("D",)),
    (r"\d\D\w\W\s\S", ("1aa! x",), ("١aa! x", "1aé! x")),
    (r"\s", ("\t", "\f"), ("\v", "\u00a0")),
    (r"\pL+\p{Nd}\P{Lu}\p{^L}[\pN]", ("äß5a15",), ("äß5A15", "!5a15")),
    (r"\101\x41\x{1F600}\t\n\.\_\\", ("AA\U0001f600\t\n._\\",), ("AA",)),
    (r"\Qa.*\E+", ("a.*", "a.**"), ("a.", "aa")),
    (r"\Qa.", ("a.",), ("ab",)),
    (r"\Aab\z", ("ab",), ("ab\n",)),
    ("^ab$", ("ab",), ("ab\n",)),
    ("(?m)^a$\n^b$", ("a\nb",), ("a\n\nb",)),
    ("a\n^b", (), ("a\nb",)),
    (r"\bab\b !\B!", ("ab !!",), ("ab a!",)),
    (r"a\Bb\bc", (), ("abc",)),
    ("(?i)Straße[x-z]", ("STRAßEY",), ("STRASSEY",)),
    ("(?i)k\u017f", ("\u212aS", "Ks"), ("kt",)),
    ("(?i)[^k]", ("a",), ("K", "\u212a")),
    ("(?i)i", ("i", "I"), ("\u0131", "\u0130")),
    ("(?i)\u0131[^i]", ("\u0131\u0131",), ("Ii", "\u0131I")),
    ("(?i)ßᾈ", ("ẞᾀ",), ("SSᾈ",)),
    ("a(?i)b(?-i)c(?i:d)e", ("aBcDe", "abcde"), ("ABcDe", "aBCDe", "aBcDE")),
    ("(?i-s)a(?U)b*", ("ABb",), ("c",)),
    ("^*a", ("a",), ("",)),
    ("ab(?i)*c", ("aC", "abbc"), ("ababc", "aBc")),
    (r"a\Q\E{2}", ("aa",), ("a",)),
    (r"\pC\p{Any}", ("\x00\u0378",), ("\u0378a",)),
    (r"\x{000000041}", ("A",), ("B",)),
    ("(?:a{31}){32}", ("a" * 992,), ("a" * 991, "a" * 993)),
    ("(|a)+b", ("b", "aab"), ("c",)),
)


@pytest.mark.parametrize(("pattern", "yes", "no"), MATCHES, ids=[row[0] or "empty" for row in MATCHES])
def test_pattern_is_read_as_re2_reads_it(pattern: str, yes: tuple[str, ...], no: tuple[str, ...]) -> None:
    x = np.array([*yes, *no], object)
    (y,) = compute_arrays(build("RegexFullMatch", {"pattern": pattern}), [x])
    assert y is not None and y.dtype == np.bool_
    assert y.tolist() == [True] * len(yes) + [False] * len(no)


REFUSED = (
    (r"(a)\1", r"\1, which is not known"),
    (r"\8", r"\8, which is not known"),
    ("a(?=b)", "a group of an unknown kind"),
    ("(?<!b)a", "a group of an unknown kind"),
    ("(?>a)", "a group of an unknown kind"),
    ("(?P=n)", "a group of an unknown kind"),
    ("(?#a)", "a group of an unknown kind"),
    ("a**", "a repetition of a repetition"),
    ("a*+", "a repetition of a repetition"),
    ("a{2}{3}", "a repetition of a repetition"),
    ("*a", "a repetition of nothing"),
    ("(+a)", "a repetition of nothing"),
    ("a{1001}", "not in order or above 1000"),
    ("a{3,2}", "not in order or above 1000"),
    ("((a{100}){100}){100}", "repetitions of repetitions, together above 1000"),
    ("(?:b|(a{31})*){33}", "repetitions of repetitions, together above 1000"),
    ("(?:" + "a" * 51 + "){1000}", "too large"),
    ("(?i)*", "a repetition of nothing"),
    ("ab*(?i)*?+", "a repetition of a repetition"),
    ("(" * 300 + ")" * 300, "groups more than 200 deep"),
    ("(a", "no closing )"),
    ("a)", "an unexpected )"),
    ("[a", "no closing ]"),
    ("[b-a]", "the range b-a, not in order"),
    ("[[:word]]x[[:foo:]]", "the unknown class [:foo:]"),
    (r"[\b]", r"\b, which is not known"),
    (r"\C", r"\C, which is not known"),
    (r"\Z", r"\Z, which is not known"),
    (r"\p{Greek}", "'Greek', no general category"),
    (r"\x{110000}", "no number of a character"),
    (r"\xg", "no number of a character"),
    ("a\\", "no character behind"),
)


@pytest.mark.parametrize(("pattern", "words"), REFUSED, ids=[row[0][:20] for row in REFUSED])
def test_what_re2_lacks_is_refused(pattern: str, words: str) -> None:
    with pytest.raises(gx.InputError, match=re.escape(words)):
        build("RegexFullMatch", {"pattern": pattern})


_ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\b", "^", "(?:a|b1)", "(?:|b)"])
_PATTERNS = st.recursive(
    st.tuples(_ATOMS, st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "*?"])).map(
        lambda each: f"(?:{each[0]}){each[1]}"
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
    ),
    max_leaves=6,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(_PATTERNS, st.lists(st.text("ab1 \n", max_size=6), min_size=1, max_size=5))
def test_matches_agree_with_python(pattern: str, texts: list[str]) -> None:
    expected = [re.fullmatch(pattern, each, re.ASCII) is not None for each in texts]
    (y,) = compute_arrays(build("RegexFullMatch", {"pattern": pattern}), [np.array(texts, object)])
    assert y is not None and y.tolist() == expected


def test_a_pattern_that_could_be_tried_in_many_ways_is_followed_once() -> None:
    (y,) = compute_arrays(build("RegexFullMatch", {"pattern": "(a*)*(a|aa)+b"}), [np.array(["a" * 3000], object)])
    assert y is not None and y.tolist() == [False]


def test_what_is_kept_of_long_texts_is_little() -> None:
    automaton = build_automaton(parse(".*a.{900}"))
    text = "".join("ab"[number & 1] for number in np.random.default_rng(0).integers(0, 99, 1500).tolist())
    assert automaton.matches(text) == (text[-901] == "a")
    assert 0 < sum(len(states) for states in automaton._steps.values()) < 200_000


def node(id: str, x: Any, pattern: str) -> ObjectCase:
    return ObjectCase(id, "RegexFullMatch", (np.array(x, object),), (TEXT,), (BOOL,), {"pattern": pattern})


CASES = (
    node("rank_2", [["www.google.com", "a.com"], ["", "www.x"]], r"www\.[\w.-]+\bcom"),
    node("rank_8", np.array(["a", "b", "ab", ""], object).reshape(1, 2, 1, 1, 2, 1, 1, 1), "a?b"),
    node("scalar", np.array("x1", object), r"x\d"),
    node("empty", np.zeros((2, 0), object), "a"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_in_models(case: ObjectCase) -> None:
    check_case(case)


def test_numbers_are_refused() -> None:
    with pytest.raises(gx.InputError, match=r"RegexFullMatch expects input of type string, got int64\[2\]"):
        infer_specs(build("RegexFullMatch", {}), [TensorSpec((2,), np.dtype(np.int64))])
    assert infer_specs(build("RegexFullMatch", {}), [TensorSpec((2,), STRING)])[0].dtype == np.bool_
