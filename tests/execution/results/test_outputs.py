"""Outputs by position and by name: one type for one output and for several."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.model.objects import parse
from tests.model.small_models import affine, expect_affine, ramp, two_inputs

CPU = gx.BackendType.CPU
X = ramp(2, 3)
PAIR = gx.Outputs({"sum": 3, "difference": 1})


def build(model: gx.Model) -> gx.Program:
    rows = {port.name: [2, 3] for port in model.inputs if port.spec.dims == ("n", 3)}
    return gx.Program.build({"forward": model}, shapes={"forward": rows}, backend=CPU)


def run_by_worker(model: gx.Model, *arrays: Any) -> gx.Outputs:
    with gx.Worker(model, backend=CPU) as worker:
        return worker.run(list(arrays))


def run_by_module(model: gx.Model, *arrays: Any) -> gx.Outputs:
    with gx.Module(build(model), backend=CPU) as module:
        return module.forward(*arrays)


WAYS = pytest.mark.parametrize("run", [run_by_worker, run_by_module], ids=["worker", "module"])


@WAYS
def test_rows_of_a_single_output_are_not_unpacked(run: Callable[..., gx.Outputs]) -> None:
    outputs = run(affine(), X)
    with pytest.raises(ValueError, match="not enough values"):
        _, _ = outputs
    (y,) = outputs
    np.testing.assert_array_equal(y, expect_affine(X))


@WAYS
def test_outputs_have_positions_and_names(run: Callable[..., gx.Outputs]) -> None:
    outputs = run(two_inputs(), 3 * X, X)
    total, difference = outputs
    assert type(outputs) is gx.Outputs and outputs.names == ("sum", "difference")
    for got, wanted in ((total, 4 * X), (outputs["sum"], 4 * X), (outputs[1], 2 * X), (difference, 2 * X)):
        np.testing.assert_array_equal(got, wanted)


@WAYS
def test_host_objects_stand_as_they_are(run: Callable[..., gx.Outputs]) -> None:
    text = """(float[2] x, string[1] w) => (seq(float[]) s, optional(float[2]) o, string[1] v) {
        s = SequenceConstruct (x, x)
        o = Optional <type = float[2]> ()
        v = Identity (w)
    }"""
    outputs = run(gx.load(parse(text)), X[0, :2], ["word"])
    assert isinstance(outputs["s"], list) and len(outputs["s"]) == 2
    assert outputs["o"] is None and outputs["v"].tolist() == ["word"]


def test_tensors_of_a_method_are_outputs_too() -> None:
    with build(two_inputs()).load_method("forward") as method:
        method.execute([X, X])
        tensors = method.get_outputs()
        assert type(tensors) is gx.Outputs and tensors.names == ("sum", "difference")
        np.testing.assert_array_equal(tensors["sum"].readback_and_clone(), 2 * X)


def test_a_model_in_a_program_gives_outputs() -> None:
    inner, found = affine(), list[Any]()

    def function(x: Any) -> Any:
        found.append(gx.fn.forward(inner, x))
        return found[0]["y"]

    model = gx.graph(function, inner)
    assert type(found[0]) is gx.Outputs and found[0].names == ("y",)
    np.testing.assert_array_equal(run_by_worker(model, X)[0], expect_affine(X))


def test_outputs_are_a_tuple_and_a_mapping_of_names() -> None:
    assert PAIR == (3, 1) and len(PAIR) == 2 and PAIR[-1] == 1 and PAIR[:1] == (3,)
    assert dict(PAIR) == {"sum": 3, "difference": 1} == dict(PAIR.items())
    assert list(PAIR.keys()) == ["sum", "difference"]
    assert repr(PAIR) == "Outputs({'sum': 3, 'difference': 1})"


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        ("product", KeyError, "no output 'product'; there are sum, difference"),
        (2, IndexError, "no output 2; there are 2: sum, difference"),
        (-3, IndexError, "no output -3; there are 2"),
    ],
)
def test_an_output_that_is_not_there_is_answered_by_those_that_are(key: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        PAIR[key]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_are_outputs_with_their_names(again: Callable[[gx.Outputs], gx.Outputs]) -> None:
    made = again(gx.Outputs({"y": X, "z": [X, None]}))
    assert type(made) is gx.Outputs and made.names == ("y", "z")
    np.testing.assert_array_equal(made["y"], X)
    np.testing.assert_array_equal(made[1][0], X)
