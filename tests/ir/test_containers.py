"""Strings and containers as arrays: conversion from and to callers' objects."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError
from gpuexec.ir.containers import (
    describe,
    hold,
    make_blank,
    make_map,
    make_optional,
    make_sequence,
    pack,
    read_map,
    read_optional,
    read_sequence,
    to_strings,
    unpack,
)
from gpuexec.ir.spec import DTYPES, MAP, OPTIONAL, SEQUENCE, STRING, DeclaredSpec, DTypeRow, dtype_row
from tests.model.objects import are_equal

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
A = np.arange(3, dtype=np.float32)
FLOATS, TEXTS = DeclaredSpec(F32, None), DeclaredSpec(STRING, ("k",))
SEQ, OPT = DeclaredSpec(SEQUENCE, (), FLOATS), DeclaredSpec(OPTIONAL, (), FLOATS)
SCORES = DeclaredSpec(SEQUENCE, (), DeclaredSpec(MAP, (), DeclaredSpec(F32, ()), STRING))


def numbers(name: str) -> DeclaredSpec:
    """Return the type of a sequence of tensors of a type."""
    return DeclaredSpec(SEQUENCE, (), DeclaredSpec(dtype_row(name).numpy, None))


def test_containers_are_arrays_whose_dtype_says_what_they_are() -> None:
    made = (make_sequence([A]), make_optional(A), make_optional(None), make_map({1: A}))
    assert [(array.shape, array.dtype) for array in made] == [((), d) for d in (SEQUENCE, OPTIONAL, OPTIONAL, MAP)]
    assert read_sequence(made[0])[0] is A and read_optional(made[1]) is A and read_map(made[3])[1] is A
    assert read_optional(made[2]) is None


def test_what_is_read_of_a_container_can_be_changed_without_changing_it() -> None:
    sequence, mapping = make_sequence([A]), make_map({1: A})
    read_sequence(sequence).append(A)
    read_map(mapping)[2] = A
    assert (len(read_sequence(sequence)), list(read_map(mapping))) == (1, [1])


@pytest.mark.parametrize(
    "given_words",
    [["a", "ü"], np.array(["a", "ü"]), [b"a", "ü".encode()], np.array(["a", "ü"], np.dtypes.StringDType())]
    + [np.array(["a", "ü"], object), np.array([b"a", "ü"], object), [np.str_("a"), "ü"]],
)
def test_strings_come_in_any_form_and_leave_as_str(given_words: Any) -> None:
    made = to_strings(given_words)
    assert (made.dtype, made.tolist()) == (STRING, ["a", "ü"])
    assert all(type(item) is str for item in made)


@pytest.mark.parametrize(
    ("shape", "content"), [((), "a"), ((0,), []), ((0, 2), np.empty((0, 2), "U3")), ((1, 2), [["a", "b"]])]
)
def test_strings_have_any_shape(shape: tuple[int, ...], content: Any) -> None:
    made = to_strings(content)
    assert (made.shape, made.dtype) == (shape, STRING)


def test_strings_keep_their_last_characters_and_take_the_room_they_need() -> None:
    assert to_strings(["a\0", b"\0"]).tolist() == ["a\0", "\0"] and to_strings("a\0").item() == "a\0"
    assert unpack(pack(["a\0"], DeclaredSpec(SEQUENCE, ())))[0].item() == "a\0"
    tracemalloc.start()
    try:
        to_strings(["a" * 1_000_000, *"b" * 99])
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


def test_strings_are_a_copy() -> None:
    words = np.array(["a", "b"], object)
    made = to_strings(words)
    words[0] = "c"
    assert made.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([3]), "expected strings, got int64"),
        (3, "an element of type int"),
        (["a", 1], "an element of type int"),
        (["a", ["b"]], "an element of type list"),
        ([b"\xff"], "is not text in UTF-8"),
        (np.array(["a", None], object), "an element of type NoneType"),
        (make_sequence([]), "expected strings, got sequence"),
    ],
)
def test_what_is_no_string_is_refused(content: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        to_strings(content)


@pytest.mark.parametrize(
    ("content", "declared"),
    [
        ([A, A[:1]], SEQ),
        ([], SEQ),
        (None, OPT),
        (A, OPT),
        ([A], DeclaredSpec(OPTIONAL, (), SEQ)),
        ([{"a": np.float32(1)}, {}], SCORES),
        ([["a"], ["b", "c"]], DeclaredSpec(SEQUENCE, (), TEXTS)),
        ({1: A}, DeclaredSpec(MAP, (), FLOATS, I64)),
        ([A, ["a"], [A], {"k": A}], DeclaredSpec(SEQUENCE, ())),
    ],
    ids=str,
)
def test_what_is_packed_is_unpacked_again(content: Any, declared: DeclaredSpec) -> None:
    packed = pack(content, declared)
    assert packed.dtype == declared.dtype and packed.shape == ()
    assert are_equal(unpack(packed), content)
    assert pack(packed, declared) is packed


@pytest.mark.parametrize("row", DTYPES, ids=lambda row: row.name)
def test_numbers_of_python_become_any_type_that_holds_them(row: DTypeRow) -> None:
    one = True if row.kind == "bool" else 1
    made = pack([[one], one, []], DeclaredSpec(SEQUENCE, (), DeclaredSpec(row.numpy, None)))
    assert [(item.dtype, item.astype(np.float64).tolist()) for item in read_sequence(made)] == [
        (row.numpy, [1.0]),
        (row.numpy, 1.0),
        (row.numpy, []),
    ]


def test_numbers_are_brought_to_the_declared_type_and_copied() -> None:
    source = A.copy()
    first, second = read_sequence(pack([source, [1, 2.5]], SEQ))
    source[:] = 9
    assert are_equal(first, A) and are_equal(second, np.array([1, 2.5], F32))


@pytest.mark.parametrize(
    ("content", "declared", "message"),
    [
        (A, SEQ, "expected a list of values, got a ndarray"),
        ("text", SEQ, "expected a list of values, got a str"),
        ({}, SEQ, "expected a list of values, got a dict"),
        ([A.astype(np.int64)], SEQ, r"element 0: expected float32\[...\], got int64\[3\]"),
        ([A, ["a"]], SEQ, "element 1: expected float32"),
        (
            [A],
            DeclaredSpec(SEQUENCE, (), DeclaredSpec(F32, (None, 2))),
            r"element 0: expected float32\[\?,2\], got float32",
        ),
        ([A[None]], DeclaredSpec(SEQUENCE, (), DeclaredSpec(F32, (None, 2))), r"got float32\[1,3\]"),
        (["a"], OPT, "what the optional holds: expected float32"),
        ([1], SCORES, "element 0: expected a dict, got a int"),
        ([{1: 1.0}], SCORES, "expected keys of type string, got 1"),
        ([{"a": "b"}], SCORES, "the value of 'a': expected float32"),
        ({"a": A}, DeclaredSpec(MAP, (), FLOATS, I64), "expected keys of type int64, got 'a'"),
        ({1.5: A}, DeclaredSpec(MAP, ()), "expected keys of type int or str, got 1.5"),
        ([1j], DeclaredSpec(SEQUENCE, ()), "element 0: Element type dtype"),
        ([[1, [2]]], SEQ, r"element 0: expected float32\[...\], got a list that is no array"),
        ([[2**40]], numbers("int32"), "element 0: expected int32, got 1099511627776, which is beyond that"),
        ([[1, -1]], numbers("uint64"), "got -1, which is beyond that"),
        ([[2**63]], numbers("int64"), "got 9223372036854775808, which is beyond that"),
        ([np.int64(9)], numbers("int4"), r"expected int4\[...\], got int64\[\]"),
        ([[1, 7e4]], numbers("float16"), "got 70000.0, which is beyond that"),
        ([[1.5]], numbers("int64"), r"expected int64\[...\], got float64\[1\]"),
        ([[1]], numbers("bool"), r"expected bool\[...\], got int64\[1\]"),
        ([[True]], numbers("int32"), r"expected int32\[...\], got bool\[1\]"),
    ],
)
def test_what_does_not_fit_is_refused(content: Any, declared: DeclaredSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        pack(content, declared)


def test_what_is_unpacked_is_the_callers_own() -> None:
    packed = make_sequence([hold(A.copy()), make_optional(hold(A.copy()))])
    for found in (unpack(packed), unpack(packed)):
        assert are_equal(found, [A, A])
        found[0][:], found[1][:] = 7, 8


def test_what_is_held_is_no_memory_of_others() -> None:
    source = np.arange(6)
    kept = hold(source[1:])
    source[:] = 0
    assert kept.tolist() == [1, 2, 3, 4, 5] and not kept.flags.writeable
    assert hold(kept) is kept


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (make_sequence([A, A, A[:1]]), "sequence(3 of float32[3], float32[1])"),
        (make_sequence([]), "sequence(empty)"),
        (make_optional(make_sequence([A])), "optional(sequence(1 of float32[3]))"),
        (make_optional(None), "optional(empty)"),
        (make_map({1: A}), "map"),
        (A, "float32[3]"),
    ],
)
def test_containers_are_described(array: Any, words: str) -> None:
    assert describe(array) == words


def test_blanks_stand_for_nothing() -> None:
    assert unpack(make_blank((), SEQUENCE)) == [] and unpack(make_blank((), MAP)) == {}
    assert unpack(make_blank((), OPTIONAL)) is None
    assert are_equal(make_blank((2,), STRING), np.array(["", ""], object))
    assert are_equal(make_blank((2,), F32), np.zeros(2, F32))


NESTED = st.recursive(
    st.lists(st.integers(-5, 5), max_size=3).map(lambda row: np.array(row, np.int64))
    | st.just(np.array(["a"], object)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.lists(NESTED, max_size=4))
def test_anything_nested_comes_back_as_it_was(content: list[Any]) -> None:
    assert are_equal(unpack(pack(content, DeclaredSpec(SEQUENCE, ()))), content)
