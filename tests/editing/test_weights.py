"""Other content for weights, by name: in models, in Workers between runs, in methods and programs."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.importer import to_model
from gpuexec.runtime.backend import Backend, open_backend
from tests.editing.test_choosing import FUSED
from tests.small_models import GATES, affine, hold, make_model, ramp, two_layers
from tests.state_models import cache, running_sum

X = ramp(2, 3)
FIRST, SECOND = ramp(3, 5), ramp(5, 2)
OTHER = np.full((3, 5), 2, np.float32)
IN_BODY = """<ir_version: 10, opset_import: ["": 18]> agraph (float[2] x, bool c) => (float[2] y) {
  y = If (c) <then_branch = t () => (float[2] p) <float[2] w = {1, 2}> { p = Add (x, w) },
              else_branch = e () => (float[2] q) <float[2] v = {3, 4}> { q = Add (x, v) }>
}"""


LOOPS = """<ir_version: 10, opset_import: ["": 18]> agraph (float[2] x, int64 n) => (float[2] y) {
  y = Loop (n, , x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] s) <float[2] w = {1, 2}> {
    on = Identity (go) s = Add (v, w)
  }>
}"""


def expect(first: Any, second: Any = SECOND) -> Any:
    return np.maximum(X @ first, 0) @ second


def sloping(alpha: float) -> gx.Model:
    """Return two layers with a slope between them."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], name="first"),
        helper.make_node("LeakyRelu", ["a"], ["b"], name="relu", alpha=alpha),
        helper.make_node("MatMul", ["b", "second"], ["y"], name="second"),
    ]
    return make_model(nodes, {"x": (2, 3)}, {"y": (2, 2)}, first=FIRST, second=SECOND)


def scaled() -> gx.Model:
    """Return a model that multiplies rows by one weight, ``wide``: 4096 ones."""
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    return make_model(nodes, {"x": ("n", 4096)}, {"y": ("n", 4096)}, wide=np.ones(4096, np.float32))


def test_a_model_with_other_weights_leaves_the_first_as_it_was(backend: Backend) -> None:
    model = two_layers()
    changed = model.with_weights({"first": OTHER})
    with gx.Worker(model, backend=backend) as old, gx.Worker(changed, backend=backend) as new:
        np.testing.assert_array_equal(old.run(X), expect(FIRST))
        np.testing.assert_array_equal(new.run(X), expect(OTHER))


def test_weights_that_stay_lie_on_the_device_once(backend: Backend) -> None:
    wide = np.ones((3, 4096), np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["a"]), helper.make_node("Add", ["a", "bias"], ["y"])]
    shape = (3, 4096)
    model = make_model(nodes, {"x": shape}, {"y": shape}, wide=wide, bias=wide)
    with (
        gx.Worker(model, backend=backend) as old,
        gx.Worker(model.with_weights({"bias": 2 * wide}), backend=backend) as new,
    ):
        old.run(wide)
        before = old.memory_stats()["weights"]
        np.testing.assert_array_equal(new.run(wide), 3 * wide)
        assert new.memory_stats()["weights"] == before + wide.nbytes


def test_weights_that_are_replaced_go_from_the_device(backend: Backend) -> None:
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    model = make_model(nodes, {"x": ("n", 4096)}, {"y": ("n", 4096)}, wide=np.ones(4096, np.float32))
    x = np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(x)
        before = worker.memory_stats()["weights"]
        for factor in (2, 3, 4):
            worker.replace_weights({"wide": np.full(4096, factor, np.float32)})
            np.testing.assert_array_equal(worker.run(x), factor * x)
        assert worker.memory_stats()["weights"] == before == 4 * 4096


def test_a_limit_on_memory_holds_for_the_moment_both_are_there(backend: Backend) -> None:
    wide = np.ones(4096, np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["a"]), helper.make_node("ReduceSum", ["a"], ["y"], keepdims=0)]
    model = make_model(nodes, {"x": (4096,)}, {"y": ()}, wide=wide)
    with gx.Worker(model, backend=backend, max_bytes=6 * wide.nbytes) as worker:
        for factor in (2, 3, 4):
            worker.replace_weights({"wide": factor * wide})
            assert worker.run(wide) == factor * 4096
    with gx.Worker(model, backend=backend, frames=1) as worker:
        worker.run(wide)
        needed = sum(worker.memory_stats()[name] for name in ("arena", "weights", "frames"))
    with gx.Worker(model, backend=backend, frames=1, max_bytes=needed + wide.nbytes - 1) as worker:
        assert worker.run(wide) == 4096
        with pytest.raises(gx.OutOfMemoryError, match="no room for 16384 bytes more"):
            worker.replace_weights({"wide": 2 * wide})
        assert worker.run(wide) == 4096


