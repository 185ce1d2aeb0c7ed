"""Model editing: composition, baked-in pre- and post-processing, weights from other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from safetensors.numpy import save_file

import gpuexec as gx
from gpuexec.compat import executorch
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, make_model, ramp, two_layers

X = ramp(2, 3)


@pytest.mark.feature("S72")
def test_models_are_composed_and_their_parts_stay(backend: Backend) -> None:
    first, second = affine(), affine()
    both = first.append(second)
    expected = {first: expect_affine(X), second: expect_affine(X), both: expect_affine(expect_affine(X))}
    for model, array in expected.items():
        with gx.Worker(model, backend=backend) as worker:
            np.testing.assert_array_equal(worker.run(X)[0], array)


@pytest.mark.feature("S73")
def test_processing_before_and_after_is_part_of_the_model(backend: Backend, tmp_path: Path) -> None:
    pixels = [
        helper.make_node("Cast", ["image"], ["raw"], name="cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Sub", ["raw", "mean"], ["ready"], name="center"),
    ]
    infos = [
        helper.make_tensor_value_info("image", onnx.TensorProto.UINT8, ("n", 3)),
        helper.make_tensor_value_info("ready", onnx.TensorProto.FLOAT, ("n", 3)),
    ]
    mean = onnx.numpy_helper.from_array(np.array(4, np.float32), "mean")
    graph = helper.make_graph(pixels, "pixels", infos[:1], infos[1:], [mean])
    before = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    after = make_model(
        [helper.make_node("ReduceMax", ["y"], ["best"], name="best", keepdims=0)], {"y": ("n", 3)}, {"best": ()}
    )
    baked = affine().prepend(before).append(after)
    assert [str(port) for port in (*baked.inputs, *baked.outputs)] == ["image: uint8[n,3]", "best: float32[]"]
    baked.save(tmp_path / "baked.onnx")
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for model in (baked, gx.load(tmp_path / "baked.onnx")):
        with gx.Worker(model, backend=backend) as worker:
            np.testing.assert_array_equal(worker.run(image)[0], expect_affine(image.astype(np.float32) - 4).max())


@pytest.mark.feature("S5", "B20")
def test_any_value_of_a_loaded_model_is_promoted(backend: Backend) -> None:
    with gx.Worker(affine().expose("double"), backend=backend) as worker:
        y, doubled = worker.run(X)
        np.testing.assert_array_equal(y, expect_affine(X))
        np.testing.assert_array_equal(doubled, 2 * X)


@pytest.mark.feature("B21")
def test_outputs_of_a_loaded_model_are_left_out() -> None:
    kept = affine().keep_outputs(["a"])
    assert [node.name for node in kept.graph.nodes] == ["double"]


@pytest.mark.feature("B9")
def test_what_is_edited_is_saved(tmp_path: Path, backend: Backend) -> None:
    affine().rename({"y": "answer"}).save(tmp_path / "named.onnx")
    onnx.checker.check_model(tmp_path / "named.onnx")
    with gx.Worker(gx.load(tmp_path / "named.onnx"), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(X)[0], expect_affine(X))
        assert worker.peek_output("answer").name == "answer"


@pytest.mark.feature("E83")
def test_weights_from_a_file_of_their_own_are_exchanged(backend: Backend, tmp_path: Path) -> None:
    other = {"first": np.full((3, 5), 2, np.float32), "second": np.ones((5, 2), np.float32)}
    save_file(other, tmp_path / "weights.safetensors")
    with gx.Worker(two_layers(), backend=backend) as worker:
        run = worker.schedule(X)
        before = run.outputs["y"].readback_request()
        worker.replace_weights(tmp_path / "weights.safetensors")
        np.testing.assert_array_equal(worker.run()[0], np.maximum(X @ other["first"], 0) @ other["second"])
        np.testing.assert_array_equal(before.result(), np.maximum(X @ ramp(3, 5), 0) @ ramp(5, 2))


@pytest.mark.feature("E83")
def test_several_files_are_one_map_without_double_keys(tmp_path: Path) -> None:
    for name in ("first", "second"):
        save_file({name: ramp(2, 3)}, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / "first.safetensors", tmp_path / "second.safetensors"]
    data = executorch.NamedDataMap.load(*paths)
    assert [data.get_key(index) for index in range(data.get_num_keys())] == ["first", "second"]
    assert str(data.get_tensor_layout("second")) == "float32[2,3]"
    target = np.empty((2, 3), np.float32)
    data.load_data_into("second", target)
    np.testing.assert_array_equal(target, data.get_data("second"))
    with pytest.raises(gx.InputError, match="no 'third' in"):
        data.get_data("third")
    with pytest.raises(IndexError, match="There are 2 keys, from 0; got 2"):
        data.get_key(2)
    with pytest.raises(gx.InputError, match="The key 'first' is in"):
        gx.NamedDataMap.load(*paths, paths[0])


@pytest.mark.feature("E83")
def test_a_program_goes_on_with_other_weights(backend: Backend, tmp_path: Path) -> None:
    gx.Program.build({"forward": two_layers()}, shapes={"forward": {"x": (2, 3)}}).save(tmp_path / "model.gxp")
    program = gx.Program.load(tmp_path / "model.gxp", backend=backend)
    other = {"first": np.full((3, 5), 2, np.float32)}
    expected = np.maximum(X @ other["first"], 0) @ ramp(5, 2)
    with program.load_method("forward") as method, program.with_weights(other).load_method("forward") as changed:
        method.set_input(0, X)
        method.execute()
        np.testing.assert_array_equal(
            method.get_output(0).readback_and_clone(), np.maximum(X @ ramp(3, 5), 0) @ ramp(5, 2)
        )
        method.replace_weights(other)
        for each in (method, changed):
            each.set_input(0, X)
            each.execute()
            np.testing.assert_array_equal(each.get_output(0).readback_and_clone(), expected)
