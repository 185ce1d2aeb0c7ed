"""Replays: recorded once, put on streams again and again, in their order, with memory of their own."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import gpuexec as gx
import tests.operators  # noqa: F401 (registers NoKernel)
from gpuexec.runtime.backend import Backend, open_backend
from gpuexec.runtime.device import Stream
from gpuexec.runtime.simulator.device import SimulatorDevice
from gpuexec.runtime.simulator.operations import Operation
from gpuexec.runtime.tracer import TracerDevice, TracerEvent, TracerStream
from gpuexec.spec import TensorSpec
from tests.devices.opening import make_simulator
from tests.running.test_graphs_in_use import branches, expect_branches
from tests.small_models import (
    CPU,
    GATES,
    Array,
    affine,
    expect_affine,
    gated,
    hold,
    make_model,
    make_tracer,
    ramp,
    two_inputs,
    two_layers,
)

SIMULATOR = gx.BackendType.SIMULATOR
on_both = pytest.mark.parametrize("type", [CPU, SIMULATOR], ids=["cpu", "simulator"])


class Buffer:
    """Device memory of somebody else's, without a stream: its owner orders what is done with it."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        self.backend, self.spec = backend, spec
        self.memory = backend.device.allocate(spec.nbytes)
        self.shape, self.dtype = spec.shape, spec.dtype

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = (self.memory.address, False)
        return {"shape": self.shape, "typestr": self.dtype.str, "data": data, "version": 3, "stream": None}

    def write(self, stream: Stream, array: Array) -> None:
        stream.copy_to_device(self.memory.address, np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def read(self, stream: Stream) -> Array:
        """Return the content in the order of a stream, once that has come to it."""
        array = np.zeros(self.shape, self.dtype)
        stream.copy_to_host(array.reshape(-1).view(np.uint8), self.memory.address)
        return array


@contextlib.contextmanager
def holding(stream: Any) -> Iterator[threading.Event]:
    """Hold a stream until the event is set, or the block is left: a test that fails should end."""
    gate = hold(stream)
    try:
        yield gate
    finally:
        gate.set()


class StreamBuffer(Buffer):
    """Device memory of somebody else's that says on which stream it is written."""

    def __init__(self, backend: Backend, spec: TensorSpec) -> None:
        super().__init__(backend, spec)
        self.stream = backend.device.create_stream()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return super().__cuda_array_interface__ | {"stream": self.stream.handle}


def float32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, np.dtype(np.float32))


def read(made: dict[str, gx.Tensor], name: str = "y") -> Array:
    return made[name].readback_and_clone()


def told(backend: Backend) -> list[Any]:
    """Return what the tracer was told since the last call."""
    assert isinstance(backend.device, TracerDevice)
    rows = [row[0] for row in backend.device.log]
    backend.device.log.clear()
    return rows


# ---- what it gives


@on_both
def test_submission_gives_what_a_run_gives(type: gx.BackendType) -> None:
    with gx.Worker(branches(), backend=type) as worker, worker.record(ramp(4, 4)) as replay:
        np.testing.assert_array_equal(read(replay.submit()), expect_branches(ramp(4, 4)))
        for number in range(4):
            x = ramp(4, 4) + number
            made = replay.submit(x)
            assert made["y"].shape == (4, 4)
            np.testing.assert_array_equal(read(made), expect_branches(x))


@on_both
def test_worker_and_replays_do_not_disturb_each_other(type: gx.BackendType) -> None:
    with gx.Worker(two_layers(), backend=type) as worker:
        plain = [worker.run(ramp(5, 3) + number) for number in range(4)]
        first, second = worker.record(ramp(5, 3)), worker.record(ramp(5, 3))
        for number in range(4):
            runs = [worker.schedule(ramp(5, 3) + number), first.submit(ramp(5, 3) + (number + 1) % 4)]
            runs.append(second.submit(ramp(5, 3) + (number + 2) % 4))
            tensors = [runs[0].peek_output(), runs[1]["y"], runs[2]["y"]]  # type: ignore[union-attr, index]
            for ahead, tensor in enumerate(tensors):
                np.testing.assert_array_equal(tensor.readback_and_clone(), plain[(number + ahead) % 4])
        assert worker.report().runs == 8, "a submission is no run of the Worker"