def test_what_is_worked_out_as_before_lies_on_the_device_once() -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("Gemm", ["x", "turned", "b"], ["y"]),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 2)}, w=ramp(2, 3), b=ramp(2))
    changed = model.with_weights({"b": ramp(2) + 1})
    old, new = ({value.name: array for value, array in each.graph.constants.items()} for each in (model, changed))
    assert new["turned"] is old["turned"]
    assert new["b"] is not old["b"]


def test_what_was_worked_out_from_weights_is_worked_out_anew(backend: Backend) -> None:
    model = gx.load(parser.parse_model(FUSED))
    x = ramp(1, 1, 3, 3)
    with gx.Worker(model, backend=backend) as worker:
        plain = np.asarray(worker.run(x))
        worker.replace_weights({"s": np.array([4], np.float32)})
        assert [node.operator.name for node in worker.model.graph.nodes] == ["Conv"]
        np.testing.assert_allclose(worker.run(x), 2 * (plain - 1) + 1, rtol=1e-5)


def test_a_worker_goes_on_with_other_weights(backend: Backend) -> None:
    model = two_layers()
    with gx.Worker(model, backend=backend) as worker:
        for _ in range(2):
            worker.run(X)
        before = worker.memory_stats()
        del before["pinned"]  # of all on the device, whatever they do
        for factor in (2, 3):
            worker.replace_weights({"first": factor * FIRST, "second": factor * SECOND})
            np.testing.assert_array_equal(worker.run(), expect(factor * FIRST, factor * SECOND))
        report = worker.report()
        assert (report.plans, report.plans_restored, report.plans_refused, report.host_syncs) == (3, 2, (), ())
        after = worker.memory_stats()
        assert {name: after[name] for name in before} == before
    assert model.with_weights({"first": OTHER}).graph.nodes[0].name == "first"


def test_a_run_under_way_keeps_its_weights_and_nothing_waits(backend: Backend) -> None:
    wide = np.ones(4096, np.float32)
    nodes = [helper.make_node("Mul", ["x", "wide"], ["y"])]
    model = make_model(nodes, {"x": (4096,)}, {"y": (4096,)}, wide=wide)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(wide)
        go = hold(worker._engine.stream)
        request = worker.schedule(wide).outputs["y"].readback_request()
        worker.replace_weights({"wide": 2 * wide})
        after = worker.schedule(wide).outputs["y"].readback_request()
        assert not request.is_done()
        go.set()
        np.testing.assert_array_equal(request.result(), wide)
        np.testing.assert_array_equal(after.result(), 2 * wide)


def test_a_run_that_is_not_issued_yet_is_waited_for_and_that_is_counted(backend: Backend) -> None:
    number = GATES.new()
    nodes = [
        helper.make_node("Gate", ["x"], ["a"], name="gate", domain="gpuexec.test", number=number),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="after"),
    ]
    model = make_model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, w=np.eye(3, dtype=np.float32))
    with gx.Worker(model, backend=backend) as worker:
        run = worker.schedule(X)
        GATES.entered[number].wait()
        has_to_wait = backend.device.target.has_kernels  # the gate is computed between two plans then
        if has_to_wait:
            with gx.no_implicit_sync(), pytest.raises(gx.ImplicitSyncError, match="weights are replaced"):
                worker.replace_weights({"w": 2 * np.eye(3, dtype=np.float32)})
            GATES.open[number].set()
        worker.replace_weights({"w": 2 * np.eye(3, dtype=np.float32)})
        GATES.open[number].set()
        np.testing.assert_array_equal(run.outputs["y"].readback_and_clone(), X)
        np.testing.assert_array_equal(worker.run(X), 2 * X)


