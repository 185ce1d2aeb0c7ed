"""Device headers on the simulator: types.cuh, safe.cuh, index.cuh, with packers of ops/strided.py; and exp2.cuh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuexec.devices.kernels.kernel_source import find_source
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.spec import BFLOAT16, COMPUTED, dtype_row
from gpuexec.ops.lib.strided import MAX_RANK, Walk, join, pack_fast_div32, pack_fast_div64

SOURCE = """
#include "safe.cuh"
#include "index.cuh"
#include "exp2.cuh"

struct DivideTruncating { template <class T> static T apply(T a, T b) { return divide_truncating(a, b); } };
struct RemainderTruncating { template <class T> static T apply(T a, T b) { return remainder_truncating(a, b); } };
struct RemainderFlooring { template <class T> static T apply(T a, T b) { return remainder_flooring(a, b); } };
struct WrappingAdd { template <class T> static T apply(T a, T b) { return wrapping_add(a, b); } };
struct WrappingSub { template <class T> static T apply(T a, T b) { return wrapping_sub(a, b); } };
struct WrappingMul { template <class T> static T apply(T a, T b) { return wrapping_mul(a, b); } };
struct ShiftLeft { template <class T> static T apply(T a, T b) { return shift_left(a, b); } };
struct ShiftRight { template <class T> static T apply(T a, T b) { return shift_right(a, b); } };

template <class Op, class T>
__global__ void integer(const T* a, const T* b, T* y, i32 count) {
  for (int i = 0; i < count; ++i)
    for (int k = 0; k < count; ++k) y[i * count + k] = Op::apply(a[i], b[k]);
}

template <class T>
__global__ void bounds(T* y) {
  y[0] = limits<T>::lowest();
  y[1] = limits<T>::max();
  y[2] = limits<T>::negative_inf();
  y[3] = limits<T>::inf();
  if constexpr (kIsFloat<T>) y[4] = limits<T>::nan();
}

template <class T>
__global__ void keys(const T* x, Bits<T>* key, i32 count) {
  for (int i = 0; i < count; ++i) key[i] = sortable_key(x[i]);
}

template <class Divisor, class N>
__global__ void divide(const N* n, N* quotient, N* remainder, Divisor divisor, i32 count) {
  for (int i = 0; i < count; ++i) quotient[i] = divisor.divide(n[i], remainder[i]);
}

__global__ void locate(const i64* index, i64* offset, Strided<kMaxRank, 2> walk, i32 count) {
  for (int i = 0; i < count; ++i) {
    i64 at[2];
    walk.locate(index[i], at);
    offset[2 * i] = at[0];
    offset[2 * i + 1] = at[1];
  }
}