@on_both
def test_inputs_not_given_stay(type: gx.BackendType) -> None:
    left, right = ramp(2, 3), ramp(2, 3) * 10
    with gx.Worker(two_inputs(), backend=type) as worker, worker.record({"left": left, "right": right}) as replay:
        replay.submit({"left": left + 1})
        made = replay.submit({"right": right + 5})
        np.testing.assert_array_equal(read(made, "sum"), left + 1 + right + 5)
        np.testing.assert_array_equal(read(replay.submit(), "difference"), left + 1 - right - 5)


def test_neighbours_from_the_host_go_in_one_copy_and_what_lies_between_stays() -> None:
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Sub", ["d", "c"], ["y"])]
    model, x = make_model(nodes, dict.fromkeys("abc", (2, 3)), {"y": (2, 3)}), ramp(2, 3)
    with gx.Worker(model, backend=SIMULATOR) as worker:
        replay = worker.record([x, 2 * x, 3 * x])
        np.testing.assert_array_equal(read(replay.submit({"a": x + 1, "c": x + 5})), (x + 1) - 2 * x - (x + 5))
        np.testing.assert_array_equal(read(replay.submit({"c": 7 * x, "b": x})), (x + 1) - x - 7 * x)
    backend = make_tracer()
    with gx.Worker(model, backend=backend) as worker:
        replay = worker.record([x, 2 * x, 3 * x])
        for names, copies in (("abc", 1), ("ab", 1), ("ac", 2), ("b", 1)):
            told(backend)
            replay.submit(dict.fromkeys(names, x))
            assert told(backend).count("copy_to_device") == copies


def test_input_recorded_by_its_shape_is_given_first() -> None:
    with gx.Worker(two_inputs(), backend=SIMULATOR) as worker:
        replay = worker.record({"left": (2, 3), "right": ramp(2, 3)})
        with pytest.raises(gx.InputError, match=r"'left' \(float32\[2,3\]\) has no content"):
            replay.submit({"right": ramp(2, 3)})
        made = replay.submit([ramp(2, 3) + 1])
        np.testing.assert_array_equal(read(made, "difference"), np.ones((2, 3), np.float32))


@on_both
def test_outputs_are_good_until_the_next_submission(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker, worker.record(ramp(2, 3)) as replay:
        before = replay.submit()["y"]
        unread = replay.submit(ramp(2, 3) + 1)["y"]
        request = unread.readback_request()
        now = replay.submit(ramp(2, 3) + 2)["y"]
        with pytest.raises(gx.StaleError, match="belongs to an earlier run"):
            before.readback_request()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3) + 1))
        np.testing.assert_array_equal(now.readback_and_clone(), expect_affine(ramp(2, 3) + 2))
        worker.run(ramp(2, 3))
        assert now.is_readback_request_done(), "a run of the Worker's makes nothing of it stale"


def test_next_submission_waits_on_the_stream_for_readers() -> None:
    """The host does not wait, though the readback can't begin: its stream is held."""
    device = make_simulator()
    with gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        replay = worker.record(ramp(2, 3))
        made = replay.submit()["y"]
        with made._content.lease.transfers.issuing() as copies:
            pass
        with holding(copies) as gate:
            request = made.readback_request()
            later = replay.submit(ramp(2, 3) + 7)["y"]
            assert not later.is_done()
            gate.set()
            np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
            np.testing.assert_array_equal(later.readback_and_clone(), expect_affine(ramp(2, 3) + 7))
    device.close()


# ---- one graph, and nothing made


