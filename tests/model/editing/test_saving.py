"""Saving of models as ONNX: files that load back, that ONNX's checker accepts and other engines run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.importer import save, to_model
from gpuexec.ir.graph_json import encode_graph
from gpuexec.ir.graphs import Graph
from gpuexec.passes.add_random_key import find_keys
from tests.model.control_models import MODELS
from tests.model.editing.test_choosing import CHOOSES, run
from tests.model.small_models import affine, expect_affine, gated, make_model, ramp, two_layers
from tests.model.state_models import cache, running_sum
from tests.system.models.folder import load_model, needs_models, read_case, read_manifest

Array = np.ndarray[Any, Any]
X = ramp(2, 3)


def run_elsewhere(path: Path, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def test_an_edited_model_is_saved(tmp_path: Path, backend: Backend) -> None:
    edited = affine().append(affine()).rename({"x": "image"}).expose("relu")
    edited.save(tmp_path / "edited.onnx")
    onnx.checker.check_model(tmp_path / "edited.onnx", full_check=True)
    expected = run(edited, X, backend)
    again = gx.load(tmp_path / "edited.onnx")
    assert [str(port) for port in again.outputs] == [str(port) for port in edited.outputs]
    for name, got in run(again, X, backend).items():
        np.testing.assert_array_equal(got, expected[name])
    for got, array in zip(run_elsewhere(tmp_path / "edited.onnx", {"image": X}), expected.values(), strict=True):
        np.testing.assert_array_equal(got, array)


def test_a_program_is_built_from_an_edited_model(tmp_path: Path, backend: Backend) -> None:
    edited = affine().append(affine()).bind({"n": (1, 4)})
    gx.Program.build({"forward": edited}).save(tmp_path / "edited.gxp")
    with gx.Program.load(tmp_path / "edited.gxp").load_method("forward", backend=backend) as method:
        method.set_input(0, X)
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), expect_affine(expect_affine(X)))


def test_the_file_of_the_source_is_not_touched(tmp_path: Path) -> None:
    affine().save(tmp_path / "a.onnx")
    before = (tmp_path / "a.onnx").read_bytes()
    model = gx.load(tmp_path / "a.onnx")
    model.expose("a").with_weights({"two": np.float32(3)}).save(tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == before
    assert [port.name for port in model.outputs] == ["y"]


def test_a_model_takes_the_place_of_its_own_file(tmp_path: Path, backend: Backend) -> None:
    path = tmp_path / "m.onnx"
    wide = np.arange(4096, dtype=np.float32)
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (4096,)}, {"y": (4096,)}, w=wide)
    model.save(path, external_data=True)
    gx.load(path).with_weights({"w": 2 * wide}).save(path, external_data=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    np.testing.assert_array_equal(run(gx.load(path), np.ones(4096, np.float32), backend)["y"], 2 * wide)


@pytest.mark.parametrize("external", [None, True, "weights.bin"])
def test_weights_lie_inside_or_beside(external: bool | str | None, tmp_path: Path) -> None:
    wide = np.arange(4096, dtype=np.float32)
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "one"], ["y"])]
    model = make_model(nodes, {"x": (4096,)}, {"y": (4096,)}, w=wide, one=np.array(1, np.float32))
    path = tmp_path / "m.onnx"
    model.save(path, external_data=external)
    names = {None: [], True: ["m.onnx.data"], "weights.bin": ["weights.bin"]}[external]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["m.onnx", *names])
    assert (path.stat().st_size > 16384) == (external is None)
    onnx.checker.check_model(path)
    np.testing.assert_array_equal(run_elsewhere(path, {"x": np.ones(4096, np.float32)})[0], wide + 1)


def test_weights_that_do_not_fit_go_beside_unless_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = np.ones(4096, np.float32)
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (4096,)}, {"y": (4096,)}, w=wide)
    monkeypatch.setattr(save, "_LARGEST_INSIDE_BYTES", wide.nbytes - 1)
    with pytest.raises(gx.InputError, match="16384 bytes of weights, more than one file"):
        model.save(tmp_path / "m.onnx", external_data=False)
    assert list(tmp_path.iterdir()) == []
    model.save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == wide.nbytes


@pytest.mark.parametrize("name", sorted(MODELS))
def test_bodies_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    model = gx.load(MODELS[name].parse())
    model.save(tmp_path / "m.onnx")
    assert list_operators(gx.load(tmp_path / "m.onnx").graph) == list_operators(model.graph)


def test_fixed_dimensions_are_written_as_extents(tmp_path: Path) -> None:
    affine().bind({"n": 2}).save(tmp_path / "m.onnx")
    assert [str(port) for port in gx.load(tmp_path / "m.onnx").inputs] == ["x: float32[2,3]"]


def test_memories_are_written_as_inputs_and_outputs(tmp_path: Path, backend: Backend) -> None:
    running_sum().save(tmp_path / "sum.onnx")
    cache().bind_state({"present": "past"}, capacity=4).save(tmp_path / "cache.onnx")
    assert [port.name for port in gx.load(tmp_path / "cache.onnx").outputs] == ["y", "present", "before"]
    again = gx.load(tmp_path / "sum.onnx").bind_state({"total": "held"})
    with gx.Worker(again, backend=backend) as worker:
        worker.run(X)
        np.testing.assert_array_equal(worker.run(X)[0], 4 * X)


def test_layers_given_memories_are_saved_with_them(tmp_path: Path) -> None:
    shape = {"x": (4, 1, 3)}
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: rng.standard_normal((1, 8, 3 if name == "w" else 2)).astype(np.float32) for name in ("w", "r")
    }
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="lstm", hidden_size=2)
    bare = make_model([node], shape, {"y": (4, 1, 1, 2)}, **weights)
    bare.save(tmp_path / "bare.onnx")
    model = gx.load(tmp_path / "bare.onnx", memories="implicit")
    named = model.rename({"x": "frame"})
    assert [(each.input, each.shape) for each in named.memories] == [
        (each.input, each.shape) for each in model.memories
    ]
    named.save(tmp_path / "m.onnx")
    assert [port.name for port in gx.load(tmp_path / "m.onnx").inputs] == ["frame", "lstm.initial_h", "lstm.initial_c"]


def test_a_layer_that_a_pass_took_out_of_a_branch_keeps_its_memory(backend: Backend) -> None:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {
        name: rng.standard_normal((1, 8, 3 if name == "w" else 2)).astype(np.float32) for name in ("w", "r")
    }
    layer = helper.make_node("LSTM", ["x", "w", "r"], ["inner"], name="lstm", hidden_size=2)
    bodies = {
        f"{key}_branch": helper.make_graph([node], key, [], [helper.make_tensor_value_info("inner", 1, None)])
        for key, node in (("then", layer), ("else", helper.make_node("Identity", ["w"], ["inner"], name="other")))
    }
    nodes = [helper.make_node("If", ["yes"], ["y"], name="if", **bodies)]
    bare = make_model(nodes, {"x": (4, 1, 3)}, {"y": (4, 1, 1, 2)}, yes=np.array(True), **weights)
    model = gx.load(to_model(bare.info.graph), memories="implicit")
    assert len(model.memories) == 2
    named = model.rename({"y": "answer"})
    assert named.memories == model.memories
    x = ramp(4, 1, 3)
    with gx.Worker(model, backend=backend) as one, gx.Worker(named, backend=backend) as two:
        for _ in range(2):
            np.testing.assert_array_equal(two.run(x)[0], one.run(x)[0])


def test_the_opset_is_the_first_that_has_all_operators(tmp_path: Path) -> None:
    text = "(float[2, 3] x, int64 a) => (float[2, 3] y) { y = CumProd (x, a) }"
    model = gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 26]> agraph {text}'))
    affine().save(tmp_path / "old.onnx")
    model.save(tmp_path / "new.onnx")
    assert [gx.load(tmp_path / name).info.opset for name in ("old.onnx", "new.onnx")] == [24, 26]
    onnx.checker.check_model(tmp_path / "new.onnx", full_check=True)


def test_what_ours_alone_defines_runs_elsewhere_and_comes_back(tmp_path: Path) -> None:
    text = """<ir_version: 3, opset_import: ["": 6]> agraph (float[2, 3, 4] x, float[3] b) => (float[2, 3, 4] y) {
      y = Add <axis = 1, broadcast = 1> (x, b)
    }"""
    model = gx.load(parser.parse_model(text))
    model.save(tmp_path / "m.onnx")
    onnx.checker.check_model(tmp_path / "m.onnx")
    x, b = ramp(2, 3, 4), ramp(3)
    np.testing.assert_array_equal(run_elsewhere(tmp_path / "m.onnx", {"x": x, "b": b})[0], x + b[:, None])
    again = gx.load(tmp_path / "m.onnx")
    assert list_operators(again.graph) == list_operators(model.graph) == ["gpuexec.AlignAxes", "Add"]


def test_operators_of_others_are_refused_by_name_unless_allowed(tmp_path: Path) -> None:
    model, _ = gated()
    with pytest.raises(gx.InputError, match=r"operators that ONNX does not define: gpuexec\.test\.Gate \('gate'\)"):
        model.save(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
    model.save(tmp_path / "m.onnx", allow_custom=True)
    assert list_operators(gx.load(tmp_path / "m.onnx").graph) == ["gpuexec.test.Gate", "Add"]


@pytest.mark.parametrize("name", ["sub/w.bin", "..", "m.onnx"])
def test_weights_can_not_lie_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(gx.InputError, match=r"expected the name of a file beside 'm\.onnx'"):
        two_layers().save(tmp_path / "m.onnx", external_data=name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_can_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").mkdir()
    with pytest.raises(gx.AccessError, match=r"m\.onnx can't be written: it is no regular file"):
        two_layers().save(tmp_path / "m.onnx", external_data=True)
    with pytest.raises(gx.InputError, match="Expected a path"):
        two_layers().save(3)  # type: ignore[arg-type]
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


def test_weights_lie_beside_a_link_where_a_model_read_by_it_finds_them(tmp_path: Path) -> None:
    wide = np.arange(4096, dtype=np.float32)
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"x": (4096,)}, {"y": (4096,)}, w=wide)
    (tmp_path / "store").mkdir()
    (tmp_path / "link.onnx").symlink_to(tmp_path / "store" / "m.onnx")
    model.save(tmp_path / "link.onnx", external_data=True)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.onnx", "link.onnx.data", "store"]
    ((_, got),) = gx.load(tmp_path / "link.onnx").graph.constants.items()
    np.testing.assert_array_equal(got, wide)


def test_a_branch_may_be_joined_twice(tmp_path: Path, backend: Backend) -> None:
    model = gx.load(parser.parse_model(CHOOSES))
    twice = model.append(model, {"y": "x"})
    twice.save(tmp_path / "m.onnx")
    for made in (twice, gx.load(tmp_path / "m.onnx")):
        inputs = {port.name: np.array(True) for port in made.inputs[1:]} | {"x": np.array([-1, 2], np.float32)}
        ((_, got),) = run(made, inputs, backend).items()
        assert got.tolist() == [0, 0]


def list_operators(graph: Graph) -> list[str]:
    return [node.operator.name for node in graph.nodes]


def are_alike(first: Graph, second: Graph) -> bool:
    """Return whether two graphs have the same nodes in the same order over the same weights, whatever the names."""
    arrays: tuple[list[Array], list[Array]] = ([], [])
    rows = []
    for graph, kept in zip((first, second), arrays, strict=True):
        data = encode_graph(graph, lambda array, _, kept=kept: kept.append(array) or len(kept))  # type: ignore[misc]
        rows.append((data["inputs"], data["outputs"], [node[1:] for node in data["nodes"]]))
    return rows[0] == rows[1] and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


@needs_models
@pytest.mark.parametrize("model", sorted(read_manifest()))
def test_models_come_back_and_give_the_same(model: str, tmp_path: Path) -> None:
    try:
        first = load_model(model)
    except gx.UnsupportedError:
        pytest.skip("It has operators that are not supported yet.")
    path = tmp_path / "m.onnx"
    first.save(path, external_data=True)
    again = gx.load(path)
    assert [str(port) for port in (*again.inputs, *again.outputs)] == [
        str(port) for port in (*first.inputs, *first.outputs)
    ]
    if all(port.spec.dims is not None for port in (*first.inputs, *first.outputs)):
        onnx.checker.check_model(path)
    if are_alike(first.graph, again.graph):
        return  # what computes the same from the same weights need not be run
    inputs = read_case(read_manifest()[model]["cases"][0]).inputs
    answers = []
    for each in (first, again):
        with gx.Worker(each, backend=gx.BackendType.CPU, seed=1 if find_keys(each.graph) else None) as worker:
            answers.append([tensor.readback_and_clone() for tensor in worker.schedule(inputs).outputs.values()])
    for got, expected in zip(answers[1], answers[0], strict=True):
        np.testing.assert_array_equal(got, expected)