def test_state_and_inputs_stay(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as worker:
        worker.run(X)
        worker.replace_weights({"two": np.float32(5)})
        np.testing.assert_array_equal(worker.run(), 5 * (X + X))


def test_layers_given_memories_go_on_from_them(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: rng.standard_normal((1, 8, 3 if name == "w" else 2)).astype(np.float32) for name in ("w", "r")
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=2)
    bare = to_model(make_model([node], {"x": (4, 1, 3)}, {"y": (4, 1, 1, 2)}, **weights).graph)
    x = ramp(4, 1, 3)
    with gx.Worker(gx.load(bare, memories="implicit"), backend=backend) as worker:
        worker.run(x)
        held = {name: worker.state.get(name) for name in ("lstm.initial_h", "lstm.initial_c")}
        worker.replace_weights({"r": weights["r"] / 2})
        got = worker.run(x)
    with gx.Worker(gx.load(bare, memories="implicit").with_weights({"r": weights["r"] / 2}), backend=backend) as worker:
        worker.state.set(held)
        np.testing.assert_array_equal(worker.run(x), got)


def test_what_is_drawn_goes_on(backend: Backend) -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["drawn"], name="draw"),
        helper.make_node("Mul", ["drawn", "w"], ["y"], name="scale"),
    ]
    model = make_model(nodes, {"x": (2, 3)}, {"y": (2, 3)}, w=np.ones(3, np.float32))
    with gx.Worker(model, backend=backend, seed=3) as plain, gx.Worker(model, backend=backend, seed=3) as changed:
        np.testing.assert_array_equal(plain.run(X), changed.run(X))
        changed.replace_weights({"w": np.full(3, 2, np.float32)})
        np.testing.assert_array_equal(2 * np.asarray(plain.run(X)), changed.run(X))


def test_a_cache_goes_on_growing(backend: Backend) -> None:
    model = cache().bind_state({"present": "past"}, capacity=4)
    x = np.ones((2, 1, 3), np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run(x)
        worker.replace_weights({"two": np.float32(3)})
        np.testing.assert_array_equal(worker.schedule(x).outputs["y"].readback_and_clone(), np.full((2, 3), 2 + 3))


def test_weights_in_bodies_are_replaced(backend: Backend) -> None:
    model = gx.load(parser.parse_model(IN_BODY))
    x = np.zeros(2, np.float32)
    with gx.Worker(model, backend=backend) as worker:
        worker.run({"x": x, "c": np.array(False)})
        worker.replace_weights({"v": np.array([7, 8], np.float32)})
        assert np.asarray(worker.run({"x": x, "c": np.array(False)})).tolist() == [7, 8]
        assert np.asarray(worker.run({"x": x, "c": np.array(True)})).tolist() == [1, 2]


def test_plans_of_shapes_before_are_let_go(backend: Backend) -> None:
    text = "(float[2, 9] x) => (float[2, n] y) <int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {1}>"
    model = gx.load(
        parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 18]> agraph {text} {{ z = Slice (x, s, e, a) y = Neg (z) }}'
        )
    )
    x = ramp(2, 9)
    with gx.Worker(model, backend=backend) as worker:
        for first in range(1, 9):
            worker.replace_weights({"s": np.array([first])})
            np.testing.assert_array_equal(worker.run(x), -x[:, first:])
            site = worker._engine.site
            assert len(site.model.plans[backend.device.target.name]) <= 1
        assert len(worker.report().plans_refused) <= 8


def test_bodies_of_weights_before_are_let_go(backend: Backend) -> None:
    with gx.Worker(gx.load(parser.parse_model(LOOPS)), backend=backend) as worker:
        for factor in (1, 2, 3):
            worker.replace_weights({"w": np.full(2, factor, np.float32)})
            assert np.asarray(worker.run({"x": np.zeros(2, np.float32), "n": np.array(4)})).tolist() == [4 * factor] * 2
            assert len(worker._engine.site.bodies) == 1


def test_workers_share_a_model_with_other_weights(backend: Backend) -> None:
    model = two_layers()
    changed = model.with_weights({"first": OTHER})
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as two:
        one.run(X)
        two.run(X)
        before = two.memory_stats()["weights"]
        one.replace_weights(changed)
        assert two.memory_stats()["weights"] == before + OTHER.nbytes
        np.testing.assert_array_equal(two.run(X), expect(FIRST))
        two.replace_weights(changed)
        for worker in (one, two):
            np.testing.assert_array_equal(worker.run(X), expect(OTHER))


def test_weights_that_no_worker_of_a_model_has_any_more_go(backend: Backend) -> None:
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one, gx.Worker(model, backend=backend) as two:
        one.run(x)
        for factor in (2, 3, 4):
            changed = model.with_weights({"wide": np.full(4096, factor, np.float32)})
            one.replace_weights(changed)
            np.testing.assert_array_equal(two.run(x), (factor - 1) * x)
            two.replace_weights(changed)
            for worker in (one, two):
                np.testing.assert_array_equal(worker.run(x), factor * x)
        assert one.memory_stats()["weights"] == 4 * 4096


