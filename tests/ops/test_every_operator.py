"""Every operator with odd inputs: values at the edge of what types hold, nothing, one, eight axes, each type."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Hashable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuexec.ir.operator import Operator, Tolerance, find_operator, operator_names
from gpuexec.ir.spec import DTYPES, dtype_row
from gpuexec.ir.target import Target
from tests.ops.agreement import check_agreement, compile_texts, has_text
from tests.ops.calls import Call, find_schema
from tests.ops.every_call import choose_calls, list_asked, list_calls
from tests.ops.odd import EXTREME, ORDINARY, SPECIAL, Inputs, fill, reshape, vary_dtypes, vary_shapes
from tests.ops.test_dtypes import find_allowed
from tests.planner.tracing import find_obstacles

CHECKED = ("cpu", "check")
# Inputs whose content is an agreement with whoever made them, which no kernel can hold against anything: what it is.
AGREED = {
    **dict.fromkeys(("gpuexec.RestoreRows", "com.microsoft.RestorePadding"), ((1,), "each place of a row once")),
    "com.microsoft.GatedRelativePositionBias": ((6,), "each place of a row once"),
    "com.microsoft.PackedAttention": ((3, 4), "each place of a row once, and running sums"),
    "com.microsoft.PackedMultiHeadAttention": ((4, 5), "each place of a row once, and running sums"),
    "gpuexec.Unravel": ((0,), "places within the extents"),
}
# Products of as many as there are reach the ends of a type whatever is drawn, in an order that is not NumPy's; and of
# a signal and a window both at their ends no tolerance knows.
UNBOUNDED = ("ReduceProd", "CumProd", "Det", "STFT")
# Bytes times a scale at the end of its type, added up: whether that leaves the type midway follows from the order.
_SCALED_SUMS = ("com.microsoft.QLinearGlobalAveragePool", "com.microsoft.QLinearReduceMean")
_FUSED_PRODUCT = "gpuexec.FusedReduceProd"  # is ReduceProd with an epilogue, by the same kernel
# Operators that are what their graphs say.
GRAPHS = ("If", "Loop", "Scan", "SequenceMap", "ai.onnx.preview.training.Gradient")
# What ties a plan to one extent, by operator: functions that need its digits. It may only shrink. Most are extents that
# belong to a model and not to a run: of weights, a kernel, a depth.
_CONV = ("ops/nn/conv_simt.py:ConvSum.of.<locals>.<genexpr>", "ops/nn/conv_depthwise.py:find_tile")
_CONV_NAMES = ("ops/nn/conv_depthwise.py:name_instance",)
_LINEAR, _RULE = ("ops/ml/linear.py:_Coefficients.bind",), ("ops/nn/attention.py:_Attention._rule",)
_IMAGE = tuple(f"ops/vision/image.py:{name}" for name in ("_launch", "_make_table", "_spread"))
TIED = {
    **dict.fromkeys(("Attention", "gpuexec.AttentionOverCache", "gpuexec.RoundedAttention"), _RULE),
    **dict.fromkeys(
        ("Conv", "gpuexec.FusedConv", "gpuexec.FusedNarrowConv", "gpuexec.SeparableConv"), _CONV + _CONV_NAMES
    ),
    **dict.fromkeys(("ai.onnx.ml.LinearClassifier", "ai.onnx.ml.LinearRegressor"), _LINEAR),
    **dict.fromkeys(("gpuexec.ImageToTensor", "gpuexec.TensorToImage"), _IMAGE),
    "Det": ("ops/linalg/det.py:Det.lower",),
    "GatherND": ("ops/tensor/gather.py:GatherND.infer", "ops/tensor/gather.py:GatherND.lower"),
    "STFT": ("ops/signal/fourier_lines.py:Lines.launch",),
    "com.microsoft.RelativePositionBias": ("ops/control/interpret.py:_propagate.<locals>.<listcomp>",),
    "gpuexec.FusedResize": ("ops/vision/resize_tables.py:make_table",),
    "gpuexec.NarrowConvTranspose": ("ops/nn/conv_simt.py:_list_axis",),
    "gpuexec.NormalizedConv": (_CONV[0], "ops/nn/conv_mma.py:pack_conv"),
    "gpuexec.RelativeBuckets": ("ops/microsoft/position.py:RelativeBuckets._tabulate",),
}
ALL_TYPES = frozenset(row.name for row in DTYPES)
NAMES = [
    name
    for name in operator_names()
    if (found := find_operator(name)) is not None and found.__module__.startswith("gpuexec.") and name not in GRAPHS
]


@pytest.fixture(scope="module", autouse=True)
def find_calls() -> None:
    """Import the tests that calls are found in before hypothesis draws: they bear strategies of their own."""
    list_calls()


def test_every_operator_is_called() -> None:
    assert sorted(set(NAMES) - set(list_calls())) == [], "these need a case, or a call in every_call.py"


@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("name", NAMES)
def test_values(name: str, seed: int) -> None:
    """Fresh ones, what is no number among them, and the ends of what types hold.

    Check mode finds nothing, be indices as far out as they can. A second call has the same numbers in each run, those
    of the seed that hypothesis begins with; the first one has others, ordinary ones too.
    """
    rng = np.random.default_rng(seed)
    held: dict[str, set[Hashable]] = {ORDINARY: set(), SPECIAL: set(), EXTREME: set()}
    call = choose_calls(name, 2)[0 if seed else -1]
    if has_text(call.operator):
        compile_odd()
    kept, terms = list_kept(call), count_terms(call)
    for kind in (ORDINARY, SPECIAL, EXTREME) if seed else (SPECIAL, EXTREME):
        if kind is not EXTREME or name not in (*UNBOUNDED, *_SCALED_SUMS, _FUSED_PRODUCT):
            check(call, fill(rng, call.inputs, kept, kind, terms), kind, CHECKED, held[kind])


@pytest.mark.parametrize("name", UNBOUNDED)
def test_kernels_keep_to_their_bytes(name: str) -> None:
    """Check mode finds nothing in those whose ends `test_values` leaves out."""
    (call,) = choose_calls(name, 1)
    rng, kept = np.random.default_rng(zlib.crc32(name.encode())), list_kept(call)
    check(call, fill(rng, call.inputs, kept, EXTREME, count_terms(call)), EXTREME, ("check",))


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name: str) -> None:
    """Extents of 0 and 1, inputs of no axis and of eight, where the operator takes them."""
    (call,) = choose_calls(name, 1)
    if has_text(call.operator):
        compile_odd()
    rng, kept = np.random.default_rng(zlib.crc32(name.encode())), list_kept(call)
    for label, inputs in vary_shapes(call.inputs, list_asked(call.operator, call.inputs)):
        check(call, fill(rng, inputs, kept, ORDINARY), label, ("cpu", "check"))


@pytest.mark.parametrize("name", NAMES)
def test_types(name: str) -> None:
    """Every type that ONNX allows, or that the operator takes where ONNX has no word on it."""
    (call,) = choose_calls(name, 1)
    if has_text(call.operator):
        compile_odd()
    rng, kept = np.random.default_rng(zlib.crc32(name.encode())), list_kept(call)
    allowed = {} if find_schema(name) is None else find_allowed(name)
    held: set[Hashable] = set()  # a part whose types are those of another call says nothing new
    for label, inputs in vary_dtypes(call):
        pairs = zip(inputs, call.letters, strict=True)
        if all(x is None or dtype_row(x.dtype).name in allowed.get(letter, ALL_TYPES) for x, letter in pairs):
            given = fill(rng, inputs, kept, SPECIAL)
            check(call, given, label, CHECKED, held)
            single = tuple(x if x is None or i in kept else reshape(x, ()) for i, x in enumerate(given))
            check(call, single, f"{label}, 0-d", ("cpu",), held)


@pytest.mark.parametrize("name", NAMES)
def test_symbolic_extents(name: str) -> None:
    """Planned once with symbolic extents, an operator gives what ints give; few need the digits of an extent."""
    for target, count in (("cpu", 1), ("sm_90", 2)):
        for call in choose_calls(name, count):
            assert set(find_obstacles(call, Target.named(target))) <= set(TIED.get(name, ()))


@functools.cache
def compile_odd() -> None:
    """Compile the kernels of generated text that the odd inputs of all operators launch."""
    found: list[tuple[Operator, Inputs]] = []
    for name in NAMES:
        calls = choose_calls(name, 2)
        if has_text(calls[0].operator):
            op, inputs = calls[0].operator, calls[0].inputs
            found += [(call.operator, call.inputs) for call in calls]
            found += [(op, varied) for _, varied in vary_shapes(inputs, list_asked(op, inputs))]
            found += [(op, varied) for _, varied in vary_dtypes(calls[0])]
    compile_texts(found)


def check(call: Call, inputs: Inputs, label: str, devices: tuple[str, ...], held: set[Hashable] | None = None) -> None:
    """Check a call with other inputs, and say which ones they were if they fail."""
    try:
        check_agreement(call.operator, inputs, devices, held)
    except Exception as error:
        shown = ", ".join("-" if x is None else f"{x.dtype.name}{list(x.shape)}" for x in inputs)
        error.add_note(f"{call.operator} of {shown}: {label}")
        raise


def list_kept(call: Call) -> set[int]:
    """Return the inputs that stay as they are: what planning must know, and what is agreed upon."""
    return list_asked(call.operator, call.inputs) | set(AGREED.get(call.operator.name, ((), ""))[0])


def count_terms(call: Call) -> int:
    """Return how many elements enter a sum at most; 0 where the operator adds up nothing."""
    if call.operator.tolerance is not Tolerance.REDUCTION:
        return 0
    return 1 + max((x.size for x in call.inputs if x is not None), default=0)
