"""StringConcat and StringSplit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

import gpuexec as gx
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.operator import build
from gpuexec.ir.spec import STRING, TensorSpec
from tests.ops.objects import ObjectCase, check_case, tensor

Array = np.ndarray[Any, Any]
TEXT, COUNT = tensor(TensorProto.STRING), tensor(TensorProto.INT64)


def text(*items: str) -> Array:
    return np.array(items, object)


WORDS = text("a", "", "ü", "日本", "e f", "\U0001f600")
RANK_8 = WORDS.reshape(1, 2, 1, 3, 1, 1, 1, 1)
LINES = text("a,b", ",", "", "a,,b,c", " x  y ", "no delimiter")


def concat(id: str, x: Array, y: Array) -> ObjectCase:
    return ObjectCase(id, "StringConcat", (x, y), (TEXT, TEXT), (TEXT,))


def split(id: str, x: Array, **attributes: Any) -> ObjectCase:
    return ObjectCase(id, "StringSplit", (x,), (TEXT,), (TEXT, COUNT), attributes)


CASES = (
    concat("concat", WORDS, WORDS[::-1]),
    concat("concat_broadcast", WORDS.reshape(2, 3), WORDS[:2].reshape(2, 1)),
    concat("concat_scalar", WORDS, np.array("!", object)),
    concat("concat_0d", np.array("a", object), np.array("b", object)),
    concat("concat_empty", WORDS[:0], WORDS[:1]),
    concat("concat_rank_8", RANK_8, RANK_8[:, :1]),
    concat("concat_transposed", WORDS.reshape(2, 3).T, WORDS[:2]),
    split("split", LINES, delimiter=","),
    split("split_space", LINES),
    split("split_empty_delimiter", LINES, delimiter=""),
    split("split_two", text("a::b:c", "::"), delimiter="::"),
    split("split_most", LINES, delimiter=",", maxsplit=1),
    split("split_most_space", text("a b  c d", " a "), maxsplit=2),
    split("split_none", LINES, delimiter=",", maxsplit=0),
    ObjectCase(  # the schema: "leading or trailing whitespace is removed in the output"; the evaluator keeps the last
        "split_most_space_behind",
        "StringSplit",
        (text(" a  b c  ", "d\t"),),
        (TEXT,),
        (TEXT, COUNT),
        {"maxsplit": 1},
        [np.array([["a", "b c"], ["d", ""]], object), np.array([2, 1])],
    ),
    split("split_rank_3", LINES.reshape(1, 2, 3), delimiter=","),
    split("split_rank_8", LINES.reshape(1, 2, 1, 3, 1, 1, 1, 1)),
    ObjectCase(
        "split_0d", "StringSplit", (np.array("a b", object),), (TEXT,), (TEXT, COUNT), {}, [text("a", "b"), np.array(2)]
    ),
    split("split_nothing", LINES[:0]),
    split("split_no_rows", LINES.reshape(2, 3)[:, :0], delimiter=","),
    split("split_nothing_found", text("", "  ")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_strings_are_put_together_and_taken_apart(case: ObjectCase) -> None:
    check_case(case)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(
    st.lists(st.text("a, ü\t\n", max_size=8), min_size=1, max_size=6),
    st.sampled_from(["", ",", "a,"]),
    st.integers(0, 9),
)
def test_split_of_any_text_is_pythons_between_its_ends(lines: list[str], delimiter: str, max_splits: int) -> None:
    operator = build("StringSplit", {"delimiter": delimiter, "maxsplit": max_splits})
    y, counts = compute_arrays(operator, [text(*lines)])
    assert y is not None and counts is not None
    for line, row, count in zip(lines, y, counts, strict=True):
        found = line.split(delimiter, max_splits) if delimiter else line.strip().split(None, max_splits)
        assert row.tolist() == found + [""] * (y.shape[1] - count) and count == len(found)


def test_numbers_are_refused() -> None:
    numbers = TensorSpec((2,), np.dtype(np.float32))
    for name, count in (("StringConcat", 2), ("StringSplit", 1)):
        with pytest.raises(gx.InputError, match=rf"{name} expects input of type string, got float32\[2\]"):
            infer_specs(build(name, {}), [numbers] * count)
    with pytest.raises(gx.InputError, match="broadcast"):
        infer_specs(build("StringConcat", {}), [TensorSpec((2,), STRING), TensorSpec((3,), STRING)])


@pytest.mark.parametrize("name", ["StringConcat", "StringSplit", "StringNormalizer", "RegexFullMatch"])
def test_attributes_are_those_of_onnx(name: str) -> None:
    made: Any = build(name, {})
    schema = onnx.defs.get_schema(name)
    assert set(type(made).__dataclass_fields__) == set(schema.attributes)
    for key, attribute in schema.attributes.items():
        default = onnx.helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
        without = "" if key == "pattern" else None  # without a pattern, the empty one
        assert getattr(made, key) == (
            default.decode() if isinstance(default, bytes) else without if default is None else default
        )
    assert made.lower is None and made.host_reason == "strings lie on the host"
