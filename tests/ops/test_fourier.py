"""DFT and STFT against NumPy's transforms in double."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.operator import build
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.signal.fourier import DFT, STFT
from gpuexec.ops.signal.fourier_lines import choose_stages
from tests.ops.harness import Array, Case, run_case

FLOATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
INT = np.int64


def sample(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([*shape, 3]).normal(0, 1, shape).astype(dtype)


def transform(x: Array, n: int, axis: int, inverse: int, onesided: int) -> Array:
    """The definition, by NumPy's transforms of complex numbers in double."""
    wide = x.astype(np.float64)
    signal = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        return np.fft.irfft(signal, n, axis)[..., np.newaxis].astype(x.dtype)
    made = (np.fft.ifft if inverse else np.fft.fft)(signal, n, axis)
    if onesided:
        made = made.take(range(n // 2 + 1), axis)
    with np.errstate(over="ignore"):
        return np.stack([made.real, made.imag], -1).astype(x.dtype)


def dft(id: str, x: Array, axis: int | None = None, n: int | None = None, inverse: int = 0, onesided: int = 0) -> Case:
    place = (-2 if axis is None else axis) % x.ndim
    length = n if n is not None else 2 * (x.shape[place] - 1) if inverse and onesided else x.shape[place]
    expected = transform(x, length, place, inverse, onesided)
    inputs = (x, None if n is None else np.array(n, INT), None if axis is None else np.array(axis, INT))
    name = f"{id}{'-inverse' * inverse}{'-onesided' * onesided}"
    attributes = {"inverse": inverse, "onesided": onesided}
    return Case(name, "DFT", inputs, attributes, (1, 2), expected=(expected,), terms=length)


def stft(
    id: str, x: Array, step: int, length: int | None = None, window: Array | None = None, onesided: int = 1
) -> Case:
    count = length or (x.shape[1] if window is None else window.size)
    weights = np.ones(count) if window is None else window.astype(np.float64)
    signal = x if x.ndim > 2 else x[..., np.newaxis]
    frames = [
        signal[:, first : first + count].astype(np.float64) * weights[:, np.newaxis]
        for first in range(0, x.shape[1] - count + 1, step)
    ]
    expected = transform(np.stack(frames, 1), count, 2, 0, onesided).astype(x.dtype)
    inputs = (x, np.array(step, INT), window, None if length is None else np.array(length, INT))
    return Case(id, "STFT", inputs, {"onesided": onesided}, (1, 3), expected=(expected,), terms=count)


SPECTRUM, OLD = sample(3, 9, 2), sample(2, 3, 5, 2)
LENGTHS = (
    *(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 20, 31, 32, 60, 64, 100, 243, 512, 1000, 1024),  # stages in shared memory
    *(37, 74, 113, 509, 511),  # chirped there
    *(1025, 1536, 2048, 2310, 521, 1021, 2053),  # in scratch memory, the last three chirped
)
CASES = [
    *(dft(f"length{n}", sample(2, n, 2)) for n in LENGTHS),
    *(dft(f"length{n}", sample(2, n, 2), inverse=1) for n in (1, 2, 3, 12, 37, 64, 1021, 1536)),
    *(dft(f"length{n}", sample(2, n, 1), onesided=1) for n in (1, 2, 3, 12, 37, 64, 1021)),
    *(dft(f"length{n}", sample(2, n // 2 + 1, 2), n=n, inverse=1, onesided=1) for n in (1, 2, 3, 12, 37, 64, 1021)),
    *(dft(np.dtype(t).name, sample(3, 20, 2, dtype=t)) for t in FLOATS),
    *(dft(np.dtype(t).name, sample(3, 20, 1, dtype=t), inverse=1) for t in FLOATS),
    *(dft(f"axis{axis}", sample(3, 4, 5, 2), axis) for axis in (0, 1, 2, -2, -3, -4)),
    *(dft(f"axis{axis}", sample(3, 8, 5, 1), axis, onesided=1) for axis in (0, 1, 2)),
    *(dft(f"padded{n}", sample(3, 9, 2), n=n) for n in (10, 16, 41)),
    *(dft(f"cut{n}", sample(3, 9, 2), n=n) for n in (1, 5, 8)),
    dft("half_a_spectrum", SPECTRUM, inverse=1, onesided=1),
    *(dft(f"half_a_spectrum_padded{n}", SPECTRUM, n=n, inverse=1, onesided=1) for n in (24, 25)),
    *(dft(f"half_a_spectrum_cut{n}", SPECTRUM, n=n, inverse=1, onesided=1) for n in (6, 7)),
    dft("one_line", sample(6, 2)),
    dft("many_lines", sample(3000, 4, 1)),
    dft("many_lines_across", sample(2, 8, 700, 1), 1),
    dft("many_lines_in_scratch", sample(260, 1025, 1)[:, ::5][:, :37], n=1030),
    dft("rank8", sample(2, 1, 2, 3, 2, 2, 2, 2), 3),
    dft("no_lines", sample(0, 8, 2)),
    dft("no_samples", sample(3, 0, 2), n=4),
    dft("strided", sample(12, 9, 4, 2)[::-2, 1::2, ::3], 1),
    dft("overflows", np.full((1, 8, 1), 60000, np.float16)),
    dft("tiny", np.full((1, 6, 1), 1e-40, np.float32)),
    Case("opset17", "DFT", (OLD,), opset=17, terms=3, expected=(transform(OLD, 3, 1, 0, 0),)),
    Case("opset19", "DFT", (OLD, np.array(7, np.int32)), {"axis": -2, "inverse": 1, "onesided": 1}, (1,), opset=19,
         terms=7, expected=(transform(OLD, 7, 2, 1, 1),)),
]  # fmt: skip
STFT_CASES = [
    *(stft(f"{np.dtype(t).name}", sample(2, 40, 1, dtype=t), 5, None, sample(12, dtype=t)) for t in FLOATS),
    stft("frames", sample(2, 40, 1), 7, 16),
    stft("both", sample(2, 40, 1), 7, 16, sample(16)),
    stft("neither", sample(2, 40, 1), 7),
    stft("two_sided", sample(2, 40, 1), 7, 16, onesided=0),
    stft("complex", sample(2, 40, 2), 7, 16, sample(16), onesided=0),
    stft("step_beyond_frame", sample(2, 40, 1), 20, 6),
    *(stft(f"rank2-{length}", sample(2, 40), 7, length, sample(12)) for length in (None, 12)),
    stft("one_sample", sample(2, 5, 1), 2, 1),
    stft("prime", sample(1, 200, 1), 60, 101, sample(101)),
    stft("long_frames", sample(1, 5000, 1), 1100, 2048, sample(2048)),
    stft("many_frames", sample(3, 4000, 1), 4, 16, sample(16)),
    stft("no_signals", sample(0, 40, 1), 5, 8),
    stft("strided", sample(12, 90, 1)[::-4, ::2], 7, 16, sample(32)[::-2]),
    stft("strided_complex", sample(4, 90, 5)[::2, 5::2, ::4], 7, 16, sample(32)[::-2], onesided=0),
]


def label(case: Case) -> str:
    return case.id


@pytest.mark.parametrize("case", CASES, ids=label)
def test_dft(checks: str, case: Case) -> None:
    run_case(case, checks)


@pytest.mark.parametrize("case", STFT_CASES, ids=label)
def test_stft(checks: str, case: Case) -> None:
    run_case(case, checks)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    extents=st.tuples(st.integers(1, 4), st.integers(1, 130), st.integers(1, 3)),
    length=st.none() | st.integers(1, 130),
    kind=st.sampled_from(((0, 0, 1), (0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 0, 2), (1, 1, 2))),
    axis=st.integers(0, 2),
)
def test_any_dft(
    checks: str, extents: tuple[int, int, int], length: int | None, kind: tuple[int, int, int], axis: int
) -> None:
    inverse, onesided, parts = kind
    order = sorted(range(3), key=lambda each: (each + axis) % 3)
    shape = tuple(extents[each] for each in order)
    if inverse and onesided and length is None and shape[axis] == 1:
        length = 1
    run_case(dft("any", sample(*shape, parts), axis, length, inverse, onesided), checks)


@pytest.mark.parametrize("length", [*range(1, 200), 509, 1021, 2310, 4096, 30030, 44100, 65537])
def test_stages_make_the_length(length: int) -> None:
    stages = choose_stages(length)
    assert np.prod(stages.radices, dtype=int) == stages.points and max((1, *stages.radices)) <= 31
    assert stages.points >= 2 * length - 1 if stages.is_chirped else stages.points == length


@pytest.mark.parametrize(("cls", "defaults"), [(DFT, {"inverse": 0, "onesided": 0}), (STFT, {"onesided": 1})])
def test_attributes_are_those_of_the_standard(cls: Any, defaults: dict[str, int]) -> None:
    attributes = onnx.defs.get_schema(cls.name).attributes
    assert {name: each.default_value.i for name, each in attributes.items()} == defaults
    assert cls() == cls(**defaults)


def scalar(value: int, dtype: Any = INT) -> TensorSpec:
    return TensorSpec.of(np.array(value, dtype))


@pytest.mark.parametrize(
    ("attributes", "shape", "others", "message"),
    [
        ({}, (8,), (), "a last axis of 1 (real) or 2 (complex)"),
        ({}, (4, 3), (), "a last axis of 1 (real) or 2 (complex)"),
        ({}, (4, 2), (None, scalar(1)), "not the last one (real and imaginary parts), got 1"),
        ({}, (4, 2), (None, scalar(-1)), "not the last one"),
        ({}, (4, 2), (None, scalar(2)), "out of range"),
        ({}, (4, 2), (None, scalar(0, np.float32)), "axis of type int32, int64"),
        ({}, (4, 2), (scalar(0),), "a length of 1 or more, got 0"),
        ({}, (0, 2), (), "a length of 1 or more, got 0"),
        ({}, (4, 2), (scalar(4, np.int16),), "dft_length of type int32, int64"),
        ({"onesided": 1}, (4, 2), (), "a real signal (last axis 1), got float32[4,2]"),
        ({"onesided": 1, "inverse": 1}, (4, 1), (), "a complex spectrum (last axis 2), got float32[4,1]"),
        ({"onesided": 1, "inverse": 1}, (1, 2), (), "a length of 1 or more, got 0"),
    ],
)
def test_dft_refuses(attributes: dict[str, int], shape: tuple[int, ...], others: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build("DFT", attributes).infer(TensorSpec(shape, np.dtype(np.float32)), *others)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "others", "message"),
    [
        ((2, 3, 40, 1), (scalar(1),), "rank 3"),
        ((2, 40, 1), (scalar(0),), "got frame_length 40, frame_step 0"),
        ((2, 40, 1), (scalar(1), None, scalar(41)), "got frame_length 41, frame_step 1"),
        ((2, 40, 1), (scalar(1), None, scalar(0)), "got frame_length 0, frame_step 1"),
        ((2, 40, 1), (scalar(1), TensorSpec((5,), np.dtype(np.float32)), scalar(6)), "a window of shape [6]"),
        ((2, 40, 1), (scalar(1), TensorSpec((5,), np.dtype(np.float64))), "window of type float32"),
        ((2, 40, 2), (scalar(1),), "STFT with onesided=1 expects a real signal"),
    ],
)
def test_stft_refuses(shape: tuple[int, ...], others: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build("STFT", {}).infer(TensorSpec(shape, np.dtype(np.float32)), *others)
    assert message in str(caught.value)


def test_infer_asks_for_numbers() -> None:
    signal, count = TensorSpec((2, 40, 1), np.dtype(np.float32)), TensorSpec((), np.dtype(INT))
    for name, others, role in (
        ("DFT", (count,), "dft_length"),
        ("DFT", (None, count), "axis"),
        ("STFT", (count,), "frame_step"),
        ("STFT", (scalar(1), None, count), "frame_length"),
    ):
        with pytest.raises(NeedsHostValue, match=role):
            build(name, {}).infer(signal, *others)
