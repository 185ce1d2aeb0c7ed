"""Runs that are computed in the call: what they give, what they leave, and what is scheduled all the same."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gpuexec as gx
from gpuexec.execution.runs.lane import Lane
from tests.execution.runs.counted import load

Array = np.ndarray[Any, Any]


def make_model(rows: int | str = "rows") -> onnx.ModelProto:
    """Return ``y = relu(x @ w)``, ``total = sum of y over rows``."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.arange(12, dtype=np.float32) - 5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 3]),
        helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
    ]
    graph = helper.make_graph(nodes, "lane", [x], outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def draw(rows: int, seed: int = 0) -> Array:
    """Return an input."""
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def expect(x: Array) -> Array:
    """Return ``y``."""
    y: Array = np.maximum(x @ (np.arange(12, dtype=np.float32) - 5).reshape(4, 3), 0)
    return y


@pytest.fixture
def worker() -> Iterator[gx.Worker]:
    with gx.Worker(make_model(), backend="cpu") as worker:
        yield worker


@pytest.fixture
def laps(brief_runs: None, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run from now on was computed in the call."""
    seen: list[bool] = []
    own = Lane.run

    def run(self: Lane, model: gx.Model, inputs: object, *, copies: bool) -> object:
        lap = own(self, model, inputs, copies=copies)
        seen.append(lap is not None)
        return lap

    monkeypatch.setattr(Lane, "run", run)
    return seen


def warm_up(worker: gx.Worker, rows: int = 2) -> None:
    """Run a size until it is bound."""
    for _ in range(4):
        worker.run(draw(rows))


def test_runs_of_a_size_are_computed_in_the_call_from_some_on(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    for seed in range(5):
        y, total = worker.run(draw(2, seed))
        np.testing.assert_array_equal(y, expect(draw(2, seed)))
        np.testing.assert_allclose(total, y.sum(), rtol=1e-6)
    assert laps[0] is False and all(laps[-5:])


def test_results_are_the_callers(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    first = worker.run(draw(2, 1))["y"]
    first += 1
    second = worker.run(draw(2, 2))["y"]
    assert laps[-2:] == [True, True]
    np.testing.assert_array_equal(first, expect(draw(2, 1)) + 1)
    np.testing.assert_array_equal(second, expect(draw(2, 2)))
    np.testing.assert_array_equal(worker.read_output("y"), expect(draw(2, 2)))


@pytest.mark.parametrize("form", ["array", "list", "mapping"])
def test_inputs_in_any_form_are_taken(worker: gx.Worker, laps: list[bool], form: str) -> None:
    warm_up(worker)
    x = draw(2, 3)
    given: Any = {"array": x, "list": [x], "mapping": {"x": x}}[form]
    np.testing.assert_array_equal(worker.run(given)["y"], expect(x))
    assert laps[-1]


def test_inputs_with_gaps_are_copied(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    x = np.repeat(draw(2, 3), 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(worker.run(x)["y"], expect(draw(2, 3)))
    assert laps[-1]


def test_sizes_take_turns(worker: gx.Worker, laps: list[bool]) -> None:
    for rows in (2, 3, 5):
        warm_up(worker, rows)
    for rows in (3, 5, 2, 3):
        np.testing.assert_array_equal(worker.run(draw(rows, rows))["y"], expect(draw(rows, rows)))
    assert laps[-4:] == [True] * 4


def test_other_inputs_are_scheduled(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    np.testing.assert_array_equal(worker.run(draw(7))["y"], expect(draw(7)))
    np.testing.assert_array_equal(worker.run(draw(2, 4).tolist())["y"], expect(draw(2, 4)))
    with pytest.raises(gx.errors.InputError, match="expects float32, got float64"):
        worker.run(draw(2).astype(np.float64))
    with pytest.raises(gx.errors.InputError, match="no input 'z'"):
        worker.run({"z": draw(2)})
    assert not any(laps[-4:])
    np.testing.assert_array_equal(worker.run(draw(2, 5))["y"], expect(draw(2, 5)))
    assert laps[-1]


def test_an_output_is_there_by_name_and_stale_behind_the_next_run(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    worker.run(draw(2, 6))
    request, other = worker.peek_output("y").readback_request(), worker.peek_output("total")
    worker.run(draw(2, 7))
    assert laps[-2:] == [True, True]
    np.testing.assert_array_equal(request.result(), expect(draw(2, 6)))
    with pytest.raises(gx.errors.StaleError):
        other.readback_request()
    kept = np.from_dlpack(worker.peek_output("y"))
    worker.run(draw(2, 8))
    np.testing.assert_array_equal(kept, expect(draw(2, 7)))


def test_inputs_that_are_left_out_are_those_of_the_last_run(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    worker.run(draw(2, 9))
    assert laps[-1]
    worker.schedule()
    np.testing.assert_array_equal(worker.read_output("y"), expect(draw(2, 9)))


def test_scheduled_runs_come_in_between(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    run = worker.schedule(draw(2, 10))
    y = worker.run(draw(2, 11))["y"]
    run.wait()
    np.testing.assert_array_equal(y, expect(draw(2, 11)))
    np.testing.assert_array_equal(worker.run(draw(2, 12))["y"], expect(draw(2, 12)))


def test_replaced_weights_are_taken(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    worker.replace_weights({"w": np.ones((4, 3), np.float32)})
    for seed in range(5):
        x = draw(2, seed)
        np.testing.assert_allclose(worker.run(x)["y"], np.maximum(x @ np.ones((4, 3), np.float32), 0), rtol=1e-6)
    assert laps[-1]


def test_trim_and_larger_sizes_let_go_of_what_is_bound(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    worker.trim()
    np.testing.assert_array_equal(worker.run(draw(2, 1))["y"], expect(draw(2, 1)))
    warm_up(worker)
    worker.run(draw(600))
    np.testing.assert_array_equal(worker.run(draw(2, 2))["y"], expect(draw(2, 2)))


def test_branches_that_an_input_decides_are_told_apart(laps: list[bool]) -> None:
    text = """(float[k] x, bool go) => (float[k] y) <float half = {0.5}> {
      wide = Mul (x, half)
      y = If (go) <then_branch = a () => (float[k] p) { p = Add (wide, x) },
                   else_branch = b () => (float[k] q) { q = Neg (wide) }>
    }"""
    x = np.arange(4, dtype=np.float32)
    with gx.Worker(load(text), backend="cpu") as worker:
        for _ in range(3):
            for go, wanted in ((True, 1.5 * x), (False, -0.5 * x)):
                for _ in range(4):
                    np.testing.assert_array_equal(worker.run({"x": x, "go": np.array(go)})[0], wanted)
    assert laps[-16:] == [True] * 16


LARGE = 1 << 18


@pytest.fixture
def large() -> Iterator[gx.Worker]:
    """A Worker of ``y = -(x + few)`` and the sum of ``y``."""
    text = f"""(float[2,{LARGE // 2}] x, float[1] few) => (float[2,{LARGE // 2}] y, float total)
    <int64[2] all = {{0,1}}> {{
      more = Add (x, few) y = Neg (more) total = ReduceSum <keepdims = 0> (y, all)
    }}"""
    with gx.Worker(load(text), backend="cpu") as worker:
        yield worker


def make_large(seed: int) -> dict[str, Array]:
    """Return inputs for it."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, (2, LARGE // 2)).astype(np.float32)
    return {"x": x, "few": rng.integers(1, 9, 1).astype(np.float32)}


def check_large(worker: gx.Worker, count: int, first: int = 0) -> None:
    """Check runs of inputs that are others each time; results stay as they are when later runs come."""
    made = []
    for seed in range(first, first + count):
        given = make_large(seed)
        outputs, expected = worker.run(given), -(given["x"] + given["few"])
        made.append((outputs["y"], expected))
        np.testing.assert_array_equal(outputs["total"], expected.sum())
        given["x"].fill(np.nan)
    for y, expected in made:
        np.testing.assert_array_equal(y, expected)
        assert y.flags.writeable


def test_large_arrays_are_read_and_written_where_they_lie(large: gx.Worker, laps: list[bool]) -> None:
    check_large(large, 9)
    assert laps[-5:] == [True] * 5
    assert {row.name: row.nbytes for row in large.memory_report()}["lane"] < LARGE
    given = make_large(3)
    y = large.run(given)["y"]
    tensor = large.peek_output("y")
    np.testing.assert_array_equal(tensor.readback_request().result(), y)
    check_large(large, 2)
    assert laps[-3:] == [True] * 3


def test_large_inputs_are_the_callers_again_behind_a_lap(large: gx.Worker, laps: list[bool]) -> None:
    check_large(large, 8)
    given = make_large(5)
    kept = weakref.ref(given["x"])
    large.run(given)
    assert laps[-1]
    del given
    assert kept() is None
    with pytest.raises(gx.InputError, match="'x' is missing: the run before read it where it lies"):
        large.run({"few": np.ones(1, np.float32)})
    check_large(large, 2)


def test_large_inputs_with_gaps_and_copies_are_scheduled(large: gx.Worker, laps: list[bool]) -> None:
    check_large(large, 8)
    given = make_large(1)
    apart = np.repeat(given["x"], 2, axis=1)[:, ::2]
    np.testing.assert_array_equal(large.run({**given, "x": apart})["y"], -(given["x"] + given["few"]))
    assert laps[-1] is False
    large.run(given, copy=True)
    assert laps[-1] is False
    given["x"].fill(np.nan)
    again = make_large(1)
    np.testing.assert_array_equal(large.run({"few": given["few"]})["y"], -(again["x"] + again["few"]))
    check_large(large, 4)
    assert laps[-1]


def test_memories_that_are_large_are_scheduled(laps: list[bool]) -> None:
    text = f"(float[{LARGE}] x, float[{LARGE}] sum) => (float[{LARGE}] total) {{ total = Add (x, sum) }}"
    x = np.ones(LARGE, np.float32)
    with gx.Worker(load(text).bind_state({"total": "sum"}), backend="cpu") as worker:
        for _ in range(6):
            worker.run(x)
        np.testing.assert_array_equal(worker.state.get("sum"), 6 * x)
    assert not any(laps)


REMEMBERING = """(float[n] x, float[n] sum, float[2] last) => (float[n] y, float[n] total, float[2] next)
<float half = {0.5}, int64[1] first = {0}, int64[1] two = {2}> {
  shrunk = Mul (sum, half) total = Add (shrunk, x) y = Neg (total)
  seen = Slice (x, first, two) both = Add (last, seen) next = Tanh (both)
}"""


class Remembering:
    """What the model above gives, with its memories."""

    def __init__(self) -> None:
        self.total, self.last = np.zeros(3, np.float32), np.zeros(2, np.float32)

    def run(self, x: Array) -> Array:
        """Return y."""
        self.total = self.total * np.float32(0.5) + x
        self.last = np.tanh(self.last + x[:2])
        return -self.total


@pytest.fixture
def remembering() -> Iterator[gx.Worker]:
    model = load(REMEMBERING).bind_state({"total": "sum", "next": "last"})
    with gx.Worker(model, backend="cpu") as worker:
        yield worker


def check_runs(worker: gx.Worker, expected: Remembering, count: int) -> None:
    """Check runs, and then what memories hold."""
    for seed in range(count):
        x = np.random.default_rng(seed).standard_normal(3, np.float32)
        made = worker.run(x)
        assert list(made) and len(made) == 1
        np.testing.assert_array_equal(made[0], expected.run(x))
    np.testing.assert_array_equal(worker.state.get("sum"), expected.total)
    np.testing.assert_array_equal(worker.state.get("next"), expected.last)


def test_memories_go_from_lap_to_lap(remembering: gx.Worker, laps: list[bool]) -> None:
    expected = Remembering()
    check_runs(remembering, expected, 12)
    assert laps[-8:] == [True] * 8
    check_runs(remembering, expected, 3)
    assert laps[-3:] == [True] * 3


def test_memories_that_are_set_reset_restored_or_replaced_are_taken(remembering: gx.Worker, laps: list[bool]) -> None:
    expected = Remembering()
    check_runs(remembering, expected, 6)
    state = remembering.state
    kept, before = state.snapshot(), (expected.total, expected.last)
    check_runs(remembering, expected, 2)
    state.set({"sum": np.full(3, 7, np.float32)})
    expected.total = np.full(3, 7, np.float32)
    check_runs(remembering, expected, 2)
    assert laps[-2:] == [True] * 2
    state.restore(kept)
    expected.total, expected.last = before
    check_runs(remembering, expected, 2)
    fork = state.fork()
    at_fork = expected.total, expected.last
    check_runs(remembering, expected, 2)
    remembering.state = fork
    expected.total, expected.last = at_fork
    check_runs(remembering, expected, 2)
    assert laps[-6:] == [True] * 6
    fork.reset()
    check_runs(remembering, Remembering(), 5)
    assert laps[-1]


def test_memories_of_scheduled_runs_and_given_ones_are_taken(remembering: gx.Worker, laps: list[bool]) -> None:
    expected = Remembering()
    check_runs(remembering, expected, 6)
    for x in np.eye(3, dtype=np.float32):
        run = remembering.schedule(x)
        expected.run(x)
        check_runs(remembering, expected, 1)
        run.wait()
    check_runs(remembering, expected, 3)
    given = {"x": np.ones(3, np.float32), "sum": np.full(3, 4, np.float32)}
    expected.total = given["sum"]
    np.testing.assert_array_equal(remembering.run(given)[0], expected.run(given["x"]))
    check_runs(remembering, expected, 3)
    assert laps[-2:] == [True] * 2


@pytest.fixture
def growing() -> Iterator[gx.Worker]:
    """A Worker whose memory grows by a row a run; ``y`` is the sum of all, weighed by a mask that grows, too."""
    text = """(float[1,2] x, float[all] mask, float[n,2] past) => (float[2] y, float[2] twice, float[all,2] present) {
      present = Concat <axis = 0> (past, x)
      y = MatMul (mask, present)
      twice = Add (y, y)
    }"""
    model = load(text).bind_state({"present": "past"}, capacity=40)
    with gx.Worker(model, backend="cpu") as worker:
        yield worker


class Rows:
    """What `growing` should hold and give."""

    def __init__(self, rows: Array | None = None) -> None:
        self.rows: Array = np.zeros((0, 2), np.float32) if rows is None else rows

    def check(self, worker: gx.Worker, count: int) -> None:
        """Run so many times, and check what comes and what is left."""
        for _ in range(count):
            x = np.array([[len(self.rows) + 1, 0.5]], np.float32)
            self.rows = np.concatenate([self.rows, x])
            mask = np.arange(1, len(self.rows) + 1, dtype=np.float32)
            made = worker.run({"x": x, "mask": mask})
            np.testing.assert_allclose(made["y"], mask @ self.rows, rtol=1e-5)
            np.testing.assert_allclose(made["twice"], 2 * made["y"], rtol=1e-5)
        np.testing.assert_array_equal(worker.state.get("past"), self.rows)
        assert worker.state.length == len(self.rows)


def test_memories_that_grow_are_appended_to_from_lap_to_lap(growing: gx.Worker, laps: list[bool]) -> None:
    Rows().check(growing, 30)
    assert all(laps[-20:])
    assert growing.report().plans == 1


def test_memories_that_grow_are_cropped_forked_and_restored_between_laps(growing: gx.Worker, laps: list[bool]) -> None:
    rows = Rows()
    rows.check(growing, 14)
    kept, at_kept = growing.state.snapshot(), rows.rows
    rows.check(growing, 3)
    growing.state.crop(9)
    rows.rows = rows.rows[:9]
    rows.check(growing, 3)
    growing.state.restore(kept)
    rows.rows = at_kept
    rows.check(growing, 4)
    own, fork, at_fork = growing.state, growing.state.fork(), rows.rows
    rows.check(growing, 2)
    growing.state = fork
    Rows(at_fork).check(growing, 4)
    growing.state = own
    rows.check(growing, 6)
    growing.schedule({"x": np.zeros((1, 2), np.float32), "mask": np.ones(len(rows.rows) + 1, np.float32)})
    rows.rows = np.concatenate([rows.rows, np.zeros((1, 2), np.float32)])
    rows.check(growing, 3)
    assert laps[-1]
    growing.state.set({"past": rows.rows[:5]})
    Rows(rows.rows[:5]).check(growing, 8)
    assert laps[-1]
    growing.state.reset()
    Rows().check(growing, 12)
    assert laps[-1]


def test_a_full_memory_and_a_mask_of_another_length_are_refused_behind_laps(
    growing: gx.Worker, laps: list[bool]
) -> None:
    rows, x = Rows(), np.zeros((1, 2), np.float32)
    rows.check(growing, 20)
    assert laps[-1]
    with pytest.raises(gx.errors.InputError):
        growing.run({"x": x, "mask": np.ones(20, np.float32)})
    rows.check(growing, 20)
    assert laps[-1]
    with pytest.raises(gx.errors.InputError, match="full"):
        growing.run({"x": x, "mask": np.ones(41, np.float32)})
    assert growing.state.length == 40


def test_run_that_fails_leaves_memories_as_they_are(laps: list[bool]) -> None:
    text = """(float[2] x, int64 at, float[2] sum) => (float y, float[2] total) {
      total = Add (sum, x) y = Gather (total, at)
    }"""
    x = np.ones(2, np.float32)
    with gx.Worker(load(text).bind_state({"total": "sum"}), backend="cpu") as worker:
        for count in range(1, 7):
            assert worker.run({"x": x, "at": np.array(0)})[0] == count
        assert laps[-1]
        with pytest.raises(gx.errors.GpuexecError, match="index 2"):
            worker.run({"x": x, "at": np.array(2)})
        for count in range(7, 10):
            assert worker.run({"x": x, "at": np.array(1)})[0] == count


def test_error_of_a_call_names_the_node_and_the_worker_goes_on() -> None:
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"], name="pick", axis=0)]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2]),
        helper.make_tensor_value_info("at", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])]
    model = helper.make_model(
        helper.make_graph(nodes, "picks", inputs, outputs), opset_imports=[helper.make_opsetid("", 18)]
    )
    x, good, bad = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 2]), np.array([0, 3])
    with gx.Worker(model, backend="cpu") as worker:
        for _ in range(2):
            for _ in range(4):
                np.testing.assert_array_equal(worker.run({"x": x, "at": good})[0], x[[0, 2]])
            with pytest.raises(gx.errors.GpuexecError, match="pick"):
                worker.run({"x": x, "at": bad})


def test_a_second_caller_is_refused(worker: gx.Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up(worker)
    refused: list[BaseException] = []
    own = Lane.run

    def run(self: Lane, model: gx.Model, inputs: object, *, copies: bool) -> object:
        def enter() -> None:
            try:
                worker.run(draw(2))
            except gx.errors.GpuexecError as error:
                refused.append(error)

        other = threading.Thread(target=enter)
        other.start()
        other.join()
        return own(self, model, inputs, copies=copies)

    monkeypatch.setattr(Lane, "run", run)
    worker.run(draw(2))
    assert len(refused) == 1 and isinstance(refused[0], gx.errors.StateError)


@pytest.mark.parametrize("options", [{"synchronous": True}, {"max_bytes": 1 << 24}, {"compare_with": "cpu"}])
def test_workers_with_more_to_do_have_no_lane(laps: list[bool], options: dict[str, Any]) -> None:
    with gx.Worker(make_model(), backend="cpu", **options) as worker:
        warm_up(worker)
    assert not laps


def test_profiled_and_tapped_runs_are_scheduled(worker: gx.Worker, laps: list[bool]) -> None:
    warm_up(worker)
    count = len(laps)
    with gx.Profiler():
        worker.run(draw(2))
    worker.tap({"y": ["max"]})
    worker.run(draw(2))
    assert len(laps) == count
