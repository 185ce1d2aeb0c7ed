"""CUDA intrinsics on the simulator; half and bfloat16 round once, to nearest even."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.devices.simulator import compilation
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import find_compiler
from tests.devices.simulator.conftest import FOLDER, TABLE

Kernels = Mapping[str, SimulatorFunction]
SHORT = [("__half", np.dtype(np.float16)), ("__nv_bfloat16", np.dtype(ml_dtypes.bfloat16))]
RNG = np.random.default_rng(1)


@pytest.fixture(scope="module", params=["this machine's instructions", "any machine's"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The intrinsics with the conversions and the fma of this CPU, and with those of software."""
    compiler = find_compiler()
    if request.param == "any machine's":
        compiler = replace(compiler, machine_flags=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compilation, "find_compiler", lambda: compiler)
        return load_file(FOLDER / "intrinsics.cu", TABLE["intrinsics.cu"])


def run(function: SimulatorFunction, n: int, *arguments: Any) -> None:
    function.launch_arrays(-(-n // 256), 256, *arguments, np.int32(n))


def widen(a: np.ndarray[Any, Any], to: type = np.float64) -> np.ndarray[Any, Any]:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return a.astype(to)


def finite_values(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """The finite numbers among the first ``count`` bit patterns."""
    every = widen(np.arange(count, dtype=np.uint32).astype(np.uint16).view(dtype))
    return every[np.isfinite(every)]


def same_bits_or_nan(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> None:
    word = np.dtype(f"u{a.itemsize}")
    is_nan = np.isnan(widen(b))
    np.testing.assert_array_equal(np.isnan(widen(a)), is_nan)
    np.testing.assert_array_equal(a.view(word)[~is_nan], b.view(word)[~is_nan])


def round_once(values: list[Fraction], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Round exact values to the nearest of all finite numbers of the format, ties to the even one."""
    finite = np.unique(finite_values(65536, dtype))
    places = np.searchsorted(finite, [float(v) for v in values])  # float() rounds: look at the neighbours
    result = []
    for value, place in zip(values, places, strict=True):
        near = [finite[i] for i in range(max(place - 2, 0), min(place + 3, len(finite)))]
        distance = [abs(Fraction(float(candidate)) - value) for candidate in near]
        best = [c for c, d in zip(near, distance, strict=True) if d == min(distance)]
        result.append(next((c for c in best if np.array(c).astype(dtype).view(np.uint16) % 2 == 0), best[0]))
    return np.array(result).astype(dtype)


@pytest.mark.parametrize(("name", "dtype"), SHORT)
@pytest.mark.parametrize(("to", "wide"), [("float", np.float32), ("double", np.float64)])
def test_every_short_value_widens_exactly(kernels: Kernels, name: str, dtype: Any, to: str, wide: type) -> None:
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    y = np.zeros(65536, wide)
    run(kernels[f"convert<{to}, {name}>"], 65536, x, y)
    same_bits_or_nan(y, widen(x, wide))


@pytest.mark.parametrize(("name", "dtype"), SHORT)
@pytest.mark.parametrize(("of", "wide"), [("float", np.float32), ("double", np.float64)])
def test_midpoints_and_their_neighbours_round_to_nearest_even(
    kernels: Kernels, name: str, dtype: Any, of: str, wide: type
) -> None:
    finite = finite_values(0x8000, dtype)
    middle = ((finite[:-1] + finite[1:]) / 2).astype(wide)
    assert (middle.astype(np.float64) * 2 == finite[:-1] + finite[1:]).all()
    rounded = np.concatenate([finite[:-1], finite[1:], np.where(np.arange(len(middle)) % 2, finite[1:], finite[:-1])])
    below, above = np.nextafter(middle, wide(0)), np.nextafter(middle, wide(np.inf))
    x = np.concatenate([below, above, middle]).astype(wide)
    for sign in (1, -1):
        y = np.zeros(len(x), dtype)
        run(kernels[f"convert<{name}, {of}>"], len(x), (sign * x).astype(wide), y)
        same_bits_or_nan(y, (sign * rounded).astype(dtype))


@pytest.mark.parametrize(("name", "dtype"), SHORT)
def test_overflow_infinity_nan_and_tiny_values(kernels: Kernels, name: str, dtype: Any) -> None:
    top = float(ml_dtypes.finfo(dtype).max)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    past = top + (top - float(np.nextafter(dtype.type(top), dtype.type(0)))) / 2  # midway to what would come next
    x = np.array(
        [past, np.nextafter(past, 0), np.inf, -np.inf, np.nan, -0.0, tiny / 2, np.nextafter(tiny / 2, 1), 5e-324]
    )
    y = np.zeros(len(x), dtype)
    run(kernels[f"convert<{name}, double>"], len(x), x, y)
    same_bits_or_nan(y, np.array([np.inf, top, np.inf, -np.inf, np.nan, -0.0, 0, tiny, 0]).astype(dtype))


@pytest.mark.parametrize(("name", "dtype"), SHORT)
def test_integers_round_once(kernels: Kernels, name: str, dtype: Any) -> None:
    values = [0, 1, -1, 2049, 2051, -4098, 257, 259, 65519, 65504]
    if name == "__nv_bfloat16":  # rounding to double first would make a tie of these
        values += [(1 << 62) + (1 << 54) + 1, (1 << 62) + (1 << 54), -((1 << 62) + (1 << 54) + 1), (1 << 63) - 1]
    x = np.array(values, np.int64)
    y = np.zeros(len(x), dtype)
    run(kernels[f"convert<{name}, long long>"], len(x), x, y)
    same_bits_or_nan(y, round_once([Fraction(v) for v in values], dtype))


@pytest.mark.parametrize(("name", "dtype"), SHORT)
def test_arithmetic_rounds_once(kernels: Kernels, name: str, dtype: Any) -> None:
    a, b = RNG.integers(0, 65536, (2, 60_000), dtype=np.uint16).view(dtype)
    wide_a, wide_b = widen(a), widen(b)
    results = [np.zeros(len(a), dtype) for _ in range(3)]
    run(kernels[f"arithmetic<{name}>"], len(a), a, b, *results)
    with np.errstate(all="ignore"):
        for got, expected in zip(results, [wide_a + wide_b, wide_a * wide_b, wide_a / wide_b], strict=True):
            # float first where bfloat16 sums are wider than double; innocuous, as in the kernel's own float
            same_bits_or_nan(got, expected.astype(np.float32).astype(dtype))


@pytest.mark.parametrize(("name", "dtype"), SHORT)
def test_fused_multiply_add_rounds_once(kernels: Kernels, name: str, dtype: Any) -> None:
    a, b, c = (RNG.standard_normal((3, 400)) * 2.0 ** RNG.integers(-6, 6, (3, 400))).astype(dtype)
    # A product midway between two values, and an addend that decides, far below the 53 bits of a double.
    a[0], b[0], c[0] = dtype.type(1.5), dtype.type(1 + 2 * float(ml_dtypes.finfo(dtype).eps)), dtype.type(0)
    if name == "__nv_bfloat16":
        a[1:3], b[1:3] = dtype.type(1 + 2**-7), dtype.type(1 + 2**-1)
        c[1], c[2] = dtype.type(2.0**-100), dtype.type(-(2.0**-100))
    y = np.zeros(400, dtype)
    run(kernels[f"fused<{name}>"], 400, a, b, c, y)
    exact = [Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r)) for p, q, r in zip(a, b, c, strict=True)]
    same_bits_or_nan(y, round_once(exact, dtype))


def test_high_halves_of_products(kernels: Kernels) -> None:
    a, b = RNG.integers(0, 2**32, (2, 32), dtype=np.uint32)
    c, d = RNG.integers(0, 2**64, (2, 32), dtype=np.uint64)
    y, z = np.zeros(32, np.uint32), np.zeros(32, np.uint64)
    kernels["high_products"].launch_arrays(1, 32, a, b, y, c, d, z)
    assert y.tolist() == [int(p) * int(q) >> 32 for p, q in zip(a, b, strict=True)]
    assert z.tolist() == [int(p) * int(q) >> 64 for p, q in zip(c, d, strict=True)]


def test_conversions_to_integers_saturate(kernels: Kernels) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.5, -2.5, 3.5, 0.5])
    n = len(x)
    i, u, f = np.zeros(n, np.int32), np.zeros(n, np.uint32), np.zeros(n, np.float32)
    l64 = np.zeros(n, np.int64)
    kernels["saturating"].launch_arrays(1, 32, x, i, u, l64, f, np.int32(n))
    low, high = -(2**31), 2**31 - 1
    assert i.tolist() == [0, high, low, high, low, 2, -2, 3, 0]
    assert u.tolist() == [0, 2**32 - 1, 0, 2**32 - 1, 0, 2, 0, 4, 0]
    assert l64.tolist() == [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 2, -3, 3, 0]
    assert f.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0.5]


def test_bit_intrinsics(kernels: Kernels) -> None:
    x = np.array([0, 1, 0x80000000, 0xFFFFFFFF, 0x00F0, *RNG.integers(0, 2**32, 27, dtype=np.uint32)], np.uint32)
    popcount, leading, first = (np.zeros(32, np.int32) for _ in range(3))
    reverse = np.zeros(32, np.uint32)
    kernels["bits"].launch_arrays(1, 32, x, popcount, leading, first, reverse)
    text = [f"{v:032b}" for v in x.tolist()]
    assert popcount.tolist() == [t.count("1") for t in text]
    assert leading.tolist() == [(t + "1").index("1") for t in text]
    assert first.tolist() == [t[::-1].find("1") + 1 for t in text]
    assert reverse.tolist() == [int(t[::-1], 2) for t in text]


def test_lanes_of_a_warp_converse(kernels: Kernels, schedule: Schedule) -> None:
    x = RNG.integers(0, 100, 32, dtype=np.int32)
    y = np.zeros((15, 32), np.int32)
    kernels["converse"].launch_arrays(1, 32, x, y, schedule=schedule)
    lane = np.arange(32)
    ballot = np.uint32(sum(1 << i for i in range(32) if x[i] > 10)).view(np.int32)
    match = [np.uint32(sum(1 << j for j in range(32) if x[j] & 3 == x[i] & 3)).view(np.int32) for i in range(32)]
    expected = [
        np.full(32, x[5]),
        x[(lane & ~7) | 1],
        x[lane ^ 3],
        x[np.where(lane ^ 9 >= (lane & ~7) + 8, lane, lane ^ 9)],
        x[np.where(lane >= 2, lane - 2, lane)],
        x[np.where((lane & 15) + 4 < 16, lane + 4, lane)],
        np.full(32, ballot),
        np.ones(32),
        np.ones(32),
        np.full(32, x.sum()),
        np.full(32, x.max()),
        np.full(32, np.bitwise_xor.reduce(x)),
        match,
        np.where(lane < 16, x[:16].sum(), x[16:].sum()),
        np.full(32, (x & 1).sum()),
    ]
    for row, (got, wanted) in enumerate(zip(y, expected, strict=True)):
        np.testing.assert_array_equal(got, wanted, err_msg=f"row {row}")


def test_lane_ahead_of_others_does_not_disturb_them(kernels: Kernels, schedule: Schedule) -> None:
    y = np.zeros(32, np.int32)
    kernels["hurry"].launch_arrays(1, 32, y, schedule=schedule)
    np.testing.assert_array_equal(y, np.full(32, 1000 + 496))


def test_atomics_lose_nothing(kernels: Kernels, schedule: Schedule) -> None:
    i, u, wide = np.zeros(4, np.int32), np.zeros(2, np.uint32), np.zeros(1, np.uint64)
    f, d, h = np.zeros(1, np.float32), np.zeros(1), np.zeros(1, np.float16)
    n = 64 * 256
    kernels["atomics"].launch_arrays(64, 256, i, u, wide, f, d, h, schedule=schedule)
    assert i.tolist() == [n * (n - 1) // 2, n - 1, -(n - 1), 2 * n]
    assert u.tolist() == [0xFFFFFFFF, n % 10]
    assert wide[0] == n * (n - 1) // 2
    assert (f[0], d[0], h[0]) == (n, n / 2, 64)


def test_arguments_of_every_kind_arrive(kernels: Kernels) -> None:
    function = kernels["take"]
    assert function.signature == ("P8", "f4", "f8", "i4", "u1", "b1", "s16", "f2", "f2", "P8")
    y = np.zeros(3)
    row = np.array([(7, 5, 3)], np.dtype([("stride", "i8"), ("size", "i4"), ("kind", "i2")], align=True))
    scalars = (np.float32(1), np.float64(2), np.int32(3), np.uint8(4), np.bool_(True))
    short = (np.float16(0.5), ml_dtypes.bfloat16(0.25))
    function.launch_arrays(1, 1, np.array([10], np.float32), *scalars, row.tobytes(), *short, y)
    assert y.tolist() == [21, 15, 0.75]


def test_vector_types_have_the_layout_of_cuda(kernels: Kernels) -> None:
    y = np.zeros(22, np.int32)
    kernels["layouts"].launch_arrays(1, 1, y)
    assert [tuple(pair) for pair in y.reshape(-1, 2).tolist()] == [
        *((4, 4), (6, 2), (8, 8), (12, 4), (16, 16), (16, 16), (32, 16), (16, 16), (32, 16), (4, 4), (12, 4))
    ]
