"""Random state through models, programs and passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.ir.graphs import check
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.add_random_key import add_random_key, find_keys, without_keys
from gpuexec.program.cases import Case
from tests.execution.state.drawing import CPU, X, draw, draw_all, load


def test_what_chance_makes_is_neither_folded_nor_merged() -> None:
    text = (
        "() => (float[2] a, float[2] b, float[2] c, float[2] d) {"
        " a = RandomNormal <shape = [2], seed = 1.0> () b = RandomNormal <shape = [2], seed = 1.0> ()"
        " p = Constant <value = float[2] {0.5, 0.5}> () c = Bernoulli (p)"
        " t = Constant <value = bool {1}> () d = Dropout (p, , t) }"
    )
    names = [node.operator.name for node in load(text).graph.nodes]
    assert sorted(names) == ["Bernoulli", "Dropout", "RandomNormal", "RandomNormal", "gpuexec.NextKey"]


def test_dropout_of_inference_needs_no_key() -> None:
    text = (
        "(float[n] x) => (float[n] y, bool[n] m) { f = Constant <value = bool {0}> ()"
        " r = Constant <value = float {0.5}> () y, m = Dropout (x, r, f) }"
    )
    assert not load(text).memories


def test_keys_are_added_once_and_taken_out_whole() -> None:
    model = load()
    again, pair = add_random_key(model.graph)
    assert pair is None and again is model.graph
    bare = without_keys(model.graph)
    check(bare)
    assert [value.name for value in (*bare.inputs, *bare.outputs)] == ["x", "a", "b"]
    assert [len(node.inputs) for node in bare.nodes] == [1, 1] and not find_keys(bare)
    keyed, _ = add_random_key(bare)
    assert [node.operator for node in keyed.nodes] == [node.operator for node in model.graph.nodes]
    assert without_keys(bare) is bare
    run_passes(model.graph, AT_LOAD)


def test_model_is_saved_without_keys_and_gets_them_again(tmp_path: Any) -> None:
    model = load()
    model.save(tmp_path / "noise.onnx")
    assert [node.op_type for node in onnx.load(tmp_path / "noise.onnx").graph.node] == ["RandomUniformLike"] * 2
    again = gx.load(tmp_path / "noise.onnx")
    assert draw_all(again, 2, backend=CPU, seed=2) == draw_all(model, 2, backend=CPU, seed=2)


def test_joined_models_draw_from_one_key_apart() -> None:
    first = load("(float[n] x) => (float[n] y) { y = RandomUniformLike (x) }")
    second = load("(float[n] y) => (float[n] z) { u = RandomUniformLike (y) z = Sub (y, u) }")
    joined = second.prepend(first)
    assert len(find_keys(joined.graph)) == len(joined.memories) == 1
    with gx.Worker(joined, backend=CPU, seed=2) as worker:
        assert np.all(draw(worker)[0] != 0)


def test_program_file_keeps_what_its_methods_draw_from(tmp_path: Any) -> None:
    model = load("(float[8] x) => (float[8] a) { a = RandomUniformLike (x) }")
    gx.Program.build({"forward": model}).save(tmp_path / "noise.gxp")
    program = gx.Program.load(tmp_path / "noise.gxp")
    gx.set_seed(6)
    with program.load_method("forward", backend=CPU) as method:
        runs = []
        for _ in range(3):
            method.set_input(0, X)
            method.execute()
            runs.append(np.array(method.get_output(0)))
    assert len(np.unique(np.concatenate(runs))) == 24
    gx.set_seed(6)
    assert [run.tobytes() for run in runs] == draw_all(model, 3, backend=CPU)


def test_cases_of_a_program_are_verified_with_the_seed_they_were_made_with(tmp_path: Any) -> None:
    model = load("(float[8] x) => (float[8] a) { a = RandomUniformLike (x) }")
    gx.Program.build({"forward": model}, cases={"forward": [Case({"x": X})]}).save(tmp_path / "noise.gxp")
    assert main(["verify", str(tmp_path / "noise.gxp"), "--backend", "cpu"]) == 0
