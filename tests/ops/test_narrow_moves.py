"""Data movement of narrow elements: bits are kept, and arithmetic is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.errors import InputError
from gpuexec.ir.operator import Array, build
from gpuexec.ir.spec import TensorSpec, dtype_row, dtypes_of
from tests.ops.harness import Case, run_case
from tests.ops.test_narrow_types import POWER, codes, every_code
from tests.ops.tolerance import to_bits


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# An operator with a place for data, and what else it takes; `0` stands for a tensor [2, 3, 4] of the type.
MOVES: tuple[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]], ...] = (
    ("CenterCropPad", (0, ints(4, 3)), {"axes": (0, 2)}, (1,)),
    ("Concat", (0, 0), {"axis": 1}, ()),
    ("DepthToSpace", (1,), {"blocksize": 2}, ()),
    ("Expand", (0, ints(2, 2, 3, 4)), {}, (1,)),
    ("Flatten", (0,), {"axis": 2}, ()),
    ("Gather", (0, ints(2, 0, -1)), {"axis": 1}, ()),
    ("GatherElements", (0, ints(1, 0, 1).reshape(1, 3, 1)), {}, ()),
    ("GatherND", (0, ints(1, 2, 0, 1).reshape(2, 2)), {}, ()),
    ("Identity", (0,), {}, ()),
    ("Pad", (0, ints(1, 0, 2, 0, 1, 3)), {}, (1,)),
    ("Pad", (0, ints(1, 0, 2, 0, 1, 3)), {"mode": "reflect"}, (1,)),
    ("Reshape", (0, ints(4, -1)), {}, (1,)),
    ("Resize", (0, None, np.array([1, 2, 0.5], np.float32)), {"mode": "nearest"}, (2,)),
    ("ReverseSequence", (0, ints(1, 2, 2)), {"batch_axis": 1, "time_axis": 0}, ()),
    ("ScatterElements", (0, ints(1, 0).reshape(1, 2, 1), 2), {"axis": 1}, ()),
    ("ScatterND", (0, ints(1, 0).reshape(1, 2), 3), {}, ()),
    ("Slice", (0, ints(2, -1), ints(0, 0), ints(1, 2), ints(-1, -2)), {}, (1, 2, 3, 4)),
    ("SpaceToDepth", (4,), {"blocksize": 2}, ()),
    ("Split", (0,), {"axis": 2, "num_outputs": 2}, ()),
    ("Squeeze", (2, ints(2)), {}, (1,)),
    ("Tile", (0, ints(2, 1, 2)), {}, (1,)),
    ("Transpose", (0,), {"perm": (2, 0, 1)}, ()),
    ("Trilu", (0,), {"upper": 0}, ()),
    ("Unsqueeze", (0, ints(0)), {}, (1,)),
    ("Where", (np.arange(12).reshape(3, 4) % 3 == 0, 0, 0), {}, ()),
)
SHAPES = ((2, 3, 4), (1, 8, 2, 3), (1, 2, 1), (1, 4), (1, 2, 4, 6))
# One of each width and of each kind of NumPy: all of them are a byte.
MOVED_TYPES = ("float8e5m2", "float8e8m0", "int4", "uint2", "float4e2m1", "float6e3m2")


@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"{move[0]}_{move[2].get('mode', '')}")
def test_moves_keep_the_bits(checks: str, move: Any) -> None:
    name, given, attributes, const = move
    # A crop that fills up wants a zero, which powers of two have not.
    types = [each for each in MOVED_TYPES if name != "CenterCropPad" or each != POWER.name]
    for dtype in (dtype_row(each).numpy for each in types):
        mask = (1 << dtype_row(dtype).width) - 1
        inputs = [
            (np.random.default_rng(i).integers(0, 256, SHAPES[x]) & mask).astype(np.uint8) if isinstance(x, int) else x
            for i, x in enumerate(given)
        ]
        plain_bits = build(name, attributes).compute(*inputs)
        typed = tuple(x.view(dtype) if isinstance(g, int) else x for g, x in zip(given, inputs, strict=True))
        expected = tuple(y.view(dtype) for y in plain_bits if y is not None)
        outputs = (True,) * len(expected)
        case = Case(f"{name}_{dtype.name}", name, typed, attributes, const, outputs, opset=25, expected=expected)
        run_case(case, checks)


def test_tensors_of_a_value_have_its_bits(checks: str) -> None:
    for dtype in (dtype_row(each).numpy for each in MOVED_TYPES):
        value = np.array([3], np.uint8).view(dtype)
        expected = np.full((2, 3), 3, np.uint8).view(dtype)
        run_case(
            Case(dtype.name, "ConstantOfShape", (ints(2, 3),), {"value": value}, (0,), expected=(expected,)), checks
        )
        run_case(Case(dtype.name, "Constant", (), {"value": value}, expected=(value,)), checks)
        ones = np.eye(3, dtype=np.float32).astype(dtype)
        if dtype != POWER.numpy:
            run_case(Case(dtype.name, "EyeLike", (np.zeros((3, 3), dtype),), expected=(ones,)), checks)


@pytest.mark.parametrize(("source", "to"), [("float8e5m2", "int8"), ("uint8", "float8e8m0"), ("int4", "float4e2m1")])
def test_bit_casts_keep_the_bits(checks: str, source: str, to: str) -> None:
    x = every_code(dtype_row(source)) if dtype_row(source).is_narrow else np.arange(256, dtype=np.uint8)
    run_case(Case("bits", "BitCast", (x,), {"to": dtype_row(to).code}, expected=(x.view(dtype_row(to).numpy),)), checks)


def test_bit_cast_to_bool_looks_at_bytes(checks: str) -> None:
    x = every_code(dtype_row("float8e4m3fn"))
    run_case(Case("bool", "BitCast", (x,), {"to": 9}, expected=(np.arange(256) != 0,)), checks)


def test_bit_cast_of_other_bits_is_refused() -> None:
    with pytest.raises(InputError, match="one width, got int4 of 4 bits and int8 of 8"):
        build("BitCast", {"to": 3}).infer(TensorSpec((2,), dtype_row("int4").numpy))


@pytest.mark.parametrize(
    ("name", "attributes", "inputs"),
    [
        ("Unique", {}, ((4,),)),
        ("NonZero", {}, ((4,),)),
        ("ScatterElements", {"reduction": "add"}, ((4,), np.dtype(np.int64), (4,))),
        ("ScatterND", {"reduction": "max"}, ((4,), np.dtype(np.int64), (4,))),
    ],
)
def test_what_computes_refuses_them(name: str, attributes: dict[str, Any], inputs: tuple[Any, ...]) -> None:
    for dtype in dtypes_of("narrow float", "narrow int", "narrow uint"):
        specs = [TensorSpec((4,), each if isinstance(each, np.dtype) else dtype) for each in inputs]
        with pytest.raises(InputError, match="computes with elements of its"):
            build(name, attributes).infer(*specs)


def test_bits_are_compared() -> None:
    """The comparison that these tests rest on tells codes apart that are one number."""
    zero, minus = codes([0x00], dtype_row("float8e4m3fn")), codes([0x80], dtype_row("float8e4m3fn"))
    assert not np.array_equal(to_bits(zero), to_bits(minus))
