"""Signatures of the hooks of every operator: one style for each kind of hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import pytest

from gpuexec.ir.operator import (
    Operator,
    decomposition_for,
    find_operator,
    operator_names,
    upgraded_names,
    upgrades_for,
)
from gpuexec.ir.signatures import find_signature
from gpuexec.ops.lib.composite import Composite
from gpuexec.passes.derivatives import OF_ALL_OUTPUTS, RULES
from tests.ops.calls import find_schema

CLASSES = {
    name: found
    for name in operator_names()
    if (found := find_operator(name)) is not None and found.__module__.startswith("gpuexec.")
}
FACTS = ("channel_axis", "count_flops", "find_dtype", "is_noop", "is_lowered")
POSITIONAL, VARIADIC = Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL

# Who takes inputs together: any number of them; as a base of operators that differ in them; or in groups, a quantised
# tensor being three inputs, which one function divides for `infer`, `compute` and `lower`.
ANY_NUMBER = (
    *(
        "AppendingAttention",
        "Concat",
        "Einsum",
        "FeatureVectorizer",
        "Gradient",
        "If",
        "Loop",
        "Momentum",
        "ProductOfRows",
        "ProjectedHeads",
        "Scan",
    ),
    *("ScaledDotProductAttention", "SequenceConstruct", "SequenceMap", "_Fold", "_Optimizer"),
)
BASES = (
    *("Composite", "Drawing", "Elementwise", "Fused", "Narrowed", "PairedOperators", "Recurrent", "Steps"),
    *("_NormalizedSum", "_Shown"),
)
GROUPS = (
    *("MatMulIntegerToFloat", "QGemm", "QLinearConcat", "QLinearConv", "QLinearMatMul", "QLinearWhere"),
    *("QuantizedBinary", "QuantizedUnary"),
)


def list_parameters(hook: Callable[..., Any]) -> list[Parameter]:
    """Return the parameters behind ``self``, without annotations."""
    first, *rest = inspect.signature(hook).parameters.values()
    assert first.name == "self"
    return [each.replace(annotation=Parameter.empty) for each in rest]


@pytest.mark.parametrize("name", CLASSES)
def test_infer_names_the_inputs(name: str) -> None:
    parameters = list_parameters(CLASSES[name].infer)
    together = [each for each in parameters if each.kind is VARIADIC]
    named = [each for each in parameters if each.kind is POSITIONAL]
    assert parameters == named + together[:1]
    assert all(each.default in (Parameter.empty, None) for each in named)
    if together:
        assert CLASSES[name].infer.__qualname__.partition(".")[0] in (*ANY_NUMBER, *BASES, *GROUPS)


@pytest.mark.parametrize("name", CLASSES)
def test_named_inputs_are_those_of_the_schema(name: str) -> None:
    parameters = list_parameters(CLASSES[name].infer)
    if parameters and parameters[-1].name == "key" and CLASSES[name].is_random:
        parameters.pop()  # an input of ours, behind those of the schema
    if any(each.kind is VARIADIC for each in parameters):
        return
    domain, _, bare = name.rpartition(".")
    schema, signature = find_schema(name), find_signature(bare, domain)
    required = [index for index, each in enumerate(parameters) if each.default is Parameter.empty]
    if schema is not None:
        single = type(schema.inputs[0].option).Single if schema.inputs else None
        assert len(parameters) == len(schema.inputs)
        assert required == [index for index, each in enumerate(schema.inputs) if each.option == single]
    elif signature is not None:
        assert len(parameters) == signature.max_inputs
        assert required == list(signature.required)


@pytest.mark.parametrize("name", CLASSES)
def test_compute_takes_the_inputs_of_infer_and_out_by_keyword(name: str) -> None:
    out = Parameter("out", Parameter.KEYWORD_ONLY, default=None)
    assert list_parameters(CLASSES[name].compute) == [*list_parameters(CLASSES[name].infer), out]
    assert inspect.signature(CLASSES[name].compute).parameters["out"].annotation == "Out"


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if cls.lower is not None])
def test_lower_takes_an_emitter_and_slots(name: str) -> None:
    assert CLASSES[name].lower is not None
    parameters = inspect.signature(CLASSES[name].lower).parameters.values()  # type: ignore[arg-type]
    given = [(each.name, each.kind, each.default) for each in parameters]
    assert given == [(each, POSITIONAL, Parameter.empty) for each in ("self", "emit", "inputs", "outputs")]
    assert [each.annotation for each in parameters][1:] == ["Emitter", "Slots", "Slots"]


@pytest.mark.parametrize("hook", FACTS)
def test_facts_are_asked_as_the_base_declares(hook: str) -> None:
    declared = list_parameters(getattr(Operator, hook))
    assert [name for name, cls in CLASSES.items() if list_parameters(getattr(cls, hook)) != declared] == []


def test_composites_draw_as_the_base_declares() -> None:
    composites = {name: cls for name, cls in CLASSES.items() if issubclass(cls, Composite)}
    declared = list_parameters(Composite.draw)
    assert [name for name, cls in composites.items() if list_parameters(cls.draw) != declared] == []


def test_rules_of_derivatives_have_one_signature() -> None:
    for rules, names in ((RULES, ["tape", "node", "g"]), (OF_ALL_OUTPUTS, ["tape", "node", "slopes"])):
        assert [name for name, rule in rules.items() if list(inspect.signature(rule).parameters) != names] == []


def test_upgrades_and_decompositions_take_a_node() -> None:
    upgrades = [function for name in upgraded_names() for function in upgrades_for(name, 0)]
    decompositions = [decomposition_for(name) for name in operator_names()]
    for function in (*upgrades, *filter(None, decompositions)):
        assert [each.kind for each in inspect.signature(function).parameters.values()] == [POSITIONAL]


@pytest.mark.parametrize("names", [ANY_NUMBER, BASES, GROUPS])
def test_lists_of_who_takes_inputs_together_are_true(names: tuple[str, ...]) -> None:
    found = {
        cls.infer.__qualname__.partition(".")[0]
        for cls in CLASSES.values()
        if any(each.kind is VARIADIC for each in list_parameters(cls.infer))
    }
    assert set(names) <= found
