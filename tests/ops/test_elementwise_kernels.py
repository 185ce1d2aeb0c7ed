"""Elementwise kernels on the simulator: every instance against ``compute``, within the operator's tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.operator import Array, Operator, build
from gpuexec.ir.spec import COMPUTED, dtype_row
from gpuexec.ops.elementwise.elementwise_binary import ROWS as BINARY_ROWS
from gpuexec.ops.elementwise.elementwise_engine import BOOL, FLOATS, NUMBERS
from gpuexec.ops.elementwise.elementwise_pow import BASES
from gpuexec.ops.elementwise.elementwise_unary import ROWS as UNARY_ROWS
from gpuexec.ops.lib.broadcast import can_vectorize
from gpuexec.ops.lib.strided import Walk, join
from tests.ops import test_elementwise_select as select
from tests.ops import test_elementwise_unary as unary
from tests.ops.direct import DirectEmitter, lower_and_run
from tests.ops.harness import Case, compare
from tests.ops.test_elementwise_binary import ATTRIBUTES as BINARY_ATTRIBUTES
from tests.ops.test_elementwise_binary import LABELS as BINARY_LABELS
from tests.ops.test_elementwise_binary import operands

ROW = {row.name: row for row in (*UNARY_ROWS, *BINARY_ROWS)}


def check(op: Operator, *inputs: Array | None, known: tuple[int, ...] = ()) -> None:
    """Compare what the kernels and ``compute`` make of the inputs."""
    (got,) = lower_and_run(op, inputs, known)
    (expected,) = op.compute(*inputs)
    assert expected is not None
    compare(Case(f"{op}", op.name, inputs), op, 0, got, expected, inputs)


@pytest.mark.parametrize("label", unary.LABELS)
def test_unary_kernel_computes_what_numpy_does(label: str) -> None:
    name = label.partition("/")[0]
    op = build(name, unary.ATTRIBUTES.get(label, {}))
    for dtype in ROW[name].dtypes:
        check(op, unary.values(dtype))


@pytest.mark.parametrize("label", BINARY_LABELS)
def test_binary_kernel_computes_what_numpy_does(label: str) -> None:
    name = label.partition("/")[0]
    op = build(name, BINARY_ATTRIBUTES.get(label, {}))
    for dtype in ROW[name].dtypes:
        a, b = operands(dtype)
        check(op, np.broadcast_to(a, (a.size, b.size)), b)
        if not ROW[name].is_unidirectional:
            check(op, b, a)


@pytest.mark.parametrize("base", BASES, ids=lambda d: d.name)
def test_power_kernel_for_every_pair_of_types(base: np.dtype[Any]) -> None:
    a = np.array([0, 1, 2, 3, 1.5, 7, -1, -2, -3], np.float32).astype(base)[:, None]
    for exponent in NUMBERS:
        e = np.array([0, 1, 2, 3, 5, *((-1, -2) if exponent.kind != "u" else ())], np.float32).astype(exponent)
        check(build("Pow", {}), a, e)


@pytest.mark.parametrize("source", [row.numpy for row in COMPUTED], ids=lambda d: d.name)
def test_cast_kernel_for_every_pair_of_types(source: np.dtype[Any]) -> None:
    x = select.special_values(source)
    for row in COMPUTED:
        check(build("Cast", {"to": row.code}), x)
        check(build("CastLike", {}), x[::-2], np.zeros(1, row.numpy))


@pytest.mark.parametrize("dtype", [row.numpy for row in COMPUTED], ids=lambda d: d.name)
def test_where_kernel_for_every_type(dtype: np.dtype[Any]) -> None:
    a, b = select.numbers(dtype, (5, 16)), select.numbers(dtype, (16,), 1)
    for shape in ((), (5, 1), (5, 16), (16,)):
        condition = select.numbers(BOOL, shape, 2)
        check(build("Where", {}), condition, a, b)
        check(build("Where", {}), condition, a[:, :1], b[:1])


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.name)
def test_clip_kernel_for_every_type(dtype: np.dtype[Any]) -> None:
    x = unary.values(dtype)
    low, high = np.array(9, np.float32).astype(dtype), np.array([30], np.float32).astype(dtype)
    for bounds in ((), (low,), (None, high), (low, high), (high.reshape(()), low)):
        check(build("Clip", {}), x, *bounds)


def test_clip_kernel_takes_bounds_of_old_opsets() -> None:
    for dtype in FLOATS:
        bound = np.array(0.3, np.float32)
        check(build("Clip", {}), unary.values(dtype), -bound, bound, known=(1, 2))


@pytest.mark.parametrize(("name", "dtype"), select.FOLDS, ids=lambda each: getattr(each, "name", each))
def test_fold_kernel_of_any_number_of_inputs(name: str, dtype: np.dtype[Any]) -> None:
    shapes: list[tuple[int, ...]] = [(4, 8), (8,), (4, 1), ()]
    for count in (1, 2, 3, 8, 9, 15, 16, 23):
        check(build(name, {}), *(select.numbers(dtype, shapes[i % 4], i) for i in range(count)))


SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((), ()),
    ((1,), (1, 1)),
    ((0,), ()),
    ((3, 0, 2), (2,)),
    ((1023,), (1023,)),  # a short last unit
    ((1024,), ()),
    ((), (517,)),
    ((6, 32), (32,)),  # one axis after merging, or a row that is stretched
    ((6, 33), (33,)),  # the inner extent does not divide
    ((6, 32), (6, 1)),  # one element for all lanes
    ((2, 8, 5, 16), (8, 1, 1)),
    ((3, 1, 4, 1, 5, 8), (1, 2, 1, 3, 1, 8)),  # six axes
    ((2, 1, 2, 1, 2, 1, 2, 1), (1, 3, 1, 2, 1, 2, 1, 2)),  # eight that don't merge
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "float64"])
def test_kernels_broadcast(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    a, b = (select.numbers(dtype_row(dtype).numpy, shape, i) for i, shape in enumerate(shapes))
    check(build("Sub", {}), a, b)
    check(build("Greater", {}), a, b)
    check(build("Max", {}), b, a, b)
    check(build("Neg", {}), a)


def views(dtype: np.dtype[Any]) -> dict[str, Array]:
    x = select.numbers(dtype, (6, 8, 16), 3)
    return {
        "reversed": x[::-1, :, ::-1],
        "every other": x[:, :, ::2],
        "rows apart": x[:, ::3],
        "columns": x[:, :, 8:],
        "misaligned columns": x[:, :, 3:11],
        "transposed": x.transpose(2, 0, 1),
        "broadcast": np.broadcast_to(x[:, :1, :1], x.shape),
    }


@pytest.mark.parametrize("view", list(views(np.dtype(np.float32))))
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_kernels_read_strided_inputs(view: str, dtype: str) -> None:
    x = views(dtype_row(dtype).numpy)[view]
    check(build("Abs", {}), x)
    check(build("Add", {}), x, x)
    check(build("Less", {}), x[:1], x)
    check(build("Cast", {"to": 11}), x)


def test_output_may_lie_over_an_input_of_its_shape_and_type() -> None:
    emit = DirectEmitter()
    a, row = emit.slot(np.ones((4, 8), np.float32)), emit.slot(np.ones(8, np.float32))
    y, flags = emit.fresh((4, 8), np.float32), emit.fresh((4, 8), np.bool_)
    build("Add", {}).lower(emit, (a, row), (y,))  # type: ignore[misc]
    build("Less", {}).lower(emit, (a, row), (flags,))  # type: ignore[misc]
    build("Add", {}).lower(emit, (a, a), (y,))  # type: ignore[misc]
    assert emit.in_place_allowed == [(y, a), (y, a)]


def test_kernel_writes_over_its_input() -> None:
    for op, inputs in (
        (build("Exp", {}), (select.numbers(np.dtype(np.float16), (777,)) / np.float16(20),)),
        (
            build("Add", {}),
            (select.numbers(np.dtype(np.float32), (3, 100)), select.numbers(np.dtype(np.float32), (100,))),
        ),
    ):
        emit = DirectEmitter()
        slots = tuple(emit.slot(x) for x in inputs)
        op.lower(emit, slots, (slots[0],))  # type: ignore[misc]
        (expected,) = op.compute(*inputs)
        assert expected is not None
        compare(Case(op.name, op.name, inputs), op, 0, emit.read(slots[0]), expected, inputs)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "width", "expected"),
    [
        ((1023,), (1,), 0, 4, True),
        ((1024,), (1,), 4, 4, False),  # not aligned
        ((6, 32), (64, 1), 0, 4, True),
        ((6, 32), (33, 1), 0, 4, False),  # rows not aligned
        ((6, 33), (64, 1), 0, 4, False),  # rows end with a short unit
        ((8, 4), (1, 8), 0, 4, False),
        ((), (), 0, 4, False),
    ],
)
def test_vectors_only_where_every_access_is_aligned(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, width: int, expected: bool
) -> None:
    walk = join(shape, (strides, contiguous_strides(shape)))
    assert can_vectorize(walk, [(4, offset), (4, 0)], width) is expected


def test_short_units_inside_of_several_axes_are_no_vectors() -> None:
    walk = Walk((6, 33), ((64, 1), (64, 1)))
    assert not can_vectorize(walk, [(4, 0), (4, 0)], 4)
    assert can_vectorize(Walk((6, 32), walk.strides), [(4, 0), (4, 0)], 4)
