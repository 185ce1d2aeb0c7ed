"""Signatures of com.microsoft's operators: inputs and outputs of nodes are checked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state as runtime

import gpuexec as gx
from gpuexec.ir.operator import operator_names, upgraded_names
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.forms import FORMS

# Written by skl2onnx, and by onnxruntime's quantizer for floats of 8 bits; onnxruntime has no schema of theirs.
_WITHOUT_SCHEMA = {"Solve", "QLinearMatMul"}
_MARKS = {"Single": "", "Optional": "?", "Variadic": "*"}


def describe(formals: Sequence[object]) -> str:
    """Return inputs or outputs of one of onnxruntime's schemas, as FORMS has them."""
    return " ".join(f"{each.name}{_MARKS[each.option.name]}" for each in formals)  # type: ignore[attr-defined]


def make_model(name: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    node = helper.make_node(name, inputs, outputs, name="mine", domain=DOMAIN)
    given, made = (
        [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in names if each]
        for names in (inputs, outputs)
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(helper.make_graph([node], "g", given, made), opset_imports=opsets).SerializeToString()


def test_every_operator_has_the_form_that_onnxruntime_gives_it() -> None:
    schemas = {each.name: each for each in runtime.get_all_operator_schema() if each.domain == DOMAIN}
    names = {name.removeprefix(f"{DOMAIN}.") for name in (*operator_names(), *upgraded_names()) if DOMAIN in name}
    assert set(FORMS) == names
    assert not _WITHOUT_SCHEMA & set(schemas)
    for name in names - _WITHOUT_SCHEMA:
        theirs = describe(schemas[name].inputs), describe(schemas[name].outputs)
        for ours, other in zip(FORMS[name], theirs, strict=True):
            # Releases add inputs behind the others, which may be left out: some know more of them than others do.
            short, long = sorted((ours.split(), other.split()), key=len)
            assert long[: len(short)] == short and all(each.endswith("?") for each in long[len(short) :]), name


@pytest.mark.parametrize("name", FORMS)
def test_a_node_with_more_outputs_or_inputs_is_refused_by_name(name: str) -> None:
    inputs, outputs = (form.split() for form in FORMS[name])
    with pytest.raises(gx.ModelError, match=rf"{name} 'mine' takes at most .* and {len(outputs)} outputs, got"):
        gx.load(make_model(name, inputs, [*outputs, "more"]))
    if not FORMS[name][0].endswith("*"):
        with pytest.raises(gx.ModelError, match=f"{name} 'mine' takes at most {len(inputs)} inputs"):
            gx.load(make_model(name, [*inputs, "more"], outputs))


@pytest.mark.parametrize("name", FORMS)
def test_a_node_without_an_input_is_refused_by_name(name: str) -> None:
    inputs, outputs = (form.split() for form in FORMS[name])
    for index, each in enumerate(inputs):
        if each[-1] not in "?*":
            given = [*inputs[:index], "", *inputs[index + 1 :]]
            with pytest.raises(gx.ModelError, match=rf"{name} 'mine' lacks its input {index} \({each}\)"):
                gx.load(make_model(name, given, outputs))
