"""Pickling: models with all edits, and errors that say what to send instead."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from safetensors.numpy import save_file

import gpuexec as gx
from gpuexec.devices.backend import open_backend
from gpuexec.system import mapped
from gpuexec.system.pickling import pack, unpack
from tests.model.objects import are_equal, parse
from tests.model.small_models import CPU, affine, make_model, ramp, two_layers
from tests.model.staged_models import MODELS, inputs
from tests.model.state_models import cache, recurrent, running_sum

Array = np.ndarray[Any, Any]
X = ramp(2, 3)
COMPLEX = (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128)
SIDE = 64
WEIGHT = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
STEP, SEQUENCE = np.ones((2, 1, 3), np.float32), np.ones((2, 2, 5), np.float32)
ROWS = np.linspace(-1, 1, 2 * SIDE, dtype=np.float32).reshape(2, SIDE)


def again(model: gx.Model) -> gx.Model:
    made = pickle.loads(pickle.dumps(model))
    assert isinstance(made, gx.Model)
    return made


def run(model: gx.Model, feeds: list[Any]) -> list[gx.Outputs]:
    """Return the outputs of runs, one after another."""
    with gx.Worker(model, backend=CPU, seed=7) as worker:
        return [worker.run(feed) for feed in feeds]


WORDS = parse("(string[n] w) => (string[n] v, seq(string[n]) s) { v = Identity (w) s = SequenceConstruct (w, v) }")
RANDOM = parse("(float[n] x) => (float[n] y) { r = RandomNormalLike (x) y = Add (x, r) }")
PARTS: dict[str, tuple[Callable[[], gx.Model], list[Any]]] = {
    "plain": (affine, [X, ramp(5, 3)]),
    "dims": (lambda: affine().bind({"n": (1, 8)}), [X, ramp(8, 3)]),
    "passes": (
        lambda: gx.load(MODELS["if"].parse(), disabled_passes=["fuse_epilogues", "fold_constants"]),
        [inputs(0)],
    ),
    "outputs": (lambda: two_layers().expose("b").rename({"y": "z"}), [X]),
    "joined": (lambda: affine().append(gx.graph(lambda x: x * 2, {"x": ("float32", ("n", 3))})), [X]),
    "memory": (running_sum, [X, X, X]),
    "memory with room": (
        lambda: cache().bind_state({"present": "past"}, capacity=16),
        [STEP] * 4,
    ),
    "implicit memories": (lambda: gx.load(recurrent(), memories="implicit"), [SEQUENCE] * 2),
    "random": (lambda: gx.load(RANDOM), [np.zeros(4, np.float32)] * 3),
    "strings": (lambda: gx.load(WORDS), [{"w": ["a", "b"]}, {"w": []}]),
    "compressed": (lambda: load_product().compress_weights("int8"), [ROWS]),
    "exchanged": (lambda: load_product().with_weights({"w": 2 * WEIGHT}), [ROWS]),
    "branches": (MODELS["if"].load, [inputs(0), inputs(1)]),
    "loop": (MODELS["loop"].load, [inputs(0)]),
    "own operator": (MODELS["host call"].load, [inputs(0)]),
}


def load_product() -> gx.Model:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return make_model([node], {"x": ("n", SIDE)}, {"y": ("n", SIDE)}, w=WEIGHT)


@pytest.mark.parametrize("name", PARTS)
def test_a_model_of_a_pickle_is_that_model(name: str, tmp_path: Path) -> None:
    make, feeds = PARTS[name]
    model = make()
    made = again(model)
    assert repr(made) == repr(model) and made.memories == model.memories and made.ports == model.ports
    assert (made.dims, made.disabled_passes) == (model.dims, model.disabled_passes)
    for got, wanted in zip(run(made, feeds), run(model, feeds), strict=True):
        assert got.names == wanted.names and are_equal(list(got), list(wanted))
    for number, each in enumerate((model, made)):
        each.save(tmp_path / f"{number}.onnx", allow_custom=True)
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()


def test_a_model_of_a_pickle_is_edited_and_pickled_on() -> None:
    made = again(again(again(two_layers()).expose("b")).rename({"b": "inner"}))
    assert [port.name for port in made.outputs] == ["y", "inner"]
    wanted = run(two_layers().expose("b"), [X])[0]
    np.testing.assert_array_equal(run(made, [X])[0]["inner"], wanted["b"])


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda model: copy.deepcopy([model])[0]])
def test_a_copy_of_a_model_runs(copied: Callable[[gx.Model], gx.Model]) -> None:
    model = load_product().bind({"n": 2})
    made = copied(model)
    assert made is not model and vars(made) == vars(model)
    with gx.Worker(model, backend=CPU) as one, gx.Worker(made, backend=CPU) as other:
        np.testing.assert_array_equal(other.run(ROWS)[0], one.run(ROWS)[0])


@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_a_model_in_use_goes_without_what_lies_on_devices(backend: str) -> None:
    with gx.Worker(load_product(), backend=backend) as worker:
        expected = worker.run(ROWS)[0]
        made = again(worker.model)
        assert worker.model._slabs and not made._slabs
        np.testing.assert_array_equal(worker.run(ROWS)[0], expected)
    with gx.Worker(made, backend=backend) as other:
        np.testing.assert_array_equal(other.run(ROWS)[0], expected)


def test_a_model_of_a_program_goes_without_what_was_compiled() -> None:
    program = gx.Program.build({"forward": affine()}, shapes={"forward": {"x": [2, 3]}}, backend=CPU)
    model = program.contents.methods["forward"].model
    assert model._plans and not again(model)._plans
    np.testing.assert_array_equal(run(again(model), [X])[0][0], run(affine(), [X])[0][0])


def test_pickles_are_of_one_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.model.model.VERSION", "0.0.9")
    packed = pickle.dumps(affine())
    monkeypatch.undo()
    with pytest.raises(gx.ModelError, match=r"pickled by gpuexec 0\.0\.9, this is .*Model\.save"):
        pickle.loads(packed)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The file beside a model that its weight is in."""
    load_product().save(tmp_path / "m.onnx", external_data="w.bin")
    return tmp_path / "w.bin"


