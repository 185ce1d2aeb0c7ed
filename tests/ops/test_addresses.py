"""Unaligned arrays: every family of operators and type gives equal bits at any element offset.

Check mode refuses an access that is not aligned to its width, which a simulator's CPU would let pass.
"""

from __future__ import annotations

import functools
import zlib
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest

from gpuexec.errors import NeedsHostValue
from gpuexec.ir.operator import decomposition_for, find_operator
from gpuexec.ir.spec import TensorSpec
from tests.ops.agreement import compile_texts, compute, find_known, has_text, is_held
from tests.ops.calls import Call
from tests.ops.every_call import list_calls
from tests.ops.harness import Case, run_on
from tests.ops.odd import ORDINARY, fill
from tests.ops.shifted import run_shifted
from tests.ops.test_every_operator import NAMES, list_kept
from tests.ops.tolerance import to_bits

# Elements past an aligned address.
SHIFTS = tuple(range(1, 16))
# Some of each power of two that divides a shift, which decides how long words can be.
WIDE_SHIFTS = (1, 2, 3, 4, 6, 8, 12)
# Families whose kernels or copies read words of several elements, where each width of elements meets all of these.
WIDE = (
    *("elementwise.elementwise_unary", "elementwise.elementwise_variadic", "tensor.copy", "tensor.gather"),
    "quant.integer_matmul",
)
# Operators that draw from a memory, which no replay takes; what they read of callers are shapes and probabilities.
DRAWING = tuple(f"gpuexec.ops.random.{name}" for name in ("random", "multinomial", "sample_token"))


def family_of(name: str) -> str:
    """Return the module of an operator."""
    found = find_operator(name)
    assert found is not None
    return found.__module__


def has_kernels(name: str) -> bool:
    """Return whether an operator has a lowering of its own."""
    return decomposition_for(name) is None and getattr(find_operator(name), "lower", None) is not None


FAMILIES = sorted({family_of(name) for name in NAMES if has_kernels(name)} - {*DRAWING})


@functools.cache
def list_families() -> Mapping[str, tuple[Call, ...]]:
    """Return calls that launch kernels by family, for each combination of types the one of most elements."""
    found = defaultdict[str, dict[object, Call]](dict)
    for name in filter(has_kernels, NAMES):
        for call in list_calls().get(name, ()):
            specs = [None if x is None else TensorSpec.of(x) for x in call.inputs]
            held = [spec for spec in (*specs, *call.operator.infer(*specs)) if spec is not None and is_held(spec.dtype)]
            if held or not call.operator.is_lowered(specs):
                continue
            family, types = family_of(name), tuple(None if x is None else x.dtype for x in call.inputs)
            before = found[family].get(types)
            if before is None or measure_largest(before) < measure_largest(call):
                found[family][types] = call
    return {family: tuple(calls.values()) for family, calls in found.items()}


def measure_largest(call: Call) -> int:
    """Return the elements of the largest input: words of 16 bytes are taken where there are enough."""
    return max((x.size for x in call.inputs if x is not None), default=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_types_of_a_family_lie_at_any_element(family: str) -> None:
    """Each combination of types at another shift, so that a family with many meets all of them."""
    calls, first = list_families()[family], zlib.crc32(family.encode())
    compile_texts((call.operator, call.inputs) for call in calls if has_text(call.operator))
    for number, call in enumerate(calls):
        check_shifted(call, SHIFTS[(first + number) % len(SHIFTS)])


@pytest.mark.parametrize("shift", WIDE_SHIFTS)
@pytest.mark.parametrize("family", WIDE)
def test_wide_words_are_taken_where_addresses_allow_it(family: str, shift: int) -> None:
    seen = set[object]()
    for call in list_families()[f"gpuexec.ops.{family}"]:
        # One of each width of elements: only that decides how long a word is.
        widths = tuple(x.itemsize for x in call.inputs if x is not None)
        if widths not in seen:
            seen.add(widths)
            check_shifted(call, shift)


def check_shifted(call: Call, shift: int) -> None:
    """Check that kernels make the same bits of arrays that start ``shift`` elements past aligned ones."""
    op, rng = call.operator, np.random.default_rng(shift)
    inputs = fill(rng, call.inputs, list_kept(call), ORDINARY)
    known = find_known(op, inputs)
    computed = None if known is None else compute(op, inputs)
    if known is None or computed is None:
        return
    case = Case("shifted", op.name, inputs, outputs=tuple(y is not None for y in computed))
    expected = None
    while expected is None:
        try:
            expected = run_on("check", case, op, inputs, known)
        except NeedsHostValue as error:
            known = known | {error.index}
    for one, other in zip(run_shifted("check", case, op, inputs, known, shift), expected, strict=True):
        np.testing.assert_array_equal(to_bits(one), to_bits(other), err_msg=f"{op}, {shift} elements on")
