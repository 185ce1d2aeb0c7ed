"""Packed weights on devices: packed once, shared, counted, replaced, read from files, and in saved programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.resources import upload as uploading
from gpuexec.execution.resources.weights import weights_of
from gpuexec.ir import weight_forms
from gpuexec.ir.plan import Role
from gpuexec.ir.weight_forms import PackedForm
from gpuexec.system.mapped import find_source
from tests.execution.replay.replaying import read
from tests.execution.weights.packed_models import SHAPE, recalling, weight
from tests.model.small_models import DOMAIN, make_model, make_tracer, ramp

X = ramp(3)
W = weight()
PADDED = SHAPE[0] * 48 * 4  # rows of 40 filled up to 48


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the forms that weights were packed in, in order."""
    names: list[str] = []
    pack = PackedForm.pack

    def note(self: PackedForm, array: Any) -> Any:
        names.append(str(self))
        return pack(self, array)

    monkeypatch.setattr(PackedForm, "pack", note)
    return names


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType.SIMULATOR)


def check(worker: gx.Worker, expected: Any = W) -> None:
    for output in worker.run(X):
        np.testing.assert_array_equal(output, expected)


def test_every_device_gives_the_weight(backend: Backend) -> None:
    with gx.Worker(recalling(W, 0, 48), backend=backend) as worker:
        check(worker)


def test_the_pixel_device_packs_nothing(packed: list[str]) -> None:
    with gx.Worker(recalling(W), backend="simulator_pixel") as worker:
        check(worker)
    assert packed == []


def test_workers_of_a_model_share_one_packed_weight(simulator: Backend, packed: list[str]) -> None:
    model = recalling(W)
    with gx.Worker(model, backend=simulator) as one, gx.Worker(model, backend=simulator) as two:
        for worker in (one, two):
            check(worker)
            assert worker.memory_stats()["weights"] == W.nbytes
        assert packed == ["columns_first()"]
    assert weights_of(model, simulator).nbytes == 0


def test_each_form_has_bytes_of_its_own(simulator: Backend, packed: list[str]) -> None:
    with gx.Worker(recalling(W, 0, 48, 48, 0), backend=simulator) as worker:
        check(worker)
        assert worker.memory_stats()["weights"] == W.nbytes + PADDED
    assert sorted(packed) == ["columns_first()", "test_padded_rows(48)"]


@pytest.mark.parametrize(("also", "held"), [("Neg", 2 * W.nbytes), ("Recall", W.nbytes)])
def test_a_weight_is_there_unpacked_only_where_it_is_read_so(also: str, held: int, simulator: Backend) -> None:
    nodes = [helper.make_node("Recall", ["x", "w"], ["y"], domain=DOMAIN)]
    if also == "Neg":
        nodes.append(helper.make_node("Add", ["w", "x"], ["z"]))
    else:
        nodes.append(helper.make_node("Recall", ["x", "w"], ["z"], domain=DOMAIN))
    model = make_model(nodes, {"x": (1,)}, {"y": SHAPE, "z": SHAPE}, w=W)
    with gx.Worker(model, backend=simulator) as worker:
        one = np.ones(1, np.float32)
        results = worker.run(one)
        np.testing.assert_array_equal(results[0], W)
        np.testing.assert_array_equal(results[1], W + one if also == "Neg" else W)
        assert worker.memory_stats()["weights"] == held


def test_a_transposed_weight_is_packed_as_it_looks(simulator: Backend, packed: list[str]) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("Recall", ["x", "t"], ["y"], domain=DOMAIN),
    ]
    with gx.Worker(make_model(nodes, {"x": ("n",)}, {"y": SHAPE[::-1]}, w=W), backend=simulator) as worker:
        check(worker, W.T)
    assert packed == ["columns_first()"]


def test_what_is_computed_is_not_packed(backend: Backend, packed: list[str]) -> None:
    nodes = [
        helper.make_node("Add", ["w", "x"], ["a"]),
        helper.make_node("Recall", ["x", "a"], ["y"], domain=DOMAIN),
    ]
    with gx.Worker(make_model(nodes, {"x": (1,)}, {"y": SHAPE}, w=W), backend=backend) as worker:
        np.testing.assert_array_equal(worker.run(np.ones(1, np.float32))[0], W + 1)
    assert packed == []


def test_the_recording_device_holds_the_packed_bytes() -> None:
    with gx.Worker(recalling(W, 48), backend=make_tracer()) as worker:
        worker.prepare(X)
        assert worker.memory_stats()["weights"] == PADDED