def test_replay_is_a_graph_at_once() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        told(backend)
        replay = worker.record(ramp(2, 3))
        assert replay.has_graph and told(backend).count("graph") == 1
        replay.submit()
        assert told(backend) == ["graph launch", "record"]
        replay.submit(ramp(2, 3))
        assert told(backend) == ["copy_to_device", "graph launch", "record"]
        worker.run(ramp(2, 3))
        told(backend)
        replay.close()
        assert told(backend) == ["close graph"]


def test_device_without_graphs_replays_all_the_same() -> None:
    with gx.Worker(affine(), backend=CPU) as worker, worker.record(ramp(2, 3)) as replay:
        assert not replay.has_graph


def test_graphs_of_replays_are_not_closed_for_others() -> None:
    with gx.Worker(affine(), backend=make_tracer()) as worker, worker.record(ramp(2, 3)) as replay:
        worker._engine.site.graphs.clear()
        assert replay.has_graph


def test_memory_is_its_own_and_given_back() -> None:
    device = make_simulator()
    with gx.Worker(two_layers(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        worker.run(ramp(5, 3))
        worker.wait_for_completion()
        before = worker.memory_stats()
        replay = worker.record(ramp(5, 3))
        assert replay.nbytes >= 5 * 3 * 4 + 5 * 5 * 4 + 5 * 2 * 4
        stats = worker.memory_stats()
        assert {name: stats[name] for name in ("arena", "frames", "weights")} == {
            name: before[name] for name in ("arena", "frames", "weights")
        }
        replay.close()
        assert replay.nbytes == 0
    device.close()


# ---- in the order of a stream


def test_submission_is_in_the_order_of_the_stream_it_is_given() -> None:
    """Nothing but the stream orders the caller's writes and reads with the run; the checker of the order agrees."""
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    x, y = Buffer(backend, float32(4, 4)), Buffer(backend, float32(4, 4))
    with gx.Worker(branches(), backend=backend) as worker:
        mine = device.create_stream()
        replay = worker.record(x, outputs={"y": y}, stream=mine)
        got = []
        for number in range(3):
            x.write(mine, ramp(4, 4) + number)
            replay.submit()
            got.append(y.read(mine))
        mine.synchronize()
        for number, array in enumerate(got):
            np.testing.assert_array_equal(array, expect_branches(ramp(4, 4) + number))
        y.read(device.create_stream())
        with pytest.raises(gx.OrderError):
            replay.submit()
    device.close()


def test_another_stream_waits_for_the_submission_before() -> None:
    device = make_simulator(check_order=True)
    with gx.Worker(two_layers(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        expected = worker.run(ramp(5, 3))
        first, second = device.create_stream(), device.create_stream()
        replay = worker.record((5, 3))
        with holding(first) as gate:
            replay.submit(ramp(5, 3) + 1, stream=first)
            later = replay.submit(ramp(5, 3), stream=second.handle)["y"]
            assert not later.is_done()
            gate.set()
            np.testing.assert_array_equal(later.readback_and_clone(), expected)
    device.close()


def test_pending_tensor_of_the_same_stream_takes_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker, gx.Worker(affine(), backend=backend) as other:
        replay = worker.record((2, 3))
        monkeypatch.setattr(TracerEvent, "is_done", lambda self: False)
        here, there = worker.schedule(ramp(2, 3)).peek_output(), other.schedule(ramp(2, 3)).peek_output()
        told(backend)
        replay.submit(here)
        assert told(backend) == ["node", "graph launch", "record"]
        replay.submit(there)
        assert told(backend) == ["wait", "node", "graph launch", "record"]
        monkeypatch.undo()


@on_both
def test_pending_tensor_is_waited_for_on_the_stream(type: gx.BackendType) -> None:
    backend = open_backend(type)
    stream = backend.device.create_stream()
    with gx.Worker(affine(), backend=type, stream=stream) as maker, gx.Worker(affine(), backend=type) as worker:
        replay = worker.record((2, 3))
        with holding(stream) as gate:
            made = replay.submit(maker.schedule(ramp(2, 3)).peek_output())["y"]
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(expect_affine(ramp(2, 3))))
            assert worker.report().host_syncs == ()


def test_maker_of_an_input_waits_before_it_writes_it_again() -> None:
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    mine = device.create_stream()
    with gx.Worker(affine(), backend=backend, frames=1) as maker, gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record((2, 3), stream=mine)
        with holding(mine) as gate:
            made = replay.submit(maker.schedule(ramp(2, 3)).peek_output())["y"]
            newer = maker.schedule(ramp(2, 3) + 1)
            assert not newer.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(expect_affine(ramp(2, 3))))
    device.close()


def test_device_array_given_before_is_waited_for_anew() -> None:
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    x = StreamBuffer(backend, float32(2, 3))
    x.write(x.stream, ramp(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(x)
        made = replay.submit()["y"]
        np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3)))
        made.data_on_backend.complete_all_pending_operations()
        with holding(x.stream) as gate:
            x.write(x.stream, ramp(2, 3) + 4)
            made = replay.submit()["y"]
            assert not made.is_done()
            gate.set()
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3) + 4))
    device.close()


