"""Optional: a tensor or a sequence, or nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import gpuexec as gx
from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.apply import compute_arrays, infer_specs
from gpuexec.ir.containers import make_optional, make_sequence, read_sequence
from gpuexec.ir.operator import build
from gpuexec.ir.spec import OPTIONAL, TensorSpec
from tests.model.objects import BACKENDS, are_equal, parse, run_on
from tests.ops.objects import ObjectCase, check_case, optional, sequence, tensor

A = np.arange(3, dtype=np.float32)
ONE, SEQ, BOOL = tensor(), sequence(), tensor(TensorProto.BOOL)
TRUE, FALSE = np.array(True), np.array(False)
TEXT = tensor(TensorProto.STRING)
WORDS = np.array([["a"], ["b"]], object)

CASES = (
    ObjectCase("of_tensor", "Optional", (A,), (ONE,), (optional(ONE),), expected=[A]),
    ObjectCase("of_sequence", "Optional", ([A, A],), (SEQ,), (optional(SEQ),), expected=[[A, A]]),
    ObjectCase("of_text", "Optional", (WORDS,), (TEXT,), (optional(TEXT),), expected=[WORDS]),
    ObjectCase("of_nothing", "Optional", (), (), (optional(SEQ),), {"type": SEQ}, expected=[None]),
    ObjectCase("get_tensor", "OptionalGetElement", (A,), (optional(ONE),), (ONE,)),
    ObjectCase("get_sequence", "OptionalGetElement", ([A],), (optional(SEQ),), (SEQ,)),
    ObjectCase("get_text", "OptionalGetElement", (WORDS,), (optional(TEXT),), (TEXT,)),
    ObjectCase("get_of_plain_sequence", "OptionalGetElement", ([A],), (SEQ,), (SEQ,)),
    ObjectCase("get_of_plain_tensor", "OptionalGetElement", (A,), (ONE,), (ONE,)),
    ObjectCase("get_opset_15", "OptionalGetElement", (A,), (optional(ONE),), (ONE,), opset=15),
    ObjectCase("has_tensor", "OptionalHasElement", (A,), (optional(ONE),), (BOOL,), expected=[TRUE]),
    ObjectCase("has_empty_sequence", "OptionalHasElement", ([],), (optional(SEQ),), (BOOL,), expected=[TRUE]),
    ObjectCase("has_none", "OptionalHasElement", (None,), (optional(ONE),), (BOOL,), expected=[FALSE]),
    ObjectCase("has_opset_15", "OptionalHasElement", (None,), (optional(ONE),), (BOOL,), expected=[FALSE], opset=15),
    ObjectCase("has_no_input", "OptionalHasElement", (), (), (BOOL,), expected=[FALSE]),
    ObjectCase("has_plain_sequence", "OptionalHasElement", ([],), (SEQ,), (BOOL,), expected=[TRUE]),
    ObjectCase("has_plain_tensor", "OptionalHasElement", (A,), (ONE,), (BOOL,), expected=[TRUE]),
    ObjectCase("identity", "Identity", (A,), (optional(ONE),), (optional(ONE),)),
    ObjectCase("identity_of_none", "Identity", (None,), (optional(ONE),), (optional(ONE),), expected=[None]),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_optional_operators(case: ObjectCase) -> None:
    check_case(case)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_taken_for_an_optional_stays_on_the_device(backend: gx.BackendType) -> None:
    model = gx.load(
        parse(
            "(float[n] x) => (float[n] y, bool h) { e = Exp (x) y = OptionalGetElement (e) h = OptionalHasElement (e) }"
        )
    )
    with gx.Worker(model, backend=backend) as worker:
        y, h = worker.run(A)
        assert worker.report().host_calls == ()
    np.testing.assert_allclose(y, np.exp(A), rtol=1e-6)
    assert h.shape == () and bool(h)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("Optional", [], "without an input expects the attribute 'type'"),
        ("Optional", [make_optional(None)], "expects a tensor or a sequence, got an optional"),
        ("OptionalGetElement", [make_optional(None)], "the optional is empty; ask OptionalHasElement first"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, inputs: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer_specs(build(name, {}), [TensorSpec.of(array) for array in inputs])


def test_what_an_optional_holds_is_inferred_only_where_it_is_known() -> None:
    with pytest.raises(NeedsHostValue) as caught:
        infer_specs(build("OptionalGetElement", {}), [TensorSpec((), OPTIONAL)])
    assert caught.value.index == 0


def test_what_an_optional_holds_is_no_memory_of_others() -> None:
    source = A.copy()
    (made,) = compute_arrays(build("Optional", {}), [source])
    source[:] = 9
    (held,) = compute_arrays(build("OptionalGetElement", {}), [made])
    assert are_equal(held, A)


def test_an_optional_of_a_sequence_goes_through_a_model() -> None:
    model = parse("(seq(float[]) s) => (optional(seq(float[])) o) { o = Optional (s) }")
    for backend in BACKENDS:
        assert are_equal(run_on(backend, model, {"s": [A]}), [[A]])
    assert are_equal(read_sequence(make_sequence([A])), [A])
