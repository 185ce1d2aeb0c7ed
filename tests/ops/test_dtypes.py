"""Element types of operators, compared with ONNX's newest schemas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import pytest

from gpuexec.ir.operator import operator_names
from gpuexec.ir.spec import DTYPES, dtype_row, dtypes_of
from tests.ops.calls import find_calls, find_schema

ONNX_NAMES = {"float32": "float", "float64": "double"}
ROWS = {f"tensor({ONNX_NAMES.get(row.name, row.name)})": row for row in DTYPES}
NARROW = frozenset(row.name for row in DTYPES if row.is_narrow)
FLOAT8 = frozenset(f"float8{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"))
SIX_BITS = frozenset(("float6e2m3", "float6e3m2"))
BELOW_8_BITS = frozenset(dtype_row(t).name for t in dtypes_of("narrow int", "narrow uint")) | {"float4e2m1"}
# Operators that none of it calls, and why.
UNCALLED = {
    **dict.fromkeys(("If", "Loop", "Scan", "ai.onnx.preview.training.Gradient"), "their graphs decide"),
    **dict.fromkeys(
        (
            *("ConcatFromSequence", "Optional", "SequenceAt", "SequenceConstruct", "SequenceErase", "SequenceInsert"),
            *("SequenceLength", "SequenceMap"),
        ),
        "they take or give sequences and optionals, of any type",
    ),
}
# Types that a schema allows and `infer` refuses, and why.
REFUSED: Mapping[tuple[str, str], tuple[frozenset[str], str]] = {
    ("BitCast", "T1"): (BELOW_8_BITS, "a type of another width is no BitCast; those of one width pass"),
    ("DequantizeLinear", "T2"): (frozenset(("float8e8m0",)), "such a scale wants output_dtype; with it, it passes"),
}
# Types that no schema allows, of operators that move elements and need not know what they are.
MOVED = frozenset(
    (
        *(
            "CenterCropPad",
            "Compress",
            "Concat",
            "DepthToSpace",
            "Expand",
            "EyeLike",
            "Gather",
            "GatherElements",
            "GatherND",
        ),
        *("ReverseSequence", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth", "Split", "SplitToSequence"),
        *("TensorScatter", "Tile", "Trilu", "Where"),
    )
)
MORE: Mapping[tuple[str, str], tuple[frozenset[str], str]] = {
    ("Dropout", "T"): (NARROW - FLOAT8, "where it does not train it is a view"),
    ("OneHot", "T3"): (NARROW, "the two values are moved"),
    ("RandomNormalLike", "T1"): (NARROW, "nothing but the shape is looked at where the result has a type of its own"),
    ("RandomUniformLike", "T1"): (NARROW, "nothing but the shape is looked at where the result has a type of its own"),
    ("Resize", "T1"): (NARROW, "the nearest element is moved"),
    **{
        (name, letter): (SIX_BITS, "a view, a move or a conversion like that of any other")
        for name, letters in (
            *(
                (name, "T")
                for name in ("Flatten", "Pad", "Reshape", "Shape", "Size", "Squeeze", "Transpose", "Unsqueeze")
            ),
            ("Identity", "V"),
        )
        for letter in letters
    },
    **{("CastLike", letter): (SIX_BITS, "a conversion like any other") for letter in ("T1", "T2")},
}


def find_taken(name: str) -> Mapping[str, frozenset[str]]:
    """Return the types that an operator takes, by letter: alone, or with all that are of one type by now."""
    schema, taken = find_schema(name), defaultdict[str, set[str]](set)
    assert schema is not None
    for letter in {constraint.type_param_str for constraint in schema.type_constraints}:
        for row in DTYPES:
            for call in find_calls()[name]:
                of_letter = {
                    x.dtype for x, own in zip(call.inputs, call.letters, strict=True) if x is not None and own == letter
                }
                if not of_letter:
                    continue
                pairs = zip(call.inputs, call.letters, strict=True)
                like = {own for x, own in pairs if x is not None and x.dtype in of_letter}
                taken[letter]  # the letter is one that is called
                if call.takes({letter}, row.numpy) or (like > {letter} and call.takes(like, row.numpy)):
                    taken[letter].add(row.name)
                    break
    return {letter: frozenset(names) for letter, names in taken.items()}


def find_allowed(name: str) -> Mapping[str, frozenset[str]]:
    schema = find_schema(name)
    assert schema is not None
    return {
        each.type_param_str: frozenset(ROWS[text].name for text in each.allowed_type_strs if text in ROWS)
        for each in schema.type_constraints
    }


def of_onnx() -> list[str]:
    """Return the operators that have typed inputs of tensors in the newest schemas."""
    names = []
    for name in operator_names():
        schema = find_schema(name)
        if schema is not None and any(each.type_str in find_allowed(name) for each in schema.inputs):
            names.append(name)
    return names


def test_every_operator_is_called() -> None:
    called = set(find_calls())
    assert set(of_onnx()) - called <= set(UNCALLED), "add a call of these to CALLS"
    assert not set(UNCALLED) & called, "these are called by now"


@pytest.mark.parametrize("name", [name for name in of_onnx() if name not in UNCALLED])
def test_types_are_those_of_the_schema(name: str) -> None:
    taken, allowed = find_taken(name), find_allowed(name)
    for letter, names in taken.items():
        refused = allowed[letter] - names
        expected = REFUSED.get((name, letter), (frozenset(), ""))[0]
        assert refused == expected, f"{name}.{letter} is allowed {sorted(allowed[letter])}"
        beyond = (names - allowed[letter]) & NARROW
        more = NARROW if name in MOVED else MORE.get((name, letter), (frozenset(), ""))[0]
        assert beyond == (beyond & more), f"{name}.{letter} takes what it may compute wrongly"


def test_what_is_listed_is_there() -> None:
    """No list names an operator or type that is not so any more."""
    for (name, letter), (names, reason) in REFUSED.items():
        assert reason and names <= find_allowed(name)[letter] - find_taken(name)[letter], (name, letter)
    for (name, letter), (names, reason) in MORE.items():
        assert reason and names <= find_taken(name)[letter] - find_allowed(name)[letter], (name, letter)
    for name in MOVED:
        assert any(NARROW & (names - find_allowed(name)[letter]) for letter, names in find_taken(name).items()), name