@pytest.mark.parametrize("shape", [SHAPE, (2, 3)])  # small weights are known by their content
def test_replaced_weights_are_packed_anew(shape: tuple[int, ...], simulator: Backend, packed: list[str]) -> None:
    model = recalling(ramp(*shape), 0, 48)
    with gx.Worker(model, backend=simulator) as worker:
        check(worker, ramp(*shape))
        held = worker.memory_stats()["weights"]
        for factor in (2, 3):
            worker.replace_weights({"w": factor * ramp(*shape)})
            check(worker, factor * ramp(*shape))
        assert worker.memory_stats()["weights"] == held
    assert len(packed) == 6 and set(packed) == {"columns_first()", "test_padded_rows(48)"}


def test_a_replacement_counts_the_packed_bytes(simulator: Backend) -> None:
    with gx.Worker(recalling(W, 48), backend=simulator, frames=1) as worker:
        check(worker)
        needed = sum(worker.memory_stats()[name] for name in ("arena", "weights", "frames"))
    with gx.Worker(recalling(W, 48), backend=simulator, frames=1, max_bytes=needed + PADDED - 1) as worker:
        check(worker)
        with pytest.raises(gx.OutOfMemoryError, match=f"no room for {PADDED} bytes more"):
            worker.replace_weights({"w": 2 * W})
        check(worker)


def test_a_limit_counts_the_packed_bytes(simulator: Backend) -> None:
    needed = 1 + W.nbytes + 256 + PADDED  # arena, output, input, weight
    with gx.Worker(recalling(W, 48), backend=simulator, frames=1, max_bytes=needed) as worker:
        check(worker)
    with (
        gx.Worker(recalling(W, 48), backend=simulator, frames=1, max_bytes=needed - 1) as worker,
        pytest.raises(gx.OutOfMemoryError, match=f"needs {needed} bytes .* weights {PADDED}"),
    ):
        worker.run(X)


def test_progress_counts_the_packed_bytes(simulator: Backend) -> None:
    seen: list[gx.Progress] = []
    with gx.Worker(recalling(W, 0, 48), backend=simulator, progress=seen.append) as worker:
        check(worker)
    assert seen[-1].done_nbytes == seen[-1].total_nbytes == W.nbytes + PADDED


def test_a_weight_in_a_file_is_packed_from_there(
    tmp_path: Path, simulator: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = ramp(300, 200)
    model = load_from_file(recalling(wide), tmp_path)
    assert all(find_source(array) is not None for array in model.graph.constants.values())
    monkeypatch.setattr(weight_forms, "_BLOCK_NBYTES", 60_000)
    monkeypatch.setattr(uploading, "BLOCK_NBYTES", 50_000)
    with gx.Worker(model, backend=simulator) as worker:
        check(worker, wide)


def test_a_weight_whose_file_changed_is_named(tmp_path: Path, simulator: Backend) -> None:
    model = load_from_file(recalling(ramp(300, 200)), tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(10))
    with gx.Worker(model, backend=simulator) as worker, pytest.raises(gx.AccessError, match=r"Weight %w: .*w\.bin"):
        worker.run(X)


def test_a_saved_program_names_the_form_and_keeps_the_weight(
    tmp_path: Path, simulator: Backend, packed: list[str]
) -> None:
    path = tmp_path / "packed.gxp"
    models, shapes = {"forward": recalling(W, 40)}, {"forward": {"x": (3,)}}
    gx.Program.build(models, shapes=shapes, architectures=["sm_90"]).save(path)
    program = gx.Program.load(path, backend=simulator)
    (stored,) = program.contents.methods["forward"].plans[simulator.device.target.name]
    (buffer,) = [each for each in stored.buffers if each.role is Role.CONSTANT]
    assert buffer.name == "w" and str(buffer.form) == "test_padded_rows(40)"
    (array,) = program.contents.methods["forward"].model.graph.constants.values()
    np.testing.assert_array_equal(array, W)
    with program.load_method("forward") as method:
        method.set_input(0, X)
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), W)
        method.replace_weights({"w": 2 * W})
        method.execute()
        np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), 2 * W)
    assert packed == ["test_padded_rows(40)"] * 2


def test_a_replay_keeps_the_packed_weight_it_was_recorded_with(simulator: Backend) -> None:
    with gx.Worker(recalling(W), backend=simulator) as worker, worker.record(X) as replay:
        worker.replace_weights({"w": 2 * W})
        check(worker, 2 * W)
        np.testing.assert_array_equal(read(replay.submit(X), "y0"), W)


def load_from_file(model: gx.Model, folder: Path) -> gx.Model:
    """Return the model with its weight in a file beside it."""
    model.save(folder / "model.onnx", external_data="w.bin", allow_custom=True)
    return gx.load(folder / "model.onnx")
