"""Strings, sequences and optionals in runs: kept on the host, with everything else on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.execution.runs.input_binding import count_host_bytes
from gpuexec.execution.runs.inputs import HostArray
from gpuexec.ir.spec import STRING, TensorSpec
from tests.model.objects import BACKENDS, INPUTS, MIXED, ONE, TWO, WORDS, are_equal, check_everywhere, parse, run_on


def test_mixed_model_gives_what_its_nodes_say() -> None:
    check_everywhere(
        MIXED,
        INPUTS,
        [
            [ONE * 2, np.array([0, 4, 6], np.float32)],
            np.array([2, 2, 0, 4, 6], np.float32),
            np.append(WORDS, "more"),
            np.array([0, 2, 3], np.float32),
        ],
    )


def test_textures_know_no_host_objects_either() -> None:
    found = run_on(gx.BackendType.SIMULATOR_PIXEL, MIXED, INPUTS)
    assert are_equal(found, run_on(gx.BackendType.CPU, MIXED, INPUTS))


@pytest.mark.parametrize("backend", BACKENDS)
def test_host_objects_are_host_calls_with_their_reason(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        found = {row.operator: row.why for row in worker.report().host_calls}
    own = "sequences and optionals are containers on the host"
    assert found == {
        **dict.fromkeys(("SequenceInsert", "ConcatFromSequence", "Optional"), own),
        "Concat": "host object",
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_plan_holds_a_host_object(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        specs = [port.spec for plan in worker.plans for port in (*plan.inputs, *plan.outputs)]
        constants = [buffer.name for plan in worker.plans for buffer in plan.buffers]
    assert specs and not any(spec.dtype.hasobject for spec in specs)
    assert "more" not in constants


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_strings_need_no_other_plan(backend: gx.BackendType) -> None:
    model = gx.load(
        parse(
            """(string[k] w, float[2] x) => (float[2] y, string[1] z) <int64[1] i = {0}, int64[1] o = {1}> {
              y = Exp (x) z = Slice (w, i, o) }"""
        )
    )
    with gx.Worker(model, backend=backend) as worker:
        for words in (["a"], ["b"], ["c", "d"], ["a"]):
            assert worker.run({"w": words, "x": ONE})[1].tolist() == words[:1]
        assert worker.report().plans == 1


def test_a_memory_of_strings_is_refused() -> None:
    model = gx.load(parse("(string[k] w) => (string[k] v) { v = Identity (w) }"))
    with pytest.raises(gx.InputError, match=r"Memory 'w' .* a memory lies on the device"):
        model.bind_state({"v": "w"})


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_a_container_names_its_node_and_ends_the_run_alone(backend: gx.BackendType) -> None:
    model = gx.load(parse("(seq(float[]) s, int64 p) => (float[k] y) { y = SequenceAt (s, p) }"))
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(gx.InputError, match=r"SequenceAt 'SequenceAt_0': SequenceAt: position 2 is outside"):
            worker.run({"s": [ONE], "p": np.int64(2)})
        assert are_equal(worker.run({"s": [ONE], "p": np.int64(-1)})[0], ONE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strict_refuses_host_objects_by_name(backend: gx.BackendType) -> None:
    with (
        gx.Worker(gx.load(MIXED), backend=backend, strict=True) as worker,
        pytest.raises(gx.ImplicitSyncError, match="SequenceInsert 'SequenceInsert_1'"),
    ):
        worker.schedule(INPUTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_of_a_worker_take_host_objects(backend: gx.BackendType) -> None:
    model, wanted = gx.load(MIXED), run_on(backend, MIXED, INPUTS)
    modes: tuple[dict[str, Any], ...] = (
        {"synchronous": True},
        {"compare_with": gx.BackendType.CPU},
        {"watch": "raise"},
        {"max_bytes": 1 << 20},
        {"frames": 1},
        {"profiler": gx.Profiler()},
    )
    for options in modes:
        with gx.Worker(model, backend=backend, **options) as worker:
            assert are_equal(worker.run(INPUTS), wanted), options


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tap_of_a_host_object_reports_nothing_and_others_go_on(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.tap({"q": ["max"], "v": ["max"], "c": ["max"]})
        run = worker.schedule(INPUTS)
        run.wait()
        assert [each.max for each in run.inspection.history("c")] == [6.0]
        for name in ("q", "v"):
            with pytest.raises(gx.InputError, match=f"no tapped value '{name}'"):
                run.inspection.history(name)


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_show_host_objects_as_layers(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        names = {name for step in worker.schedule_iterable(INPUTS) for name in step.nodes}
        assert {"SequenceInsert_1", "Concat_4", "ConcatFromSequence_3"} <= names
        assert are_equal(worker.read_output("v"), np.append(WORDS, "more"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_prepare_takes_host_objects_or_nothing_for_them(backend: gx.BackendType) -> None:
    model = gx.load(parse("(string[k] w, float[n] x) => (string[k] v, float[n] y) { v = Identity (w) y = Exp (x) }"))
    with gx.Worker(model, backend=backend) as worker:
        assert worker.prepare({"w": (2,), "x": TWO}) is not None
        assert worker.prepare({"w": ["a", "b"], "x": TWO}) is not None
        worker.run({"w": ["a", "b"], "x": TWO})
        assert worker.report().plans == 1


def test_saved_model_keeps_strings_types_and_bodies(tmp_path: Any) -> None:
    path = tmp_path / "saved.onnx"
    gx.load(MIXED).save(path, external_data=True)
    saved = onnx.load(path)
    onnx.checker.check_model(saved, full_check=True)
    again = gx.load(path)
    assert [str(port.spec) for port in (*again.inputs, *again.outputs)] == [
        str(port.spec) for port in (*gx.load(MIXED).inputs, *gx.load(MIXED).outputs)
    ]
    assert are_equal(run_on(gx.BackendType.CPU, again, INPUTS), run_on(gx.BackendType.CPU, MIXED, INPUTS))


def test_saved_empty_optional_keeps_its_type(tmp_path: Any) -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    graph = helper.make_graph(
        [helper.make_node("Optional", [], ["o"], type=kind)],
        "g",
        [],
        [helper.make_value_info("o", helper.make_optional_type_proto(kind))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    gx.load(model).save(tmp_path / "saved.onnx")
    (node,) = onnx.load(tmp_path / "saved.onnx").graph.node
    assert node.attribute[0].tp == kind
    for backend in BACKENDS:
        assert run_on(backend, gx.load(tmp_path / "saved.onnx"), {}) == [None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_strings_of_the_model_are_replaced(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(MIXED), backend=backend) as worker:
        worker.run(INPUTS)
        for given in (np.array(["x"]), ["x"], np.array([b"x"]), np.array(["x"], object)):
            worker.replace_weights({"more": given})
            assert worker.run()[2].tolist() == [*WORDS, "x"]
        with pytest.raises(gx.InputError, match=r"'more' is string\[1\], got float64\[1\]"):
            worker.replace_weights({"more": [1.0]})
        with pytest.raises(gx.InputError, match="Weight 'more': expected strings, got an element of type int"):
            worker.replace_weights({"more": np.array([1], object)})
        assert worker.run()[2].tolist() == [*WORDS, "x"]


def test_host_objects_take_no_memory_of_a_device() -> None:
    spec = TensorSpec((1000,), STRING)
    assert count_host_bytes({"w": HostArray(spec, np.full(1000, "a", object))}) == 0


def test_strings_are_folded_and_containers_are_not(tmp_path: Any) -> None:
    model = gx.load(
        parse(
            """(int64 p) => (string[k] y) <string[2] a = {"a", "b"}, int64[1] axis = {0}> {
              b = Concat <axis = 0> (a, a)
              s = SequenceConstruct (a, b)
              y = SequenceAt (s, p)
            }"""
        )
    )
    assert [node.operator.name for node in model.graph.nodes] == ["SequenceConstruct", "SequenceAt"]
    assert ["a", "b", "a", "b"] in [array.tolist() for array in model.graph.constants.values()]
    gx.Program.build({"forward": model}).save(tmp_path / "a.gxp")
    for backend in BACKENDS:
        with gx.Program.load(tmp_path / "a.gxp").load_method("forward", backend=backend) as method:
            method.execute({"p": np.int64(1)})
            assert method.get_output(0).readback_and_clone().tolist() == ["a", "b", "a", "b"]
