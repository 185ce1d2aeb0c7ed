"""The operator registry, and host values required by operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import helper

from gpuexec.errors import InputError, NeedsHostValue, UnsupportedError
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import (
    Operator,
    build,
    describe,
    find_operator,
    operator,
    operator_names,
    qualified,
    suggest_name,
    upgrade,
    upgrades_for,
)
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.loading import load


@operator("Plain", "test")
@dataclass(frozen=True, slots=True)
class Plain(Operator):
    axis: int
    pads: tuple[int, ...] = (0, 0)
    mode: str = "edge"


def test_operator_is_built_from_name_and_attributes_and_described_as_them() -> None:
    made = build("test.Plain", {"axis": 1, "pads": [1, 2]})
    assert made == Plain(1, (1, 2))
    assert hash(made) == hash(Plain(1, (1, 2)))
    assert describe(made) == ("test.Plain", (("axis", 1), ("pads", (1, 2))))
    assert build(*map_describe(made)) == made
    assert describe(Plain(0)) == ("test.Plain", (("axis", 0),))


def map_describe(made: Operator) -> tuple[str, dict[str, object]]:
    name, attributes = describe(made)
    return name, dict(attributes)


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("test.Nope", {}, "'test.Nope' is not registered"),
        ("test.Plain", {"axis": 1, "axes": 2}, "no attribute axes; it has axis, mode, pads"),
        ("test.Plain", {"mode": "x"}, "lacks its required attribute axis"),
    ],
)
def test_operator_that_can_not_be_built_is_refused(name: str, attributes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, attributes)


def test_names_are_qualified_by_domain() -> None:
    assert qualified("Add") == qualified("Add", "ai.onnx") == "Add"
    assert qualified("Add", "com.me") == "com.me.Add"
    assert find_operator("test.Plain") is Plain and find_operator("Plain") is None
    assert "test.Plain" in operator_names() and list(operator_names()) == sorted(operator_names())


def test_upgrades_that_fit_come_oldest_first() -> None:
    @upgrade("test.Old", below=13)
    def to_13(raw: RawNode) -> RawNode:
        return raw.with_attributes(thirteen=1)

    @upgrade("test.Old", below=9)
    def to_9(raw: RawNode) -> RawNode:
        return raw.with_attributes(nine=1)

    assert upgrades_for("test.Old", 7) == (to_9, to_13)
    assert upgrades_for("test.Old", 9) == (to_13,)
    assert upgrades_for("test.Old", 13) == upgrades_for("test.Other", 1) == ()


def test_content_is_returned_and_the_read_put_down() -> None:
    reads: list[str] = []
    spec = TensorSpec((2,), np.dtype(np.int64)).with_value(np.array([3, 4]), lambda role, _: reads.append(role))
    assert list(require_const(spec, "axes", 1)) == [3, 4]
    assert reads == ["axes"]
    assert list(require_const(TensorSpec.of(np.array([5])), "axes")) == [5]


@pytest.mark.parametrize("spec", [None, TensorSpec((2,), np.dtype(np.int64))])
def test_content_that_is_not_there_is_asked_for_by_role_and_position(spec: TensorSpec | None) -> None:
    with pytest.raises(NeedsHostValue, match=r"input 1 \(axes\)") as caught:
        require_const(spec, "axes", 1)
    assert (caught.value.index, caught.value.role) == (1, "axes")


def test_operator_without_infer_or_compute_says_so() -> None:
    for method in ("infer", "compute"):
        with pytest.raises(TypeError, match=f"Plain lacks {method}"):
            getattr(Plain(0), method)()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Convv", "Did you mean 'Conv' of ai.onnx?"),
        ("relu", "Did you mean 'Relu' of ai.onnx?"),
        ("FusedMatmul", "Did you mean 'com.microsoft.FusedMatMul' of com.microsoft?"),
        ("FusedMatMul", "Did you mean 'com.microsoft.FusedMatMul' of com.microsoft?"),
        ("com.microsoft.Softmax", "Did you mean 'Softmax' of ai.onnx?"),
        ("ai.onnx.ml.LabelEncodr", "Did you mean 'ai.onnx.ml.LabelEncoder' of ai.onnx.ml?"),
        ("com.example.Nothing", ""),
    ],
)
def test_nearest_names_are_suggested_other_domains_too(name: str, sentence: str) -> None:
    assert suggest_name(name) == sentence


def test_unknown_operator_says_what_is_near_and_how_to_add_one() -> None:
    node = helper.make_node("Convv", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, None)])
    graph.input.append(helper.make_tensor_value_info("x", 1, ["n"]))
    with pytest.raises(UnsupportedError) as caught:
        load(helper.make_model(graph))
    text = str(caught.value)
    assert "operator Convv: 1 (Convv_0)\n    Did you mean 'Conv' of ai.onnx?" in text and "examples/snake.py" in text
    with pytest.raises(InputError, match=r"not registered\. Did you mean 'Conv' of ai\.onnx"):
        build("Convv", {})