def load_beside(path: Path) -> gx.Model:
    return gx.load(path.parent / "m.onnx")


def weights_of(model: gx.Model) -> list[Array]:
    return [array for graph in (model.info.graph, model.graph) for array in graph.constants.values()]


def test_weights_of_the_models_own_file_come_along_once(tmp_path: Path) -> None:
    load_product().save(tmp_path / "m.onnx", external_data=False)
    model = gx.load(tmp_path / "m.onnx")
    packed = pickle.dumps(model)
    (tmp_path / "m.onnx").unlink()
    assert WEIGHT.nbytes < len(packed) < 2 * WEIGHT.nbytes
    np.testing.assert_array_equal(run(pickle.loads(packed), [ROWS])[0][0], run(model, [ROWS])[0][0])


def test_weights_in_files_go_by_path(beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_beside(beside)
    monkeypatch.chdir(beside.parent)
    packed = pickle.dumps(gx.load("m.onnx"))
    monkeypatch.chdir("/")
    assert len(packed) < WEIGHT.nbytes and str(beside).encode() in packed
    made = pickle.loads(packed)
    assert all(mapped.find_source(array) is not None for array in weights_of(made) if array.nbytes == WEIGHT.nbytes)
    assert len({id(array) for array in weights_of(made)}) == len({id(array) for array in weights_of(model)})
    np.testing.assert_array_equal(run(made, [ROWS])[0][0], run(model, [ROWS])[0][0])


def test_weights_of_programs_and_of_files_of_arrays_go_by_path_too(tmp_path: Path) -> None:
    program, arrays = tmp_path / "m.gxp", tmp_path / "w.safetensors"
    gx.Program.build({"forward": load_product()}, shapes={"forward": {"x": [2, SIDE]}}, backend=CPU).save(program)
    save_file({"w": 2 * WEIGHT}, arrays)
    loaded = gx.Program.load(program, backend=CPU)
    models = {program: loaded.contents.methods["forward"].model, arrays: load_product().with_weights(arrays)}
    for path, model in models.items():
        packed = pickle.dumps(model)
        assert len(packed) < WEIGHT.nbytes and str(path).encode() in packed
        np.testing.assert_array_equal(run(pickle.loads(packed), [ROWS])[0][0], run(model, [ROWS])[0][0])


def test_views_of_weights_in_files_stay_views(beside: Path) -> None:
    view = next(iter(load_beside(beside).info.graph.constants.values())).reshape(SIDE, SIDE)
    for array in (view, view.T, view[3:, ::-2], np.broadcast_to(view[1:2], (4, SIDE)), view[:0]):
        got = unpack(*pack([array, array]))
        assert got[0] is got[1] and mapped.find_source(got[0]) is not None
        assert (got[0].dtype, got[0].strides, got[0].flags.writeable) == (array.dtype, array.strides, False)
        np.testing.assert_array_equal(got[0], array)


def write_again(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(1, 1))


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


@pytest.mark.parametrize(
    ("change", "before", "after"),
    [
        (write_again, "changed since the model was loaded", "w.bin changed since .* pickled"),
        (lambda path: os.truncate(path, 8), "changed since the model was loaded", "w.bin changed since .* pickled"),
        (replace, r"no longer where .* Model\.save", "w.bin changed since .* pickled"),
        (Path.unlink, r"no longer where .* Model\.save", r"no file .*w\.bin.* send them along"),
    ],
    ids=["written to", "cut", "replaced", "gone"],
)
def test_weights_that_changed_are_refused_on_both_sides(
    change: Callable[[Path], None], before: str, after: str, beside: Path
) -> None:
    model = load_beside(beside)
    packed = pickle.dumps(model)
    change(beside)
    with pytest.raises(gx.AccessError, match=after):
        pickle.loads(packed)
    with pytest.raises(gx.AccessError, match=before):
        pickle.dumps(model)


def test_tensors_of_all_types_come_along() -> None:
    for code in onnx.TensorProto.DataType.values():
        if code in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, *COMPLEX):
            continue
        array = np.arange(2).astype(helper.tensor_dtype_to_np_dtype(code))
        graph = helper.make_graph(
            [helper.make_node("Identity", ["c"], ["y"])],
            "g",
            [],
            [helper.make_tensor_value_info("y", code, (2,))],
            [onnx.numpy_helper.from_array(array, "c")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
        (got,) = run(again(gx.load(model)), [{}])[0]
        assert got.dtype == array.dtype and got.tobytes() == array.tobytes(), code


def run_there(model: gx.Model, feed: Array) -> tuple[int, gx.Outputs]:
    with gx.Worker(model, backend=CPU) as worker:
        return os.getpid(), worker.run(feed)


def test_a_spawned_process_runs_models_and_sends_outputs_back(beside: Path) -> None:
    models, feeds = (affine(), load_beside(beside), running_sum()), (X, ROWS, X)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        answers = pool.starmap(run_there, zip(models, feeds, strict=True))
    for (process, got), model, feed in zip(answers, models, feeds, strict=True):
        assert process != os.getpid() and type(got) is gx.Outputs
        np.testing.assert_array_equal(got["y"], run(model, [feed])[0]["y"])


@pytest.fixture(scope="module")
def held() -> Iterator[dict[str, object]]:
    """Objects that hold memory or streams, by class."""
    program = gx.Program.build({"forward": affine()}, shapes={"forward": {"x": [2, 3]}}, backend=CPU)
    with (
        gx.Worker(running_sum(), backend=CPU) as worker,
        gx.Worker(affine(), backend=gx.BackendType.SIMULATOR) as recorder,
        recorder.record(X) as replay,
        program.load_method("forward") as method,
        gx.Module(program) as module,
        gx.ImageConverter(CPU) as converter,
    ):
        made = worker.schedule(X)
        tensor = made.peek_output()
        yield {
            type(item).__name__: item
            for item in (
                *(worker, made, tensor, tensor.readback_request(), worker.state, worker.state.snapshot(), replay),
                *(method, module, program, converter, gx.DeviceAllocator(CPU), open_backend(CPU)),
                gx.HierarchicalAllocator([np.zeros(64, np.uint8)]),
            )
        }


CURES = {
    "Worker": r"Send its model, and make a Worker",
    "Run": r"Send arrays: peek_output\(name\)\.readback_and_clone",
    "Tensor": r"Send an array: readback_and_clone\(\)",
    "ReadbackRequest": r"Send the array: result\(\)",
    "State": r"State\.save",
    "Snapshot": r"State\.save",
    "Replay": r"Send the Worker's model, and record anew",
    "Method": r"Program\.save",
    "Module": r"Send what it was made of",
    "Program": r"Program\.save",
    "ImageConverter": r"Make one there",
    "DeviceAllocator": r"Make one there",
    "HierarchicalAllocator": r"Make one there",
    "Backend": r"Send its type",
}


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
@pytest.mark.parametrize("name", CURES)
def test_what_holds_a_device_says_what_to_send(name: str, way: Any, held: dict[str, Any]) -> None:
    for given in (held[name], {"inside": [held[name]]})[: 1 if way is copy.copy else 2]:
        with pytest.raises(gx.InputError, match=rf"No {name} can be pickled or copied.*{CURES[name]}"):
            way(given)


def test_what_was_refused_goes_on(held: dict[str, Any]) -> None:
    before = held["Worker"].state.get()
    for each in held.values():
        with pytest.raises(gx.InputError):
            pickle.dumps(each)
    np.testing.assert_array_equal(held["Worker"].run(X)["y"], 2 * (before + X))
    np.testing.assert_array_equal(held["Replay"].submit(X)["y"].readback_and_clone(), run(affine(), [X])[0][0])
