"""Sequence operators: construction and changes of single elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, defs

import gpuexec as gx
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.containers import make_sequence, read_sequence
from gpuexec.ir.operator import build, find_operator
from gpuexec.ir.spec import DTYPES, STRING, TensorSpec
from tests.model.objects import BACKENDS, are_equal, parse, run_on
from tests.ops.objects import ObjectCase, apply, check_case, sequence, tensor

A, B, C = np.arange(3, dtype=np.float32), np.ones((2, 2), np.float32), np.float32(5).reshape(())
INT64, INT32 = tensor(TensorProto.INT64), tensor(TensorProto.INT32)
TEXT = TensorProto.STRING
WORDS = np.array(["a", ""], object)
SEQ, ONE = sequence(), tensor()

CASES = (
    ObjectCase("construct", "SequenceConstruct", (A, B, C), (ONE,) * 3, (SEQ,)),
    ObjectCase("construct_one", "SequenceConstruct", (B[:, :0],), (ONE,), (SEQ,)),
    ObjectCase("construct_text", "SequenceConstruct", (WORDS, WORDS[:1]), (tensor(TEXT),) * 2, (sequence(TEXT),)),
    ObjectCase("empty", "SequenceEmpty", (), (), (SEQ,)),
    ObjectCase("empty_of_type", "SequenceEmpty", (), (), (sequence(TEXT),), {"dtype": TEXT}),
    ObjectCase("length", "SequenceLength", ([A, B],), (SEQ,), (INT64,)),
    ObjectCase("length_of_none", "SequenceLength", ([],), (SEQ,), (INT64,), expected=[np.array(0)]),
    *(
        ObjectCase(f"at_{place}", "SequenceAt", ([A, B, C], np.int64(place)), (SEQ, INT64), (ONE,))
        for place in (0, 2, -1, -3)
    ),
    ObjectCase("at_int32", "SequenceAt", ([A, B], np.int32(1)), (SEQ, INT32), (ONE,)),
    ObjectCase("at_text", "SequenceAt", ([WORDS], np.int64(0)), (sequence(TEXT), INT64), (tensor(TEXT),)),
    *(
        ObjectCase(
            f"insert_{place}",
            "SequenceInsert",
            ([A, B], C, np.int64(place)),
            (SEQ, ONE, INT64),
            (SEQ,),
            expected=[wanted],
        )
        for place, wanted in ((0, [C, A, B]), (1, [A, C, B]), (2, [A, B, C]), (-1, [A, C, B]), (-2, [C, A, B]))
    ),
    ObjectCase("insert_at_the_end", "SequenceInsert", ([A], B), (SEQ, ONE), (SEQ,)),
    ObjectCase("insert_into_none", "SequenceInsert", ([], B), (SEQ, ONE), (SEQ,), expected=[[B]]),
    *(
        ObjectCase(
            f"erase_{place}", "SequenceErase", ([A, B, C], np.int64(place)), (SEQ, INT64), (SEQ,), expected=[wanted]
        )
        for place, wanted in ((0, [B, C]), (1, [A, C]), (-1, [A, B]), (-3, [B, C]))
    ),
    ObjectCase("erase_the_last", "SequenceErase", ([A, B],), (SEQ,), (SEQ,)),
    ObjectCase("identity", "Identity", ([A, B],), (SEQ,), (SEQ,)),
    ObjectCase("identity_of_none", "Identity", ([],), (SEQ,), (SEQ,), expected=[[]]),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_sequence_operators(case: ObjectCase) -> None:
    check_case(case)


@pytest.mark.parametrize("dtype", [*(row.numpy for row in DTYPES), STRING], ids=str)
def test_elements_are_of_any_type(dtype: np.dtype[Any]) -> None:
    item = np.array(["a", "b"], STRING) if dtype == STRING else np.array([0, 1]).astype(dtype)
    (made,) = compute_arrays(build("SequenceConstruct", {}), [item])
    assert made is not None
    (kept,) = read_sequence(made)
    assert kept.dtype == dtype
    assert list(map(str, kept)) == list(map(str, item))
    (taken,) = compute_arrays(build("SequenceAt", {}), [made, np.asarray(0)])
    assert taken is kept


def test_elements_are_no_memory_of_others() -> None:
    source = np.zeros(4, np.float32)
    (made,) = compute_arrays(build("SequenceConstruct", {}), [source[1:]])
    (longer,) = compute_arrays(build("SequenceInsert", {}), [made, source])
    source[:] = 7
    assert made is not None and longer is not None
    assert [item.tolist() for item in read_sequence(longer)] == [[0] * 3, [0] * 4]
    assert len(read_sequence(made)) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "made",
    [
        "q = Identity (s)",
        "q = SequenceEmpty ()",
        "q = SequenceEmpty <dtype = 1> ()",
        "p = SequenceConstruct (x) q = SequenceErase (p)",
        "q = SplitToSequence (x)",
    ],
)
def test_an_empty_sequence_takes_what_is_of_its_type_alone(backend: gx.BackendType, made: str) -> None:
    text = f"(seq(float[]) s, float[0] x, {{}}[1] e) => (seq(float[]) t) {{{{ {made} t = SequenceInsert (q, e) }}}}"
    right, wrong = (gx.load(parse(text.format(name))) for name in ("float", "int64"))
    given = {"s": [], "x": np.zeros(0, np.float32)}
    assert are_equal(run_on(backend, right, {**given, "e": A[:1]}), [[A[:1]]])
    with pytest.raises(gx.InputError, match="of one type, expected float32, got int64"):
        run_on(backend, wrong, {**given, "e": np.ones(1, np.int64)})


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("SequenceConstruct", [], "at least one input"),
        ("SequenceConstruct", [A, A.astype(np.int32)], "of one type, expected float32, got int32"),
        ("SequenceAt", [A, np.asarray(0)], r"SequenceAt expects a sequence, got float32\[3\]"),
        ("SequenceAt", [make_sequence([A]), np.asarray(1)], "position 1 is outside the sequence of 1; .* -1 to 0"),
        ("SequenceAt", [make_sequence([A]), np.asarray(-2)], "position -2 is outside"),
        ("SequenceAt", [make_sequence([]), np.asarray(0)], "expected none, for it is empty"),
        ("SequenceAt", [make_sequence([A]), np.asarray(0.0)], "position of one int32 or int64, got float64"),
        ("SequenceAt", [make_sequence([A]), np.array([0, 0])], r"one int32 or int64, got int64\[2\]"),
        ("SequenceLength", [A], "expects a sequence"),
        ("SequenceErase", [make_sequence([])], "position -1 is outside the sequence of 0"),
        ("SequenceErase", [A], "expects a sequence"),
        ("SequenceInsert", [A, A], "expects a sequence"),
        ("SequenceInsert", [make_sequence([]), make_sequence([A])], "a tensor to put in, got sequence"),
    ],
)
def test_wrong_input_is_refused_by_the_shape_rule_or_before_anything_is_made(
    name: str, inputs: list[Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        apply(name, {}, inputs)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([make_sequence([A]), A, np.asarray(2)], "position 2 is outside the sequence of 1; expected from -1 to 1"),
        ([make_sequence([A]), A.astype(np.int8)], "expected float32, got int8"),
    ],
)
def test_insert_refuses_what_does_not_fit(given: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compute_arrays(build("SequenceInsert", {}), given)


def test_an_element_is_inferred_only_from_a_sequence_that_is_known() -> None:
    known = TensorSpec.of(make_sequence([A]))
    with pytest.raises(NeedsHostValue) as caught:
        infer_specs(build("SequenceAt", {}), [TensorSpec((), known.dtype), TensorSpec((), np.dtype(np.int64))])
    assert caught.value.index == 0
    with pytest.raises(NeedsHostValue) as caught:
        infer_specs(build("SequenceAt", {}), [known, TensorSpec((), np.dtype(np.int64))])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    "name",
    ["SequenceConstruct", "SequenceEmpty", "SequenceAt", "SequenceInsert", "SequenceErase", "SequenceLength"]
    + ["SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement"],
)
def test_attributes_are_those_of_the_schema(name: str) -> None:
    schema, found = defs.get_schema(name), find_operator(name)
    assert found is not None
    defaults = {key: getattr(found, key, None) for key in schema.attributes}
    assert set(found.__dataclass_fields__) == set(schema.attributes)
    for key, attribute in schema.attributes.items():
        if attribute.default_value.name:
            assert found.__dataclass_fields__[key].default == attribute.default_value.i, defaults
