"""State access: get, set, snapshot, fork, save and load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.devices.backend import Backend, BackendType, open_backend
from tests.devices.foreign_arrays import CudaStreamArray, DeviceArray, DlpackArray, HostOnly, InterfaceArray
from tests.execution.state.conftest import BACKENDS
from tests.model.small_models import CPU, make_tracer, ramp, trace
from tests.model.state_models import WIDTH, cache, recurrent, running_sum

HELD = ramp(2, WIDTH)


def test_state_is_zeros_before_the_first_run(worker: gx.Worker) -> None:
    with pytest.raises(gx.StateError, match=r"held.*not known yet"):
        worker.state.get()
    worker.prepare((2, WIDTH))
    worker.run(HELD)
    worker.state.reset()
    np.testing.assert_array_equal(worker.state.get("total"), 0 * HELD)
    np.testing.assert_array_equal(worker.run(HELD)[0], 2 * HELD)
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU) as fixed:
        np.testing.assert_array_equal(fixed.state.get("held"), 0 * HELD)


def test_state_is_set_by_the_name_of_input_or_output(worker: gx.Worker) -> None:
    given = HELD.copy()
    worker.state.set({"total": given})
    given[:] = 0
    np.testing.assert_array_equal(worker.state.get("held"), HELD)
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)
    worker.state.set({"held": worker.peek_output()})
    np.testing.assert_array_equal(worker.run(HELD)[0], 10 * HELD)


@pytest.mark.parametrize("kind", [CudaStreamArray, DlpackArray, InterfaceArray])
@pytest.mark.parametrize("capacity", [None, 5], ids=["swap", "append"])
def test_array_of_another_package_is_copied_on_the_device(kind: type[DeviceArray], capacity: int | None) -> None:
    backend = open_backend(BackendType.SIMULATOR)
    model = running_sum() if capacity is None else cache().bind_state({"present": "past"}, capacity=capacity)
    x, held = (HELD, 5 * HELD) if capacity is None else (ramp(2, 1, WIDTH), ramp(2, 3, WIDTH))
    with gx.Worker(model, backend=backend) as worker:
        given = kind(backend, held)
        worker.state.set({model.memories[0].input: given})
        # What is given may change from now on.
        given.stream.fill(given.memory.address, b"\1", held.nbytes)
        given.stream.synchronize()
        np.testing.assert_array_equal(worker.state.get(), held)
        y = worker.schedule(x).peek_output().readback_and_clone()
        np.testing.assert_array_equal(y, 12 * HELD if capacity is None else held.sum(1) + 2 * x.sum(1))


def test_device_array_for_a_memory_is_not_read_by_the_host() -> None:
    backend = make_tracer()
    with gx.Worker(running_sum(), backend=backend) as worker:
        given = InterfaceArray(backend, HELD)
        count = len(backend.device.log)  # type: ignore[attr-defined]
        worker.state.set({"held": given})
        assert [row for row in trace(backend)[count:] if row.startswith("copy")] == ["copy"]


def test_host_array_that_only_speaks_dlpack_is_taken_for_a_memory(worker: gx.Worker) -> None:
    held = HELD.copy()
    worker.state.set({"held": HostOnly(held)})
    held[:] = 0
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)


def test_numbers_beyond_a_memory_are_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["h", "x"], ["y"])],
        "bytes",
        [helper.make_tensor_value_info(name, TensorProto.INT8, [2]) for name in ("h", "x")],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [2])],
    )
    model = gx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])).bind_state({"y": "h"})
    with gx.Worker(model, backend=CPU) as worker:
        with pytest.raises(gx.InputError, match="Memory 'h': expected int8, got 300, which is beyond that"):
            worker.state.set({"h": [300, 1]})
        worker.state.set({"h": [-128, 127]})
        assert worker.state.get().tolist() == [-128, 127]


def test_numbers_are_taken_where_they_lose_nothing() -> None:
    model = running_sum((WIDTH,))
    with gx.Worker(model, backend=CPU) as worker:
        for given in ([1, 2, 3], [1.0, 2.0, 3.0], (1, 2.0, 3)):
            worker.state.set({"held": given})
            np.testing.assert_array_equal(worker.state.get(), np.array([1, 2, 3], np.float32))
        for bad, words in (([True] * 3, "got bool"), (["a"] * 3, "'held'"), (object(), "'held'"), ([[1], 2], "'held'")):
            with pytest.raises(gx.InputError, match=words):
                worker.state.set({"held": bad})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nothing": HELD}, "no memory 'nothing'; the model has held"),
        ({"held": HELD.astype(np.int32)}, "'held' expects float32.n,3., got int32"),
        ({"held": HELD[:, :1]}, "'held' expects float32.n,3., got float32.2,1."),
        ({"held": HostOnly(HELD[:, :1].copy())}, "'held' expects float32.n,3., got float32.2,1."),
        ({"held": HostOnly(HELD, device=8)}, "Memory 'held': it lies on DLPack device type 8"),
        ({"held": None}, "held"),
    ],
)
def test_bad_values_are_refused_and_change_nothing(worker: gx.Worker, values: dict[str, object], words: str) -> None:
    worker.run(HELD)
    with pytest.raises(gx.InputError, match=words):
        worker.state.set(values)
    np.testing.assert_array_equal(worker.state.get(), HELD)


def test_snapshots_outlive_later_runs_and_are_restored(worker: gx.Worker) -> None:
    shots = []
    for _ in range(4):
        shots.append(worker.state.snapshot())
        worker.run(HELD)
    for number, shot in reversed(list(enumerate(shots))):
        worker.state.restore(shot)
        np.testing.assert_array_equal(worker.run(HELD)[0], 2 * (number + 1) * HELD)


@pytest.mark.feature("B45")
def test_forks_go_their_own_ways(worker: gx.Worker) -> None:
    worker.run(HELD)
    first, second = worker.state, worker.state.fork()
    np.testing.assert_array_equal(worker.run(10 * HELD)[0], 22 * HELD)
    worker.state = second
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)
    worker.state = first
    np.testing.assert_array_equal(worker.run(HELD)[0], 24 * HELD)
    np.testing.assert_array_equal(second.get(), 2 * HELD)


@pytest.mark.feature("B45")
def test_sequences_take_turns_on_one_worker(worker: gx.Worker) -> None:
    states = [worker.create_state() for _ in range(3)]
    for number in range(1, 4):
        for which, state in enumerate(states, 1):
            worker.state = state
            np.testing.assert_array_equal(worker.run(which * HELD)[0], 2 * number * which * HELD)


def test_state_passes_between_workers_of_a_device(backend: Backend) -> None:
    with gx.Worker(running_sum(), backend=backend) as first, gx.Worker(running_sum(), backend=backend) as second:
        state = first.state
        second.state = state
        for number in range(1, 20):
            worker = (first, second)[number % 2]
            worker.schedule(HELD)
            if number % 5 == 0:
                np.testing.assert_array_equal(state.get(), number * HELD)
        np.testing.assert_array_equal(second.run(HELD)[0], 40 * HELD)
    # It outlives the Workers.
    np.testing.assert_array_equal(state.get(), 20 * HELD)


def test_foreign_state_is_refused_naming_both(worker: gx.Worker, backend: Backend) -> None:
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as other:
        with pytest.raises(gx.InputError, match=r"lstm.initial_h.*expected held"):
            worker.state = other.state
        with pytest.raises(gx.InputError, match="The snapshot holds"):
            worker.state.restore(other.state.snapshot())
    elsewhere = next(each for each in BACKENDS if each is not backend.type)
    with gx.Worker(running_sum(), backend=elsewhere) as other, pytest.raises(gx.InputError, match="another device"):
        worker.state = other.state


def test_state_is_saved_and_loaded(worker: gx.Worker, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    worker.run(HELD)
    worker.state.save(path)
    worker.run(HELD)
    worker.state.load(path)
    np.testing.assert_array_equal(worker.run(HELD)[0], 4 * HELD)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_bad_state_files_are_refused_and_change_nothing(worker: gx.Worker, tmp_path: Path) -> None:
    worker.run(HELD)
    path, other = tmp_path / "state", tmp_path / "other"
    worker.state.save(path)
    content = path.read_bytes()
    with gx.Worker(running_sum((1, WIDTH)), backend=CPU) as narrow:
        narrow.state.save(other)
    for bad, words in ((content[:-1], "holds no state"), (b"", "holds no state"), (content[:9], "holds no state")):
        path.write_bytes(bad)
        with pytest.raises(gx.InputError, match=words):
            worker.state.load(path)
    name, end = "a" * 5000, [4, 8]
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": end}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(gx.InputError, match=r"holds no state: .*aaa \.\.\. aaa") as caught:
        worker.state.load(path)
    assert len(str(caught.value)) < 1000
    renamed = content.replace(b'"held"', b'"hold"')
    path.write_bytes(renamed)
    with pytest.raises(gx.InputError, match="holds hold; the model's memories are held"):
        worker.state.load(path)
    with gx.Worker(running_sum((2, WIDTH)), backend=CPU) as fixed, pytest.raises(gx.InputError, match="'held' expects"):
        fixed.state.load(other)
    np.testing.assert_array_equal(worker.state.get(), HELD)