@pytest.mark.parametrize("is_closed", [True, False])
@pytest.mark.filterwarnings("ignore:A Worker of:ResourceWarning")
def test_weights_go_with_the_worker_that_had_them(is_closed: bool, backend: Backend) -> None:
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one:
        one.run(x)
        for factor in (2, 3):
            two = gx.Worker(model.with_weights({"wide": np.full(4096, factor, np.float32)}), backend=backend)
            np.testing.assert_array_equal(two.run(x), factor * x)
            assert one.memory_stats()["weights"] == 2 * 4 * 4096
            if is_closed:
                two.close()
            del two
            gc.collect()
            assert one.memory_stats()["weights"] == 4 * 4096
        np.testing.assert_array_equal(one.run(x), x)


@pytest.mark.filterwarnings("ignore:A Worker of:ResourceWarning")
def test_weights_of_a_worker_let_go_of_stay_while_its_run_needs_them() -> None:
    backend = open_backend(gx.BackendType.SIMULATOR)
    model, x = scaled(), np.ones((1, 4096), np.float32)
    with gx.Worker(model, backend=backend) as one:
        one.run(x)
        two = gx.Worker(model.with_weights({"wide": 2 * x[0]}), backend=backend)
        two.prepare(x)
        go = hold(two._engine.stream)
        request = two.schedule(x).outputs["y"].readback_request()
        del two
        gc.collect()
        assert one.memory_stats()["weights"] == 2 * 4 * 4096
        go.set()
        np.testing.assert_array_equal(request.result(), 2 * x)
        assert one.memory_stats()["weights"] == 4 * 4096


def test_weights_of_a_replay_go_with_it(backend: Backend) -> None:
    x = np.ones((1, 4096), np.float32)
    with gx.Worker(scaled(), backend=backend) as worker:
        with worker.record(x) as replay:
            for factor in (2, 3, 4):
                worker.replace_weights({"wide": np.full(4096, factor, np.float32)})
                np.testing.assert_array_equal(worker.run(x), factor * x)
            np.testing.assert_array_equal(replay.submit({"x": x})["y"].readback_and_clone(), x)
            assert worker.memory_stats()["weights"] == 2 * 4 * 4096
        assert worker.memory_stats()["weights"] == 4 * 4096


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_a_compressed_model_goes_on_with_another_one(kind: str, backend: Backend) -> None:
    model = two_layers()
    wanted = model.with_weights({"first": OTHER}).compress_weights(kind)
    with gx.Worker(wanted, backend=backend) as worker:
        expected = worker.run(X)
    with gx.Worker(model.compress_weights(kind), backend=backend) as worker:
        assert not np.array_equal(worker.run(X), expected)
        before = worker.memory_stats()["weights"]
        worker.replace_weights(wanted)
        np.testing.assert_array_equal(worker.run(X), expected)
        assert worker.memory_stats()["weights"] == before


def test_a_model_loaded_anew_gives_its_weights(backend: Backend, tmp_path: Path) -> None:
    model = gx.load(parser.parse_model(IN_BODY))
    model.with_weights({"v": np.array([7, 8], np.float32)}).save(tmp_path / "other.onnx")
    model.save(tmp_path / "first.onnx")
    inputs = {"x": np.zeros(2, np.float32), "c": np.array(False)}
    with gx.Worker(gx.load(tmp_path / "first.onnx"), backend=backend) as worker:
        assert np.asarray(worker.run(inputs)).tolist() == [3, 4]
        worker.replace_weights(gx.load(tmp_path / "other.onnx"))
        assert np.asarray(worker.run(inputs)).tolist() == [7, 8]


