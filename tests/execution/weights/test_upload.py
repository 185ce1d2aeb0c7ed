"""Weight uploads: piecewise, whole or not at all, and from unchanged files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, open_backend
from gpuexec.execution.resources import upload as uploading
from gpuexec.execution.resources.upload import Parcel
from gpuexec.execution.resources.weights import weights_of
from gpuexec.system.mapped import find_range, find_source
from tests.execution.weights.models import SIDE, make_chain, save_beside, save_inside, save_program

LAYERS = 3
NBYTES = LAYERS * SIDE * SIDE * 4
BLOCK = 1 << 16  # no divisor of a weight's size
X = np.linspace(-1, 1, SIDE, dtype=np.float32).reshape(1, SIDE)


@pytest.fixture
def source() -> onnx.ModelProto:
    return make_chain(LAYERS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "BLOCK_NBYTES", BLOCK)


@pytest.fixture
def simulator() -> Backend:
    return open_backend(gx.BackendType("simulator"))


def expect(source: onnx.ModelProto) -> Any:
    y = X.astype(np.float64)
    for tensor in source.graph.initializer:
        y = y @ numpy_helper.to_array(tensor)
    return y


def check(model: gx.Model, backend: Backend, source: onnx.ModelProto, **options: Any) -> None:
    with gx.Worker(model, backend=backend, **options) as worker:
        np.testing.assert_allclose(worker.run(X)[0], expect(source), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("save", [save_beside, save_inside])
def test_weights_arrive_in_pieces_and_progress_is_reported(
    save: Any, source: onnx.ModelProto, tmp_path: Path, simulator: Backend
) -> None:
    seen: list[gx.Progress] = []
    check(gx.load(save(source, tmp_path)), simulator, source, progress=seen.append)
    done = [each.done_nbytes for each in seen]
    assert len(seen) >= NBYTES // BLOCK
    assert done == sorted(set(done)) and done[-1] == NBYTES
    assert {each.total_nbytes for each in seen} == {NBYTES} and {each.stage for each in seen} == {"upload"}
    assert list(dict.fromkeys(each.name for each in seen)) == ["w0", "w1", "w2"]


def test_program_reports_progress_too(source: onnx.ModelProto, tmp_path: Path, simulator: Backend) -> None:
    seen: list[gx.Progress] = []
    program = gx.Program.load(save_program(source, tmp_path), backend=simulator)
    with program.load_method("forward", progress=seen.append) as method:
        method.set_input(0, X)
        method.execute()
        np.testing.assert_allclose(method.get_output(0).readback_and_clone(), expect(source), rtol=1e-4, atol=1e-5)
    assert seen[-1].done_nbytes == NBYTES


def test_prepare_notifies_whoever_it_was_given(source: onnx.ModelProto, simulator: Backend) -> None:
    first: list[gx.Progress] = []
    second: list[gx.Progress] = []
    with gx.Worker(gx.load(source), backend=simulator, progress=first.append) as worker:
        worker.prepare(progress=second.append)
        assert not first and second[-1].done_nbytes == NBYTES
        second.clear()
        worker.run(X)
        assert not first and not second


def test_load_reports_what_it_reads(source: onnx.ModelProto, tmp_path: Path) -> None:
    seen: list[gx.Progress] = []
    gx.load(save_inside(source, tmp_path), progress=seen.append)
    assert [(each.stage, each.name, each.done_nbytes) for each in seen] == [
        ("read", f"w{i}", NBYTES * (i + 1) // LAYERS) for i in range(LAYERS)
    ]
    seen.clear()
    gx.load(save_beside(source, tmp_path), progress=seen.append)
    assert not seen


def test_two_blocks_do_for_any_number_of_bytes(
    source: onnx.ModelProto, simulator: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    take = simulator.staging.take

    def spy(nbytes: int) -> Any:
        taken.append(nbytes)
        return take(nbytes)

    with gx.Worker(gx.load(source), backend=simulator) as worker:
        monkeypatch.setattr(simulator.staging, "take", spy)
        worker.prepare()
        assert taken == [BLOCK, BLOCK]


@pytest.mark.parametrize("order", ["dense", "transposed", "window", "small_rows"])
def test_arrays_of_any_strides_arrive_dense(order: str, simulator: Backend) -> None:
    whole = np.arange(500_000, dtype=np.float32).reshape(500, 1000)
    array = {
        "dense": whole,
        "transposed": whole.T,
        "window": whole[1:400:3, 5:900:2],
        "small_rows": whole.reshape(10, 100, 500).transpose(2, 0, 1),
    }[order]
    stream = simulator.device.create_stream()
    (region,), event = uploading.upload(simulator, [Parcel("w", array)], stream)
    event.synchronize()
    back = np.empty(array.shape, np.float32)
    stream.copy_to_host(back.reshape(-1).view(np.uint8), region.address)
    stream.synchronize()
    np.testing.assert_array_equal(back, array)
    region.memory.free()


class Stop(Exception):
    """Raised in the middle of an upload."""


@pytest.mark.parametrize("save", [save_beside, save_inside])
def test_cancelled_upload_leaves_nothing_and_may_be_tried_again(
    save: Any, source: onnx.ModelProto, tmp_path: Path, simulator: Backend
) -> None:
    model = gx.load(save(source, tmp_path))
    seen: list[gx.Progress] = []

    def stop_half_way(progress: gx.Progress) -> None:
        seen.append(progress)
        if progress.done_nbytes > NBYTES // 2:
            raise Stop

    with gx.Worker(model, backend=simulator) as worker:
        weights = weights_of(model, simulator)
        with pytest.raises(Stop):
            worker.prepare(progress=stop_half_way)
        assert seen and weights.nbytes == 0
        np.testing.assert_allclose(worker.run(X)[0], expect(source), rtol=1e-4, atol=1e-5)
        assert weights.nbytes == NBYTES


def test_upload_without_room_frees_what_it_took(
    source: onnx.ModelProto, simulator: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = simulator.device.allocate
    made: list[Any] = []
    freed: list[Any] = []

    class Freeing:
        def __init__(self, nbytes: int) -> None:
            self.memory, self.nbytes = allocate(nbytes), nbytes
            self.address, self.array = self.memory.address, self.memory.array
            made.append(self)

        def free(self) -> None:
            freed.append(self)
            self.memory.free()

    def refuse_the_third(nbytes: int) -> Any:
        if len(made) == 2:
            raise gx.OutOfMemoryError("no room")
        return Freeing(nbytes)

    model = gx.load(source)
    parcels = [Parcel(value.name, array) for value, array in model.graph.constants.items()]
    with monkeypatch.context() as patch:
        patch.setattr(simulator.device, "allocate", refuse_the_third)
        with pytest.raises(gx.OutOfMemoryError):
            uploading.upload(simulator, parcels, simulator.device.create_stream())
    assert len(made) == 2 and freed == made
    check(model, simulator, source)


def test_weights_are_shared_and_freed_with_the_last_worker(source: onnx.ModelProto, simulator: Backend) -> None:
    model = gx.load(source)
    seen: list[gx.Progress] = []
    weights = weights_of(model, simulator)
    with gx.Worker(model, backend=simulator, progress=seen.append) as first:
        first.run(X)
        count = len(seen)
        with gx.Worker(model, backend=simulator, progress=seen.append) as second:
            second.run(X)
        assert len(seen) == count and weights.nbytes == NBYTES
    assert weights.nbytes == 0


@pytest.mark.parametrize("kind", ["cpu", "simulator"])
@pytest.mark.parametrize("change", ["written", "cut"])
def test_file_that_changed_after_loading_is_refused_by_name(
    kind: Any, change: str, source: onnx.ModelProto, tmp_path: Path
) -> None:
    model = gx.load(save_beside(source, tmp_path))
    path = tmp_path / "weights.bin"
    before, times = path.read_bytes(), os.stat(path)
    with path.open("r+b") as file:
        if change == "written":
            file.write(b"x")
        else:
            file.truncate(1000)
    if change == "written":
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    backend = open_backend(gx.BackendType(kind))
    with gx.Worker(model, backend=backend) as worker:
        with pytest.raises(
            gx.AccessError, match=r"Weight %w0: 'weights.bin' changed since the model was loaded"
        ) as info:
            worker.prepare()
        assert info.value.value == "w0"
        assert weights_of(model, backend).nbytes == 0
        path.write_bytes(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        np.testing.assert_allclose(worker.run(X)[0], expect(source), rtol=1e-4, atol=1e-5)


def test_file_that_changes_during_the_upload_is_refused(
    source: onnx.ModelProto, tmp_path: Path, simulator: Backend
) -> None:
    model = gx.load(save_beside(source, tmp_path))
    path = tmp_path / "weights.bin"
    written = os.stat(path).st_mtime_ns

    def touch(progress: gx.Progress) -> None:
        os.utime(path, ns=(written, written + 1))

    with gx.Worker(model, backend=simulator) as worker:
        with pytest.raises(gx.AccessError, match="it was written to"):
            worker.prepare(progress=touch)
        assert weights_of(model, simulator).nbytes == 0


@pytest.mark.parametrize("kind", ["cpu", "simulator"])
def test_new_file_in_the_place_of_the_old_one_changes_nothing(
    kind: Any, source: onnx.ModelProto, tmp_path: Path
) -> None:
    model = gx.load(save_beside(source, tmp_path))
    other = tmp_path / "other"
    other.write_bytes(bytes(NBYTES))
    os.replace(other, tmp_path / "weights.bin")
    check(model, open_backend(gx.BackendType(kind)), source)


def test_cpu_reads_the_file_once_for_all_workers(source: onnx.ModelProto, tmp_path: Path) -> None:
    model = gx.load(save_beside(source, tmp_path))
    backend = open_backend(gx.BackendType("cpu"))
    arrays = list(model.graph.constants.values())
    assert all(find_source(array) is not None for array in arrays)
    with gx.Worker(model, backend=backend) as worker, gx.Worker(model, backend=backend) as other:
        addresses = []
        for each in (worker, other):
            each.schedule(X)
            np.testing.assert_allclose(each.read_output("y"), expect(source), rtol=1e-4, atol=1e-5)
            share, stream = each._engine.planning.weights, each._engine.stream
            addresses.append({share.place_array(array, stream).address for array in arrays})
        assert addresses[0] == addresses[1] and addresses[0].isdisjoint(array.ctypes.data for array in arrays)
        assert share.nbytes == NBYTES


def test_weights_at_odd_offsets_are_copied_where_they_must_be_aligned(tmp_path: Path) -> None:
    source = make_chain(1)
    path = save_beside(source, tmp_path)
    model = onnx.load(path, load_external_data=False)
    row = next(entry for entry in model.graph.initializer[0].external_data if entry.key == "offset")
    (tmp_path / "weights.bin").write_bytes(b"odd" + (tmp_path / "weights.bin").read_bytes())
    row.value = "3"
    path.write_bytes(model.SerializeToString())
    loaded = gx.load(path)
    (array,) = loaded.graph.constants.values()
    found = find_range(array)
    assert found is not None and found.offset == 3 and not array.flags.aligned
    for kind in ("cpu", "simulator"):
        check(loaded, open_backend(gx.BackendType(kind)), source)