def test_stale_tensor_given_before_is_refused() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker:
        y = worker.schedule(ramp(2, 3)).peek_output()
        replay = worker.record(y)
        worker.schedule(ramp(2, 3))
        with pytest.raises(gx.StaleError, match=r"'x'.*belongs to an earlier run"):
            replay.submit()
        np.testing.assert_array_equal(read(replay.submit(ramp(2, 3))), expect_affine(ramp(2, 3)))


# ---- memory of the caller's


def test_outputs_stay_where_they_are_told_to_lie_until_told_otherwise() -> None:
    device = make_simulator()
    backend = Backend(device, SIMULATOR, "for a test")
    mine, y = device.create_stream(), Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(ramp(2, 3), stream=mine)
        for number, outputs in enumerate(({"y": y}, {}, {"y": None}, None)):
            made = replay.submit(ramp(2, 3) + number, outputs=outputs)["y"]
            assert (made._content.region.address == y.memory.address) == (number < 2)
            np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3) + number))
        got = y.read(mine)
        mine.synchronize()
        np.testing.assert_array_equal(got, expect_affine(ramp(2, 3) + 1))
    device.close()


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "message"),
    [
        ("z", (2, 3), np.float32, "There is no output 'z'; the model has y"),
        ("y", (3, 2), np.float32, r"Output 'y' is float32\[2,3\], got float32 of shape \(3, 2\)"),
        ("y", (2, 3), np.int32, r"Output 'y' is float32\[2,3\], got int32"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(name: str, shape: Any, dtype: Any, message: str) -> None:
    backend = open_backend(SIMULATOR)
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        with pytest.raises(gx.InputError, match=message):
            replay.submit(ramp(2, 3) + 1, outputs={name: Buffer(backend, TensorSpec(shape, np.dtype(dtype)))})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


def test_host_array_is_no_output_on_a_device() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker:
        replay = worker.record(ramp(2, 3))
        with pytest.raises(gx.InputError, match="it lies on the host"):
            replay.submit(outputs={"y": ramp(2, 3)})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


def test_input_in_the_bytes_of_an_output_is_refused_and_nothing_changes() -> None:
    backend = open_backend(SIMULATOR)
    own = Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        y = replay.submit()["y"]
        with pytest.raises(gx.InputError, match="'x' lies in the bytes of output 'y', which the run writes"):
            replay.submit(y)
        with pytest.raises(gx.InputError, match="'x' lies in the bytes of output 'y'"):
            replay.submit(own, outputs={"y": own})
        np.testing.assert_array_equal(y.readback_and_clone(), expect_affine(ramp(2, 3)))
        made = replay.submit()["y"]
        assert made._content.region.address != own.memory.address
        np.testing.assert_array_equal(made.readback_and_clone(), expect_affine(ramp(2, 3)))


def test_outputs_may_not_share_bytes() -> None:
    both = Buffer(open_backend(SIMULATOR), float32(2, 3))
    with gx.Worker(two_inputs(), backend=SIMULATOR) as worker:
        replay = worker.record([ramp(2, 3), ramp(2, 3)])
        with pytest.raises(gx.InputError, match="'sum' lies in the bytes of output 'difference'"):
            replay.submit(outputs={"sum": both, "difference": both})


def test_exported_output_is_not_written_again() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        kept = replay.submit()["y"]
        address = kept.__cuda_array_interface__["data"][0]
        made = replay.submit(ramp(2, 3) + 1)["y"]
        assert made.__cuda_array_interface__["data"][0] != address
        np.testing.assert_array_equal(kept.readback_and_clone(), expect_affine(ramp(2, 3)))


def test_two_arrays_that_take_turns_carry_a_state_on() -> None:
    """Nothing is waited for, and nothing copied: what one submission writes, the next one reads."""
    device = make_simulator(check_order=True)
    backend = Backend(device, SIMULATOR, "for a test")
    mine, turns = device.create_stream(), [Buffer(backend, float32(2, 3)) for _ in range(2)]
    nodes = [helper.make_node("Add", ["x", "held"], ["total"]), helper.make_node("Neg", ["total"], ["y"])]
    model = make_model(nodes, {"x": (2, 3), "held": (2, 3)}, {"y": (2, 3), "total": (2, 3)})
    turns[0].write(mine, np.zeros((2, 3), np.float32))
    with gx.Worker(model, backend=backend) as worker, worker.record([(2, 3), (2, 3)], stream=mine) as replay:
        for number in range(5):
            one, other = turns[number % 2], turns[1 - number % 2]
            made = replay.submit({"x": ramp(2, 3), "held": one}, outputs={"total": other})
            np.testing.assert_array_equal(read(made), -(number + 1) * ramp(2, 3))
        assert worker.report().host_syncs == ()
    device.close()


# ---- what is refused


@on_both
def test_another_shape_is_refused_with_both(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker, worker.record(ramp(2, 3)) as replay:
        message = r"'x' was recorded as float32\[2,3\], got float32\[4,3\]; record another replay"
        with pytest.raises(gx.InputError, match=message):
            replay.submit(ramp(4, 3))
        with pytest.raises(gx.InputError, match="cast it"):
            replay.submit(ramp(2, 3).astype(np.float64))
        with pytest.raises(gx.InputError, match="no input 'z'"):
            replay.submit({"z": ramp(2, 3)})
        np.testing.assert_array_equal(read(replay.submit()), expect_affine(ramp(2, 3)))


LOOP = """(float[k] x, int64 n) => (float[k] y) {
  y = Loop (n, "", x) <body = b (int64 i, bool c, float[k] v) => (bool c_out, float[k] v_out) {
    c_out = Identity (c)
    v_out = Add (v, v)
  }>
}"""


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ("(float[k] x) => (int64[1, m] y) { y = NonZero (x) }", (5,), "'x' is read for NonZero"),
        (
            "(float[k] x) => (float[k] y) { a = Neg (x) b = test.NoKernel (a) y = Neg (b) }",
            (5,),
            "NoKernel.* is computed",
        ),
        (LOOP, {"x": (5,), "n": np.int64(3)}, "Loop.* is driven by the host"),
    ],
)
def test_plan_with_work_of_the_host_is_refused_by_its_nodes(text: str, given: Any, message: str) -> None:
    model = gx.load(
        parser.parse_model(f'<ir_version: 10, opset_import: ["": 21, "test": 1]> agraph {text}').SerializeToString()
    )
    inputs = given if isinstance(given, dict) else {"x": given}
    with gx.Worker(model, backend=SIMULATOR) as worker:
        with pytest.raises(gx.ImplicitSyncError, match=rf"A replay runs without the host; in .*{message}"):
            worker.record({name: np.asarray(v) if isinstance(v, np.generic) else v for name, v in inputs.items()})
        assert not worker._engine.replays


def test_content_that_planning_read_stays() -> None:
    text = "(float[k] x, int64[r] shape) => (float[a, b] y) { y = Reshape (x, shape) }"
    model = gx.load(parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}').SerializeToString())
    shape = np.array([2, 3])
    with gx.Worker(model, backend=SIMULATOR) as worker:
        replay = worker.record({"x": ramp(6), "shape": shape})
        assert replay.submit({"shape": shape.copy(), "x": ramp(6) + 1})["y"].shape == (2, 3)
        with pytest.raises(gx.InputError, match=r"'shape' was recorded as \[2 3\], .* got \[3 2\]; record another"):
            replay.submit({"shape": np.array([3, 2])})
        with pytest.raises(gx.InputError, match="got content on a device"):
            replay.submit({"shape": Buffer(open_backend(SIMULATOR), TensorSpec((2,), np.dtype(np.int64)))})
        np.testing.assert_array_equal(read(replay.submit()), (ramp(6) + 1).reshape(2, 3))


@pytest.mark.parametrize("option", [{"synchronous": True}, {"compare_with": CPU}])
def test_worker_that_waits_for_each_command_records_nothing(option: dict[str, Any]) -> None:
    with gx.Worker(affine(), backend=SIMULATOR, **option) as worker:
        with pytest.raises(gx.StateError, match="synchronous, or compares"):
            worker.record(ramp(2, 3))
        np.testing.assert_array_equal(worker.run(ramp(2, 3)), expect_affine(ramp(2, 3)))


def test_second_caller_is_refused() -> None:
    with gx.Worker(affine(), backend=SIMULATOR) as worker, worker.record(ramp(2, 3)) as replay:
        with replay._entrance, pytest.raises(gx.StateError, match="Another caller is inside this Replay"):
            replay.submit()
        replay.submit()


# ---- capturing


def test_capture_holds_the_commands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_tracer()
    x = Buffer(backend, float32(2, 3))
    with gx.Worker(affine(), backend=backend) as worker:
        replay = worker.record(x)
        monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
        told(backend)
        made = replay.submit()["y"]
        assert told(backend) == ["launch"] * 3
        with pytest.raises(gx.StateError, match="was captured"):
            made.readback_and_clone()
        for given in ({"inputs": ramp(2, 3)}, {"outputs": {"y": None}}):
            with pytest.raises(gx.StateError, match="nothing can be given now"):
                replay.submit(**given)  # type: ignore[arg-type]
        with pytest.raises(gx.StateError, match="capturing"):
            worker.record(x)
        monkeypatch.undo()
        replay.submit()
        assert told(backend)[-2:] == ["graph launch", "record"]


def test_capture_without_an_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with gx.Worker(affine(), backend=make_tracer()) as worker:
        replay = worker.record((2, 3))
        monkeypatch.setattr(TracerStream, "is_capturing", lambda self: True)
        with pytest.raises(gx.StateError, match="'x' was never given"):
            replay.submit()


# ---- faults and the end


def test_failure_belongs_to_its_submission() -> None:
    model, number = gated()
    with gx.Worker(model, backend=CPU) as worker, worker.record(ramp(2, 3)) as replay:
        GATES.open[number].set()
        GATES.failures[number] = ValueError("on purpose")
        with pytest.raises(gx.DeviceError, match=r"'gate'.* failed on the host: ValueError: on purpose"):
            read(replay.submit())
        np.testing.assert_array_equal(read(replay.submit()), ramp(2, 3) + 1)


@on_both
def test_close_waits_and_ends_it(type: gx.BackendType) -> None:
    with gx.Worker(affine(), backend=type) as worker:
        replay = worker.record(ramp(2, 3))
        made = replay.submit()["y"]
        request = made.readback_request()
        replay.close()
        replay.close()
        with pytest.raises(gx.ClosedError, match="The Replay, or its Worker, is closed"):
            replay.submit()
        with pytest.raises(gx.ClosedError, match="its Replay is closed"):
            made._content.check()
        np.testing.assert_array_equal(request.result(), expect_affine(ramp(2, 3)))
        np.testing.assert_array_equal(worker.run(ramp(2, 3)), expect_affine(ramp(2, 3)))


def test_worker_closes_its_replays() -> None:
    worker = gx.Worker(affine(), backend=SIMULATOR)
    replay = worker.record(ramp(2, 3))
    replay.submit()
    worker.close()
    with pytest.raises(gx.ClosedError, match="The Replay, or its Worker, is closed"):
        replay.submit()


def test_replay_that_is_dropped_gives_its_graph_back() -> None:
    backend = make_tracer()
    with gx.Worker(affine(), backend=backend) as worker:
        held = [worker.record(ramp(2, 3))]
        watch = weakref.ref(held[0])
        told(backend)
        with pytest.warns(ResourceWarning, match=r"A Replay of 'small', made at .*test_replay.py:.* was never closed"):
            _drop(held)
        assert watch() is None and told(backend) == ["close graph"]
        pinned = backend.staging.nbytes
        backend.staging.trim()
        assert backend.staging.nbytes < pinned, "its pinned blocks are nobody's"


def _drop(held: list[gx.Replay]) -> None:
    held.clear()
    gc.collect()


def test_device_that_is_lost_says_so_and_closes() -> None:
    device = make_simulator()
    worker = gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test"))
    replay = worker.record(ramp(2, 3))
    _lose(device)
    with pytest.raises(gx.DeviceLostError):
        replay.submit()
    replay.close()
    with pytest.raises(gx.ClosedError):
        replay.submit()


def _lose(device: SimulatorDevice) -> None:
    device.lose(Operation("a kernel", lambda: None), RuntimeError("on purpose"))


def test_replay_and_outputs_that_are_dropped_leave_their_bytes_to_what_is_under_way() -> None:
    device = make_simulator(check_order=True)
    stream = device.create_stream()
    with gx.Worker(affine(), backend=Backend(device, SIMULATOR, "for a test")) as worker:
        with holding(stream) as gate:
            held = [worker.record(ramp(2, 3), stream=stream)]
            with pytest.warns(ResourceWarning, match="A Replay of 'small'"):
                _drop(held)
            held = [worker.record((2, 3), stream=stream)]
            held[0].submit(ramp(2, 3))
            with pytest.warns(ResourceWarning, match="A Replay of 'small'"):
                _drop(held)
            gate.set()
            stream.synchronize()
        np.testing.assert_array_equal(worker.run(ramp(2, 3)), expect_affine(ramp(2, 3)))
    device.close()


def test_output_read_by_steps_of_this_thread_is_not_waited_for() -> None:
    """Nobody else would finish the steps; the pinned block of what was given comes back."""
    with gx.Worker(affine(), backend=SIMULATOR) as worker, gx.Worker(two_layers(), backend=SIMULATOR) as other:
        replay = worker.record((5, 3))
        expected = other.run(expect_affine(ramp(5, 3)))
        free = len(replay._bound.home._blocks)
        steps = other.schedule_iterable(replay.submit(ramp(5, 3))["y"])
        next(steps)
        with pytest.raises(gx.StateError, match="finish iterating"):
            replay.submit(ramp(5, 3) + 1)
        assert len(replay._bound.home._blocks) == free
        list(steps)
        np.testing.assert_array_equal(other.read_output(), expected)
        np.testing.assert_array_equal(read(replay.submit(ramp(5, 3) + 2)), expect_affine(ramp(5, 3) + 2))