def test_a_replay_keeps_the_weights_it_was_recorded_with(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        replay = worker.record(X)
        before = worker.memory_stats()["weights"]
        worker.replace_weights({"first": OTHER})
        assert worker.memory_stats()["weights"] == before + OTHER.nbytes
        np.testing.assert_array_equal(worker.run(X), expect(OTHER))
        np.testing.assert_array_equal(replay.submit({"x": X})["y"].readback_and_clone(), expect(FIRST))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"third": OTHER}, "the model has no weight 'third'. It has first, second"),
        ({"first": OTHER.T}, r"'first' is float32\[3, 5\], got float32\[5, 3\]"),
        ({"first": OTHER, "second": SECOND.astype(np.float64)}, r"'second' is float32\[5, 2\], got float64\[5, 2\]"),
        ({"first": OTHER, "no": SECOND, "second": OTHER}, "no weight 'no'; 'second' is"),
        ({}, "at least one"),
        (OTHER, "arrays by name"),
        (affine(), r"in more than weights: it takes x: float32\[n,3\]"),
        (sloping(2.0).compress_weights("fp16"), r"it computes Cast .*, expected MatMul 'first'"),
        (sloping(3.0), r"it computes LeakyRelu 'relu' \{'alpha': 3.0\} .*, expected LeakyRelu 'relu' \{'alpha': 2.0\}"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(weights: Any, message: str, backend: Backend) -> None:
    with gx.Worker(sloping(2.0), backend=backend) as worker:
        before = worker.run(X)
        with pytest.raises(gx.InputError, match=message):
            worker.replace_weights(weights)
        np.testing.assert_array_equal(worker.run(X), before)


def test_a_name_that_two_bodies_have_is_refused() -> None:
    model = gx.load(parser.parse_model(IN_BODY.replace("v =", "w =").replace("(x, v)", "(x, w)")))
    with pytest.raises(gx.InputError, match="2 bodies have a weight 'w'"):
        model.with_weights({"w": np.zeros(2, np.float32)})


def test_weights_wait_for_a_run_that_is_half_scheduled(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        steps = worker.schedule_iterable(X)
        next(steps)
        with pytest.raises(gx.StateError, match="Run 0 is half scheduled"):
            worker.replace_weights({"first": OTHER})
        assert list(steps)
        np.testing.assert_array_equal(worker.read_output(), expect(FIRST))


def test_the_callers_arrays_are_copied(backend: Backend) -> None:
    mine = OTHER.copy()
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.replace_weights({"first": mine})
        mine[:] = 0
        np.testing.assert_array_equal(worker.run(X), expect(OTHER))


def test_weights_of_another_byte_order_are_taken(backend: Backend) -> None:
    with gx.Worker(two_layers(), backend=backend) as worker:
        worker.replace_weights({"first": OTHER.astype(">f4")})
        np.testing.assert_array_equal(worker.run(X), expect(OTHER))


def test_a_method_goes_on_with_other_weights_in_its_memory(backend: Backend, tmp_path: Path) -> None:
    path = tmp_path / "model.gxp"
    gx.Program.build({"forward": two_layers()}, shapes={"forward": {"x": (2, 3)}}).save(path)
    program = gx.Program.load(path)
    meta = program.method_meta("forward", backend=backend)
    memory = gx.MemoryManager(planned_memory=gx.HierarchicalAllocator(meta.allocate()))
    with program.load_method("forward", memory, backend=backend) as method:
        method.set_input(0, X)
        method.execute()
        method.replace_weights({"first": OTHER})
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(OTHER))
        with pytest.raises(gx.InputError, match="no weight 'third'"):
            method.replace_weights({"third": OTHER})
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(OTHER))


def test_a_program_with_other_weights_is_a_program(backend: Backend, tmp_path: Path) -> None:
    models = {"one": two_layers(), "two": two_layers().rename({"y": "z"}), "three": affine()}
    program = gx.Program.build(models, shapes={"one": {"x": ((1, 4), 3)}})
    assert program.weight_names("one") == ("first", "second")
    changed = program.with_weights({"first": OTHER})
    changed.save(tmp_path / "changed.gxp")
    again = gx.Program.load(tmp_path / "changed.gxp")
    for each, first in ((program, FIRST), (changed, OTHER), (again, OTHER)):
        for name in ("one", "two"):
            with each.load_method(name, backend=backend) as method:
                method.set_input(0, X)
                method.execute()
                np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect(first))
    with pytest.raises(gx.InputError, match="No method has a weight 'third'"):
        program.with_weights({"first": OTHER, "third": OTHER})


def test_bounds_of_a_program_stay(backend: Backend) -> None:
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (None, 3)}, {"y": (None, 3)}, w=ramp(3))
    program = gx.Program.build({"forward": model}, shapes={"forward": {"x": ((1, 4), 3)}}, backend=backend)
    changed = program.with_weights({"w": ramp(3) + 1})
    sizes = [each.method_meta("forward").input_tensor_meta(0).sizes for each in (program, changed)]
    assert [tuple(each) for each in sizes] == [(4, 3)] * 2


def test_a_cache_of_a_program_goes_on_growing(backend: Backend, tmp_path: Path) -> None:
    model = cache().bind_state({"present": "past"}, capacity=4)
    gx.Program.build({"forward": model}, shapes={"forward": {"x": (2, 1, 3)}}).save(tmp_path / "cache.gxp")
    program = gx.Program.load(tmp_path / "cache.gxp", backend=backend).with_weights({"two": np.float32(3)})
    x = np.ones((2, 1, 3), np.float32)
    with program.load_method("forward") as method:
        for count in (1, 2):
            method.set_input("x", x)
            method.execute()
            np.testing.assert_array_equal(method.get_output("y").readback_and_clone(), np.full((2, 3), 3 * count))
