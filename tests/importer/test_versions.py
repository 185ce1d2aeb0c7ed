"""Operator versions: every form of ONNX is read, by an upgrade or because it equals the newest."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from onnx import TensorProto, defs, helper

from gpuexec.importer.bodies import BODIES
from gpuexec.importer.load import load_graph
from gpuexec.importer.versions import OperatorVersions, list_forms
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import find_operator, qualified, upgrades_for
from tests.importer.test_sparse import make_sparse

# Attributes that a newest form need not have: hints that never changed a result, and bodies, which are read apart.
_HINTS = {"consumed_inputs"}


def list_old() -> list[tuple[str, int]]:
    """Return every form that is not the newest of its operator, by name and version."""
    return [
        (form.name, version)
        for form in list_forms().values()
        for version in form.versions[:-1]
        if form.name != "Constant"  # which the importer reads by itself
    ]


def find(name: str, version: int) -> Any:
    domain, _, bare = name.rpartition(".")
    return defs.get_schema(bare, version, domain)


@pytest.mark.parametrize(("name", "version"), list_old())
def test_old_form_is_upgraded_or_like_the_newest(name: str, version: int) -> None:
    found = find_operator(name)
    if found is None:
        return  # expanded by its body, another form, or not there: `test_every_operator_of_onnx_is_there` tells
    old, newest = find(name, version), find(name, list_forms()[name].versions[-1])
    if upgrades_for(name, version):
        return
    known = {field.name for field in fields(found)} | _HINTS | set(BODIES.get(name, ()))
    assert set(old.attributes) <= known, f"{name}-{version} has attributes that no upgrade takes"
    assert [i.name.lower() for i in old.inputs] == [i.name.lower() for i in newest.inputs][: len(old.inputs)] or len(
        old.inputs
    ) <= len(newest.inputs)


@pytest.mark.parametrize("form", list_forms().values(), ids=lambda form: form.name)
def test_every_operator_of_onnx_is_there(form: OperatorVersions) -> None:
    last = form.versions[-2] if form.is_deprecated and len(form.versions) > 1 else form.versions[-1]
    is_there = find_operator(form.name) is not None or bool(upgrades_for(form.name, last)) or form.has_body
    assert is_there, f"{form.name} is neither registered, nor another form of what is, nor a function"


def test_attributes_of_a_default_mean_the_same_in_all_versions() -> None:
    """A default that changed between versions needs an upgrade that writes the old one down."""
    lacking = []
    for name, version in list_old():
        found = find_operator(name)
        if found is None:
            continue
        old, newest = find(name, version), find(name, list_forms()[name].versions[-1])
        for key, attribute in old.attributes.items():
            after = newest.attributes.get(key)
            if after is None or attribute.default_value == after.default_value or not attribute.default_value.name:
                continue
            names = tuple(f"x{i}" for i in range(max(1, old.min_input)))
            node = RawNode(name, "", "n", names, ("y",), {}, version)
            for upgrade in upgrades_for(name, version):
                node = upgrade(node)
            if key not in node.attributes:
                lacking.append(f"{name}-{version}: {key}")
    assert lacking == []


@pytest.mark.parametrize("version", list_forms()["Constant"].versions)
def test_every_attribute_of_a_constant_is_read(version: int) -> None:
    given: dict[str, Any] = {
        "value": helper.make_tensor("v", TensorProto.FLOAT, [2], [1.0, 2.0]),
        "sparse_value": make_sparse([2.0], [1], [2]),
        "value_float": 1.5,
        "value_floats": [1.5, 2.0],
        "value_int": 3,
        "value_ints": [3, 4],
        "value_string": "a",
        "value_strings": ["a", "b"],
    }
    for name in find("Constant", version).attributes:
        node = helper.make_node("Constant", [], ["y"], **{name: given[name]})
        graph = helper.make_graph([node], "g", [], [helper.make_empty_tensor_value_info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)])
        (array,) = load_graph(model).graph.constants.values()
        assert array.size == (1 if name in ("value_float", "value_int", "value_string") else 2)


def test_names_are_qualified() -> None:
    assert qualified("Abs") in list_forms() and "ai.onnx.ml.Scaler" in list_forms()
    assert list_forms()["Abs"].versions == (1, 6, 13)
    assert "bfloat16" in list_forms()["Abs"].types and "sequence" in list_forms()["SequenceAt"].types