__global__ void powers(const float* x, float* y, i32 count) {
  for (int i = 0; i < count; ++i) y[i] = exp2_fast(x[i]);
}
"""
INTEGERS = [row for row in COMPUTED if row.kind in ("int", "uint")]
RULES: dict[str, Any] = {
    "DivideTruncating": lambda a, b, _: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0,
    "RemainderTruncating": lambda a, b, _: abs(a) % abs(b) * (-1 if a < 0 else 1) if b else 0,
    "RemainderFlooring": lambda a, b, _: a % b if b else 0,
    "WrappingAdd": lambda a, b, _: a + b,
    "WrappingSub": lambda a, b, _: a - b,
    "WrappingMul": lambda a, b, _: a * b,
    "ShiftLeft": lambda a, b, width: a << b if 0 <= b < width else 0,
    "ShiftRight": lambda a, b, width: a >> b if 0 <= b < width else -1 if a < 0 else 0,
}


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, SimulatorFunction]:
    path = tmp_path_factory.mktemp("headers") / "headers.cu"
    path.write_text(SOURCE)
    expressions = [f"integer<{op}, {row.cuda}>" for op in RULES for row in INTEGERS]
    expressions += [f"{name}<{row.cuda}>" for name in ("bounds", "keys") for row in COMPUTED if row.kind != "bool"]
    return load_file(path, [*expressions, "divide<FastDiv32, u32>", "divide<FastDiv64, u64>", "locate", "powers"])


@pytest.mark.parametrize("name", list(RULES))
def test_integer_arithmetic_has_an_answer_for_every_pair(functions: Mapping[str, SimulatorFunction], name: str) -> None:
    for row in INTEGERS:
        info, width = np.iinfo(row.numpy), 8 * row.numpy.itemsize
        listed = [info.min, info.min + 1, 0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 100, info.max // 2, info.max - 1, info.max]
        a = np.array(listed + ([-1, -2, -5] if info.min else []), row.numpy)
        y = np.empty((a.size, a.size), row.numpy)
        functions[f"integer<{name}, {row.cuda}>"].launch_arrays(1, 1, a, a, y, np.int32(a.size))
        for i, p in enumerate(a.tolist()):
            for k, q in enumerate(a.tolist()):
                assert int(y[i, k]) % 2**width == RULES[name](p, q, width) % 2**width, (row.name, p, q)


@pytest.mark.parametrize("row", [row for row in COMPUTED if row.kind != "bool"], ids=lambda row: row.name)
def test_limits_are_those_of_the_type(functions: Mapping[str, SimulatorFunction], row: Any) -> None:
    y = np.zeros(5, row.numpy)
    functions[f"bounds<{row.cuda}>"].launch_arrays(1, 1, y)
    if row.kind == "float":
        info: Any = ml_dtypes.finfo(row.numpy)  # type: ignore[no-untyped-call]
        expected = [info.min, info.max, -np.inf, np.inf, np.nan]
    else:
        info = np.iinfo(row.numpy)
        expected = [info.min, info.max, info.min, info.max, 0]
    np.testing.assert_array_equal(y.astype(np.longdouble), np.array(expected, row.numpy).astype(np.longdouble))


def test_powers_of_two_are_normal_numbers_or_zero(functions: Mapping[str, SimulatorFunction]) -> None:
    x = np.array([-np.inf, -150, -126.5, -126, -1, 0, 0.5, 127, 128], np.float32)
    y = np.empty_like(x)
    functions["powers"].launch_arrays(1, 1, x, y, np.int32(x.size))
    expected = np.array([0, 0, 0, 2.0**-126, 0.5, 1, 2**0.5, 2.0**127, np.inf], np.float32)
    np.testing.assert_allclose(y, expected, rtol=2**-22, atol=0)


@pytest.mark.parametrize("row", [row for row in COMPUTED if row.kind != "bool"], ids=lambda row: row.name)
def test_sortable_keys_order_as_values_do(functions: Mapping[str, SimulatorFunction], row: Any) -> None:
    if row.kind == "float":
        plain = [-np.inf, -3e4, -1.5, -1e-7, 0.0, 1e-7, 1.0, 2.5, 3e4, np.inf, np.nan, -0.0, -np.nan]
        x = np.array(plain, np.float32).astype(row.numpy)
    else:
        info = np.iinfo(row.numpy)
        x = np.array(sorted({info.min, info.min + 1, info.min // 2, 0, 1, 5, info.max // 2, info.max}), row.numpy)
    keys = np.empty(x.size, f"u{x.itemsize}")
    functions[f"keys<{row.cuda}>"].launch_arrays(1, 1, x, keys, np.int32(x.size))
    ordered = 11 if row.kind == "float" else x.size
    assert np.all(keys[1:ordered] > keys[: ordered - 1])
    if row.kind == "float":
        assert keys[11] == keys[4] and keys[12] == keys[10]  # -0 as 0, any NaN as one


def divide(functions: Mapping[str, SimulatorFunction], bits: int, divisor: int, dividends: Array) -> None:
    quotient, remainder = np.empty_like(dividends), np.empty_like(dividends)
    struct = pack_fast_div32(divisor) if bits == 32 else pack_fast_div64(divisor)
    name = f"divide<FastDiv{bits}, u{bits}>"
    functions[name].launch_arrays(1, 1, dividends, quotient, remainder, struct, np.int32(dividends.size))
    np.testing.assert_array_equal(quotient, dividends // dividends.dtype.type(divisor))
    np.testing.assert_array_equal(remainder, dividends % dividends.dtype.type(divisor))


@pytest.mark.parametrize("bits", [32, 64])
@given(data=st.data())
def test_fast_division_is_division(functions: Mapping[str, SimulatorFunction], bits: int, data: st.DataObject) -> None:
    top = 2 ** (bits - 1) - 1
    number = st.integers(0, bits - 1).flatmap(lambda size: st.integers(0, 2**size - 1))
    divisor = data.draw(number.filter(lambda d: d > 0))
    dividends = data.draw(st.lists(number, min_size=1, max_size=20))
    near = [n for k in (1, 2, top // divisor) for n in (k * divisor - 1, k * divisor, k * divisor + 1) if 0 <= n <= top]
    divide(functions, bits, divisor, np.array([0, top, *near, *dividends], f"u{bits // 8}"))


@pytest.mark.parametrize("bits", [32, 64])
def test_fast_division_at_the_edges(functions: Mapping[str, SimulatorFunction], bits: int) -> None:
    top = 2 ** (bits - 1) - 1
    for divisor in (1, 2, 3, 5, 7, 641, 2 ** (bits - 2) - 1, 2 ** (bits - 2), 2 ** (bits - 2) + 1, top - 1, top):
        divide(functions, bits, divisor, np.array([0, 1, divisor - 1, divisor, top - 1, top], f"u{bits // 8}"))


@pytest.mark.parametrize("divisor", [0, -1, 2**31])
def test_a_divisor_out_of_range_is_refused(divisor: int) -> None:
    with pytest.raises(InputError, match="must lie in"):
        pack_fast_div32(divisor)


WALKS = [
    Walk((), ((), ())),
    Walk((7,), ((1,), (0,))),
    Walk((3, 4), ((4, 1), (-1, 3))),
    Walk((2, 3, 1, 2, 2, 3, 2, 2), ((144, 48, 48, 24, 12, 4, 2, 1), (0, 1, 0, -5, 7, 0, 100, -1))),
    Walk((3, 4), ((2**40, 1), (0, -(2**33)))),  # wide by offset
    Walk((2**31, 3), ((3, 1), (0, 1))),  # wide by count
    Walk((5, 2**30), ((1, 7), (0, -3))),
]


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: str(walk.shape))
def test_walk_locates_every_operand(functions: Mapping[str, SimulatorFunction], walk: Walk) -> None:
    index = np.unique(np.linspace(0, walk.count - 1, 50).astype(np.int64).clip(0, walk.count - 1))
    offsets = np.empty((index.size, 2), np.int64)
    functions["locate"].launch_arrays(1, 1, index, offsets, walk.pack(), np.int32(index.size))
    for i, linear in enumerate(index.tolist()):
        coordinates: list[int] = []
        for extent in reversed(walk.shape):
            linear, coordinate = divmod(linear, extent)
            coordinates.insert(0, coordinate)
        for k, strides in enumerate(walk.strides):
            assert offsets[i, k] == sum(c * s for c, s in zip(coordinates, strides, strict=True))


def test_walk_of_an_empty_shape_packs() -> None:
    walk = Walk((0, 3), ((3, 1),))
    assert walk.count == 0 and len(walk.pack()) == 16 + 24 * MAX_RANK + 8 * MAX_RANK


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3, 4), ((12, 4, 1), (12, 4, 1)), ((24,), ((1,), (1,)))),
        ((2, 3, 4), ((0, 0, 1), (12, 4, 1)), ((6, 4), ((0, 1), (4, 1)))),
        ((2, 3, 4), ((0, 1, 0), (12, 4, 1)), ((2, 3, 4), ((0, 1, 0), (12, 4, 1)))),
        ((1, 5, 1), ((9, 1, 9), (5, 1, 1)), ((5,), ((1,), (1,)))),
        ((), ((), ()), ((), ((), ()))),
        ((3, 4), ((4, 1), (1, 3)), ((4, 3), ((1, 4), (3, 1)))),  # the output orders the axes
    ],
)
def test_join_merges_what_is_walked_as_one(shape: Any, strides: Any, expected: Any) -> None:
    assert join(shape, strides) == Walk(*expected)


def test_more_axes_than_kernels_walk_are_refused() -> None:
    shape = (2,) * 9
    with pytest.raises(InputError, match="at most 8 axes"):
        join(shape, [[3**i for i in range(9)], [5 ** (9 - i) for i in range(9)]])


def test_cuda_names_of_the_type_table_are_declared() -> None:
    text = find_source("types.cuh").read_text()
    for row in COMPUTED:
        assert f" {row.cuda};" in text or row.cuda in ("float", "double", "bool")
    assert dtype_row(BFLOAT16).cuda == "bf16"
