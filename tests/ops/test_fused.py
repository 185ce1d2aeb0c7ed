"""Fused epilogues: bit-equal to the separate operators, on the host and on a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.operator import build, find_operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ops.elementwise.epilogue import FINISHED, fused_name, place_operands, without_epilogue
from gpuexec.ops.elementwise.fused import PRODUCERS, Fused
from gpuexec.ops.elementwise.region_steps import write_number
from gpuexec.ops.nn.conv_depthwise import DTYPES as DEPTHWISE_DTYPES
from gpuexec.ops.nn.conv_depthwise import FORMS
from gpuexec.ops.quant.narrow_weight import HALF, INT8, PAIRS
from gpuexec.ops.reduce.reduce import REDUCTIONS
from tests.ops.chains import MADE, VALUE
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Array, Case, run_case
from tests.ops.tolerance import to_bits

RNG = np.random.default_rng(56)
FLOAT, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
DTYPES = (FLOAT, HALF, BFLOAT16, DOUBLE)
TERMS = 200
LARGE = 128 * 340  # windows of as many large tiles as are two on each multiprocessor of the largest device

RELU = ("Relu", (), (VALUE,))
CLIP = ("Clip", (), (VALUE, "-0.5", "0.75"))
TO_HALF = ("Cast", (("to", dtype_row(HALF).code),), (VALUE,))
TO_FLOAT = ("Cast", (("to", dtype_row(FLOAT).code),), (VALUE,))
HALVED = ("Mul", (), ("0.5", VALUE))
Steps = tuple[Any, ...]


def numbers(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype)


def inputs_of(name: str, dtype: Any) -> tuple[tuple[Array | None, ...], dict[str, Any]]:
    """Return inputs and attributes of a producer; each makes [2, 6, 5, 4] but for matrices and narrow ones."""
    x, vector = numbers(dtype, 2, 6, 5, 4), [numbers(dtype, 6) for _ in range(3)]
    variance = np.abs(numbers(dtype, 6)) + np.ones((), dtype)
    given: dict[str, tuple[tuple[Array | None, ...], dict[str, Any]]] = {
        "Conv": ((numbers(dtype, 2, 3, 7, 6), numbers(dtype, 6, 3, 3, 3), vector[0]), {}),
        "Depthwise": ((numbers(dtype, 2, 6, 7, 6), numbers(dtype, 6, 1, 3, 3), vector[0]), {"group": 6}),
        "ConvTranspose": ((numbers(dtype, 2, 3, 3, 2), numbers(dtype, 3, 6, 3, 3)), {}),
        "Gemm": ((numbers(dtype, 70, 9), numbers(dtype, 6, 9), vector[0]), {"transB": 1}),
        "MatMul": ((numbers(dtype, 2, 6, 5, 9), numbers(dtype, 2, 6, 9, 4)), {}),
        "Einsum": ((numbers(dtype, 5, 9, 6), numbers(dtype, 2, 4, 9)), {"equation": "skh,bdk->bhsd"}),
        "gpuexec.ScaledDotProductAttention": (
            (numbers(dtype, 2, 6, 5, 3), numbers(dtype, 2, 6, 3, 7), numbers(dtype, 2, 6, 7, 4)),
            {"scale": 0.5},
        ),
        "BatchNormalization": ((x, *vector, variance), {}),
        "InstanceNormalization": ((x, *vector[:2]), {}),
        "GroupNormalization": ((x, *vector[:2]), {"num_groups": 3}),
        "LayerNormalization": ((x, numbers(dtype, 4), numbers(dtype, 4)), {}),
        "RMSNormalization": ((x, numbers(dtype, 4)), {}),
        "MaxPool": ((numbers(dtype, 2, 6, 7, 6),), {"kernel_shape": (3, 3)}),
        "AveragePool": ((numbers(dtype, 2, 6, 7, 6),), {"kernel_shape": (3, 3)}),
        "LpPool": ((numbers(dtype, 2, 6, 7, 6),), {"kernel_shape": (3, 3), "p": 1}),
        "ReduceMean": ((numbers(dtype, 2, 6, 5, 3, 4), np.array([3])), {"keepdims": 0}),
        "ReduceMax": ((numbers(dtype, 2, 3, 6, 5, 4), np.array([1])), {"keepdims": 0}),
        "Softmax": ((x,), {"axis": 1}),
        "LogSoftmax": ((x,), {}),
        "Resize": ((numbers(dtype, 2, 6, 3, 2), None, None, np.array([2, 6, 5, 4])), {"mode": "linear"}),
    }
    return given[name]


def fused(
    label: str,
    producer: str,
    given: tuple[Array | None, ...],
    steps: Steps,
    results: tuple[int, ...] = (),
    **attributes: Any,
) -> Case:
    """Expected is what the operators compute one after the other; without results, that of the last step."""
    made = value = build(producer, attributes).compute(*given)[0]
    assert made is not None and value is not None
    operands: list[Array | None] = [*given]
    rows, values = [], [made]
    for position, (name, options, places) in enumerate(steps):
        taken: list[Array | None] = []
        row: list[Any] = []
        for place in places:
            if isinstance(place, np.ndarray):
                row.append(len(operands))
                operands.append(place)
                taken.append(place)
            elif isinstance(place, str):
                number = np.array(float(place), value.dtype)
                row.append(write_number(number))
                taken.append(number)
            else:
                row.append({VALUE: -1 - position, MADE: -1}.get(place, place))
                taken.append({VALUE: value, MADE: made}.get(place))
        value = build(name, dict(options)).compute(*taken)[0]
        assert value is not None
        values.append(value)
        rows.append((name, tuple(options), tuple(row)))
    results = results or (len(rows),)
    settings = {**attributes, "steps": tuple(rows), "results": results}
    expected = tuple([values[result] for result in results])
    return Case(
        label,
        fused_name(producer),
        tuple(operands),
        settings,
        expected=expected,
        outputs=(True,) * len(results),
        terms=TERMS,
        const=find_sizes(given),
    )


def find_sizes(given: tuple[Array | None, ...]) -> tuple[int, ...]:
    """Return the positions of axes and sizes, which planning must know."""
    return tuple([n for n, x in enumerate(given) if n and x is not None and x.dtype == np.int64 and x.ndim == 1])


def case_of(name: str, dtype: Any, steps: Steps, label: str = "", results: tuple[int, ...] = ()) -> Case:
    given, attributes = inputs_of(name, dtype)
    producer = "Conv" if name == "Depthwise" else name
    return fused(f"{name}_{np.dtype(dtype).name}_{label}", producer, given, steps, results, **attributes)


def narrow_of(name: str, wide: Any, stored: Any, steps: Steps) -> Case:
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "Conv": ((2, 3, 7, 6), (6, 3, 3, 3), {"scale_axis": 0}),
        "Depthwise": ((2, 6, 7, 6), (6, 1, 3, 3), {"scale_axis": 0, "group": 6}),
        "ConvTranspose": ((2, 3, 3, 2), (3, 6, 3, 3), {"scale_axis": 1}),
        "MatMul": ((70, 9), (9, 6), {"scale_axis": 1}),
        "Gemm": ((3, 9), (9, 6), {"scale_axis": 1}),
    }
    x_shape, w_shape, attributes = shapes[name]
    attributes = {**attributes, "to": dtype_row(wide).code}
    weight = RNG.integers(-20, 20, w_shape, np.int8) if stored == INT8 else numbers(stored, *w_shape)
    scale = None
    if stored == INT8:
        scale = RNG.uniform(0.01, 0.1, (w_shape[attributes["scale_axis"]],)).astype(wide)
    else:
        attributes["scale_axis"] = None
    bias = () if name == "MatMul" else (None,)
    given: tuple[Array | None, ...] = (numbers(wide, *x_shape), weight, *bias, *([] if scale is None else [scale]))
    while given[-1] is None:
        given = given[:-1]
    producer = f"gpuexec.Narrow{'Conv' if name == 'Depthwise' else name}"
    label = f"Narrow{name}_{np.dtype(wide).name}_{np.dtype(stored).name}"
    return fused(label, producer, given, steps, **attributes)


def narrow_form(
    label: str, name: str, stored: Any, x: tuple[int, ...], w: tuple[int, ...], axis: int, **options: Any
) -> Case:
    """Return a case of a product or convolution of float with narrow weights, for one of its kernels."""
    is_integer = stored == INT8
    weight = RNG.integers(-20, 20, w, np.int8) if is_integer else numbers(stored, *w)
    scale = RNG.uniform(0.01, 0.1, (w[axis],)).astype(FLOAT) if is_integer else None
    bias = (None,) if is_integer and name != "MatMul" else ()
    given = (numbers(FLOAT, *x), weight, *bias, *([] if scale is None else [scale]))
    settings = {"to": dtype_row(FLOAT).code, "scale_axis": axis if is_integer else None, **options}
    return fused(f"Narrow_{label}_{np.dtype(stored).name}", f"gpuexec.Narrow{name}", given, (RELU,), **settings)


NARROW_FORMS = [
    narrow_form(label, name, stored, x, w, axis, **options)
    for stored in (HALF, INT8)
    for label, name, x, w, axis, options in (
        *((f"{rows}_rows", "Gemm", (rows, 64), (64, 44), 1, {}) for rows in (1, 2, 3, 8)),
        *((f"{rows}_rows_along_k", "Gemm", (rows, 64), (44, 64), 0, {"transB": 1}) for rows in (1, 2, 3, 8)),
        ("large_tiles", "MatMul", (1280, 1), (1, 1024), 1, {}),
        ("positions", "Conv", (2, 8, 4, 4), (9, 8, 1, 1), 0, {}),
        ("blocks", "Conv", (1, 16, 5, 7), (9, 16, 3, 3), 0, {}),
        ("large_positions", "Conv", (1, 4, LARGE), (65, 4, 1), 0, {}),
        ("large_blocks", "Conv", (1, 8, LARGE + 1), (65, 8, 2), 0, {}),
        ("many_taps", "Conv", (1, 2, 12, 11), (3, 2, 12, 11), 0, {}),
        ("few_outs", "ConvTranspose", (2, 3, 3, 2), (3, 6, 3, 3), 1, {}),
        ("phases", "ConvTranspose", (2, 6, 5), (6, 9, 3), 1, {}),
        ("phases_blocks", "ConvTranspose", (2, 16, 5, 4), (16, 9, 3, 2), 1, {}),
    )
]
NARROW_FORMS.append(narrow_form("along_inner", "MatMul", INT8, (70, 9), (9, 6), 0))

# Results that are stored narrower than they are made, by each kernel that can, in turns as the one type or the other.
CASTS = [
    fused(
        f"{name}_{label}_to_{stored.name}",
        name,
        tuple(numbers(FLOAT, *shape) for shape in shapes),
        (("Cast", (("to", dtype_row(stored).code),), (VALUE,)),),
        **attributes,
    )
    for label, name, shapes, attributes, stored in (
        *((f"{rows}_rows", "Gemm", ((rows, 64), (64, 44)), {}, HALF) for rows in (1, 3)),
        *((f"{rows}_rows", "Gemm", ((rows, 64), (64, 44)), {}, BFLOAT16) for rows in (2, 8)),
        *((f"{rows}_rows_along_k", "Gemm", ((rows, 64), (44, 64)), {"transB": 1}, BFLOAT16) for rows in (1, 3)),
        *((f"{rows}_rows_along_k", "Gemm", ((rows, 64), (44, 64)), {"transB": 1}, HALF) for rows in (2, 8)),
        *(("small_tiles", "MatMul", ((70, 9), (9, 66)), {}, stored) for stored in (HALF, BFLOAT16)),
        ("large_tiles", "MatMul", ((1280, 1), (1, 1024)), {}, HALF),
        *(("rows", "LayerNormalization", ((6, 9), (9,), (9,)), {}, stored) for stored in (HALF, BFLOAT16)),
    )
]

PLAIN = ("Conv", "Depthwise", "ConvTranspose", "Gemm", "MatMul", "Einsum", "BatchNormalization")
PLAIN += ("InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization")
PLAIN += ("MaxPool", "AveragePool", "LpPool", "ReduceMean", "ReduceMax", "Softmax", "LogSoftmax", "Resize")
SAME = {dtype: numbers(dtype, 2, 6, 5, 4) for dtype in DTYPES}
PER_CHANNEL = numbers(FLOAT, 6, 1, 1)

CASES = [
    # In float and, in turns, another type: tests/ops/test_every_operator.py has each in all.
    *(
        case_of(
            name, dtype, (("Add", (), (VALUE, numbers(dtype, 70, 6) if name == "Gemm" else SAME[dtype])), RELU, HALVED)
        )
        for number, name in enumerate(PLAIN)
        for dtype in (FLOAT, DTYPES[1 + number % 3])
    ),
    *(narrow_of(name, *pair, (RELU,)) for name in ("Conv", "Depthwise", "ConvTranspose", "MatMul") for pair in PAIRS),
    narrow_of("Gemm", FLOAT, INT8, (RELU,)),
    *NARROW_FORMS,
    *CASTS,
    case_of("Gemm", FLOAT, (("Mul", (), (VALUE, VALUE)),), "squared"),
    case_of("gpuexec.ScaledDotProductAttention", FLOAT, (RELU,), "attention"),
    *(case_of(name, FLOAT, (TO_HALF,), "to_half") for name in (*PLAIN, "gpuexec.ScaledDotProductAttention")),
    *(narrow_of(name, FLOAT, INT8, (TO_HALF,)) for name in ("Conv", "ConvTranspose", "MatMul", "Gemm")),
    fused("shared_to_half", "com.microsoft.FusedMatMul", (numbers(FLOAT, 5, 9), numbers(FLOAT, 9, 6)), (TO_HALF,)),
    case_of("MatMul", HALF, (TO_HALF,), "to_its_own"),
    case_of("Conv", HALF, (RELU, TO_HALF), "to_its_own"),
    case_of("Conv", FLOAT, (CLIP,), "clip"),
    case_of("Conv", FLOAT, (("Clip", (), (VALUE, None, "0.25")),), "only_high"),
    case_of("Conv", FLOAT, (("PRelu", (), (VALUE, PER_CHANNEL)),), "per_channel"),
    case_of("Conv", FLOAT, (("Sub", (), (PER_CHANNEL, VALUE)),), "swapped"),
    # Of what a step gives, all that is kept is what its type holds.
    *(case_of("Conv", dtype, (("Sigmoid", (), (VALUE,)), ("Mul", (), (MADE, VALUE))), "gated") for dtype in DTYPES),
    case_of("Conv", FLOAT, (("Div", (), ("2.0", VALUE)), ("Clip", (), (VALUE, "-2.0", "2.0"))), "divided_by"),
    case_of("MatMul", FLOAT, (("Add", (), (numbers(FLOAT, 4), VALUE)), ("Add", (), (VALUE, SAME[FLOAT]))), "two"),
    case_of("MatMul", FLOAT, (("Add", (), (VALUE, numbers(FLOAT, 6, 5, 4))),), "images"),
    case_of("MatMul", FLOAT, (("Mul", (), (VALUE, numbers(FLOAT, 5, 1))),), "rows"),
    case_of("MatMul", FLOAT, (("Mul", (), (VALUE, numbers(FLOAT, 1, 1, 1, 1))),), "one"),
    # What kernels don't take: an operand whose stretched axes stand between others, one that stretches the result, more
    # operands or steps than they have places for.
    case_of("MatMul", FLOAT, (("Add", (), (VALUE, numbers(FLOAT, 6, 1, 4))), RELU), "scattered"),
    case_of("Conv", FLOAT, (RELU, ("Add", (), (VALUE, numbers(FLOAT, 3, 2, 6, 5, 4))), RELU), "stretching"),
    case_of("Conv", FLOAT, tuple(("Add", (), (VALUE, numbers(FLOAT, 6, 1, 1))) for _ in range(3)), "operands"),
    case_of("Conv", FLOAT, (RELU, HALVED) * 4, "many"),
    case_of("Conv", DOUBLE, (("Sigmoid", (), (VALUE,)), HALVED, ("Mul", (), (MADE, VALUE))), "gated"),
    *(
        fused(f"{rows}_rows_{way}", "Gemm", (numbers(FLOAT, rows, 260), weight), (RELU,), transB=int(way == "along_k"))
        for rows in (1, 2, 3, 8)
        for way, weight in (("along_k", numbers(FLOAT, 44, 260)), ("along_columns", numbers(FLOAT, 260, 44)))
    ),
    fused("slices", "MatMul", (numbers(FLOAT, 65, 1030), numbers(FLOAT, 1030, 37)), (RELU, HALVED)),
    fused("large_tiles", "MatMul", (numbers(FLOAT, 1280, 1), numbers(FLOAT, 1, 1024)), (RELU,)),
    fused("whole", "MatMul", (RNG.integers(-9, 9, (3, 4)), RNG.integers(-9, 9, (4, 5))), (RELU,)),
    fused("empty", "MatMul", (numbers(FLOAT, 0, 4), numbers(FLOAT, 4, 5)), (RELU,)),
    fused("scalar", "MatMul", (numbers(FLOAT, 4), numbers(FLOAT, 4)), (RELU, ("Add", (), (VALUE, "1.0")))),
    fused(
        "few_columns",
        "MatMul",
        (numbers(FLOAT, 70, 4), numbers(FLOAT, 4, 2)),
        (("Add", (), (VALUE, numbers(FLOAT, 2))),),
    ),
    *(
        fused(
            f"depthwise_{extent}_{stride}_{np.dtype(dtype).name}",
            "Conv",
            (numbers(dtype, 1, 6, 7, 9), numbers(dtype, 6, 1, extent, extent)),
            (RELU,),
            group=6,
            strides=(stride, stride),
            pads=(extent // 2,) * 4,
        )
        for extent, stride in FORMS[1:]
        for dtype in DEPTHWISE_DTYPES
    ),
    *(
        fused(
            f"depthwise_dilated_{np.dtype(dtype).name}",
            "Conv",
            (numbers(dtype, 1, 6, 7, 9), numbers(dtype, 6, 1, 3, 3)),
            (RELU,),
            group=6,
            dilations=(2, 2),
        )
        for dtype in DEPTHWISE_DTYPES
    ),
    *(
        fused(
            f"single_out_{np.dtype(dtype).name}",
            "Conv",
            (numbers(dtype, 1, 4, 5, 6), numbers(dtype, 2, 2, 3, 3)),
            (RELU,),
            group=2,
        )
        for dtype in DTYPES
    ),
    fused("blocks", "Conv", (numbers(FLOAT, 2, 16, 5, 4), numbers(FLOAT, 6, 16, 3, 3)), (RELU, HALVED)),
    fused("slices_of_patches", "Conv", (numbers(FLOAT, 1, 64, 8, 6), numbers(FLOAT, 7, 64, 3, 3)), (RELU, HALVED)),
    fused(
        "positions",
        "Conv",
        (numbers(FLOAT, 2, 16, 5, 4), numbers(FLOAT, 6, 16, 1, 1)),
        (("Add", (), (VALUE, SAME[FLOAT])), RELU),
    ),
    fused("many_taps", "Conv", (numbers(FLOAT, 1, 2, 13, 12), numbers(FLOAT, 3, 2, 12, 11)), (RELU,)),
    fused("long_rows", "LayerNormalization", (numbers(FLOAT, 2, 4864), *(numbers(FLOAT, 4864),) * 2), (RELU,)),
    fused("large_positions", "Conv", (numbers(FLOAT, 1, 4, LARGE), numbers(FLOAT, 65, 4, 1)), (RELU,)),
    fused("large_blocks", "Conv", (numbers(FLOAT, 1, 8, LARGE + 1), numbers(FLOAT, 65, 8, 2)), (RELU,)),
    fused("large_taps", "Conv", (numbers(FLOAT, 1, 2, LARGE + 1), numbers(FLOAT, 65, 2, 2)), (RELU,)),
    fused(
        "phases",
        "ConvTranspose",
        (numbers(FLOAT, 1, 3, 4, 3), numbers(FLOAT, 3, 9, 3, 3)),
        (("Add", (), (VALUE, numbers(FLOAT, 9, 1, 1))), RELU),
        strides=(2, 2),
    ),
    fused(
        "phases_of_blocks",
        "ConvTranspose",
        (numbers(FLOAT, 1, 16, 4, 3), numbers(FLOAT, 16, 9, 4, 4)),
        (RELU,),
        strides=(2, 2),
    ),
    # Groups of four neighbours: an operand has a vector of them, they share an element, or reach over the end of a row.
    *(
        fused(
            f"{rows}x{columns}_{dtype.name}",
            "MatMul",
            (numbers(dtype, rows, 9), numbers(dtype, 9, columns)),
            (
                ("Add", (), (VALUE, numbers(dtype, columns))),
                ("Gelu", (), (VALUE,)),
                ("Mul", (), (numbers(dtype, rows, 1), VALUE)),
                ("Div", (), (VALUE, "3.0")),
                ("Sub", (), (MADE, VALUE)),
            ),
        )
        for dtype in (FLOAT, HALF, BFLOAT16)
        for rows, columns in ((6, 7), (67, 68))
    ),
    # Tensor cores store eights: all there or none, of an operand that each shares, and of a further result.
    *(
        fused(
            f"eights_{dtype.name}_and_{other}",
            "MatMul",
            (numbers(dtype, 67, 16), numbers(dtype, 16, 72)),
            (("Mul", (), (numbers(dtype, 67, 1), VALUE)), cast),
            (2, 1),
        )
        for dtype, other, cast in ((HALF, "float", TO_FLOAT), (BFLOAT16, "half", TO_HALF))
    ),
    # Neighbours in rows of an image, of which four reach over the end of one.
    *(
        fused(
            f"row_of_{kind}",
            "Conv",
            (numbers(FLOAT, 1, 16, 6, 7), numbers(FLOAT, 9, 16, 3, 3)),
            (("Add", (), (VALUE, numbers(FLOAT, *shape))), RELU),
        )
        for kind, shape in (("image", (5,)), ("images", (4, 5)))
    ),
    # What others read besides: the producer's result, that of any step, of any type.
    *(
        case_of(name, FLOAT, (RELU, TO_HALF), "and_half", (1, 2))
        for name in (*PLAIN, "gpuexec.ScaledDotProductAttention")
    ),
    *(case_of(name, HALF, (RELU, TO_FLOAT), "and_float", (0, 2)) for name in PLAIN),
    case_of(
        "Conv", FLOAT, (("Greater", (), (VALUE, "0.25")), ("Where", (), (VALUE, MADE, SAME[FLOAT]))), "any", (0, 1, 2)
    ),
    fused("to_one", "ReduceSum", (numbers(FLOAT, 3, 2000),), (("Mul", (), (VALUE, "0.5")), TO_HALF), (0, 2)),
    fused("global", "GlobalAveragePool", (numbers(FLOAT, 2, 3, 7, 5),), (RELU, TO_HALF), (2, 1)),
    fused("largest", "GlobalMaxPool", (numbers(FLOAT, 2, 3, 7, 5),), (RELU, TO_HALF), (2, 1)),
    fused("root", "GlobalLpPool", (numbers(FLOAT, 2, 3, 7, 5),), (RELU, TO_HALF), (2, 1)),
    fused("sum_to", "gpuexec.SumTo", (numbers(FLOAT, 4, 3, 5), numbers(FLOAT, 3, 1)), (RELU, TO_HALF), (2, 1)),
    *(
        fused(f"fold_{name}", name, (np.abs(numbers(FLOAT, 4, 30, 5)), np.array([1])), (HALVED, TO_HALF), (2, 1))
        for name in REDUCTIONS
    ),
    fused("long", "Softmax", (numbers(FLOAT, 2, 5000),), (HALVED, TO_HALF), (1, 2)),
    case_of("MatMul", FLOAT, (TO_HALF, ("Add", (), (VALUE, SAME[HALF])), TO_FLOAT), "types", (2, 3)),
    case_of("Conv", FLOAT, (("Add", (), (VALUE, SAME[FLOAT][:1])), ("Sub", (), (PER_CHANNEL, VALUE))), "image"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_fused(checks: str, case: Case) -> None:
    run_case(case, checks)


def lower_apart(case: Case) -> list[Array]:
    """Return what the kernels of the parts make, each launched by itself."""
    op = build(case.op, case.attributes)
    assert isinstance(op, Fused)
    made = list(lower_and_run(op.parts.producer, op.split(case.inputs), case.const)[:1])
    if op.view is not None:
        made[0] = made[0].reshape(op.view)
    for step in op.parts.steps:
        made += lower_and_run(step.operator, step.pick(case.inputs, made, np.asarray))
    return [made[result] for result in op.results]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bits_are_those_of_the_parts(case: Case) -> None:
    op, apart = build(case.op, case.attributes), lower_apart(case)
    assert case.expected is not None
    for got, computed, alone, expected in zip(
        lower_and_run(op, case.inputs, case.const), op.compute(*case.inputs), apart, case.expected, strict=True
    ):
        assert computed is not None
        np.testing.assert_array_equal(to_bits(got), to_bits(alone))
        np.testing.assert_array_equal(to_bits(computed), to_bits(expected))


SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, -60000.0, 0.5, -0.5, 3.3])


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BFLOAT16], ids=lambda dtype: dtype.name)
def test_numbers_that_are_none_have_the_bits_of_kernels(dtype: Any) -> None:
    """By a normalization that passes on what it is given."""
    x = np.concatenate([SPECIAL, RNG.normal(size=502) * 3]).astype(dtype).reshape(2, 4, 64)
    zero, one = np.zeros(4, dtype), np.ones(4, dtype)
    operand = RNG.permutation(x.reshape(-1)).reshape(x.shape)
    steps = (
        ("Max", (), (VALUE, operand)),
        ("Div", (), ("0.1", VALUE)),
        ("Clip", (), (VALUE, None, "inf")),
        ("Min", (), (VALUE, MADE)),
        ("Gelu", (), (VALUE,)),
        ("Sub", (), (operand, VALUE)),
    )
    case = fused("special", "BatchNormalization", (x, one, zero, zero, one), steps, epsilon=0.0)
    for got, alone in zip(lower_and_run(build(case.op, case.attributes), case.inputs), lower_apart(case), strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(alone))


@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=lambda dtype: dtype.name)
def test_operands_may_start_at_any_element_of_a_buffer(dtype: Any, offset: int) -> None:
    a, b, operand = numbers(dtype, 6, 9), numbers(dtype, 9, 8), numbers(dtype, offset + 48)
    case = fused("", "MatMul", (a, b), (("Add", (), (VALUE, operand[offset:].reshape(6, 8))),))
    op, emit = build(case.op, case.attributes), DirectEmitter()
    whole = emit.slot(operand)
    part = Slot(whole.buffer, offset * dtype.itemsize, TensorSpec((6, 8), dtype), (8, 1))
    y = emit.fresh((6, 8), dtype)
    assert op.lower is not None
    op.lower(emit, (emit.slot(a), emit.slot(b), part), (y,))
    assert len(emit.launches) == 1
    np.testing.assert_array_equal(to_bits(emit.read(y)), to_bits(lower_apart(case)[0]))


def test_outputs_beyond_32_bits_get_their_steps_apart() -> None:
    row = Slot(0, 0, TensorSpec((2**16,), FLOAT), (1,))
    for rows, is_taken in ((2**15 - 1, True), (2**15, False)):
        y = Slot(1, 0, TensorSpec((rows, 2**16), FLOAT), (2**16, 1))
        assert (place_operands(DirectEmitter(), [row], y) is not None) == is_taken


def launches_of(case: Case) -> list[Kernel]:
    emit = DirectEmitter()
    op = build(case.op, case.attributes)
    slots = tuple(None if x is None else emit.slot(x, place in case.const) for place, x in enumerate(case.inputs))
    assert op.lower is not None
    specs = op.infer(*(None if slot is None else slot.spec for slot in slots))
    op.lower(emit, slots, tuple([emit.fresh(spec.shape, spec.dtype) for spec in specs]))
    return [kernel for kernel, _ in emit.launches]


@pytest.mark.parametrize("name", PLAIN)
def test_what_a_kernel_can_take_is_one_launch(name: str) -> None:
    (kernel,) = launches_of(case_of(name, FLOAT, (RELU, CLIP)))
    plain = without_epilogue(kernel.expression)
    assert plain != kernel.expression and plain in {each.expression for each in FINISHED}


@pytest.mark.parametrize("name", ["Gemm", "MatMul"])
def test_a_product_without_an_addend_has_no_code_for_one(name: str) -> None:
    (kernel,) = launches_of(case_of(name, FLOAT, (RELU, CLIP)))
    assert f"kHasAddend = {str(name == 'Gemm').lower()};" in kernel.text


def test_compute_makes_no_second_array() -> None:
    case = case_of("Conv", FLOAT, (("Add", (), (VALUE, SAME[FLOAT])), RELU, CLIP))
    assert case.expected is not None
    wanted = np.empty_like(case.expected[0])
    (got,) = build(case.op, case.attributes).compute(*case.inputs, out=(wanted,))
    assert got is wanted
    np.testing.assert_array_equal(got, case.expected[0])


def test_operands_are_not_written() -> None:
    operand = numbers(FLOAT, 2, 6, 5, 4)
    before = operand.copy()
    for places in ((VALUE, operand), (operand, VALUE)):
        case = case_of("BatchNormalization", FLOAT, (("Add", (), places), RELU))
        build(case.op, case.attributes).compute(*case.inputs, out=(np.empty_like(operand),))
    np.testing.assert_array_equal(operand, before)


def test_every_producer_has_its_operator() -> None:
    for name in PRODUCERS:
        assert find_operator(fused_name(name)) is not None


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "expects steps"),
        ((("Add", (), (VALUE, 2)),), "broadcast"),
        ((("Celu", (("beta", 1.0),), (VALUE,)),), "beta"),
    ],
)
def test_what_does_not_fit_is_refused(steps: Steps, message: str) -> None:
    op = build("gpuexec.FusedGemm", {"steps": steps})
    with pytest.raises(InputError, match=message):
        op.infer(TensorSpec((2, 3), FLOAT), TensorSpec((3, 4), FLOAT), TensorSpec((3,), FLOAT))
