"""Seeds of random operators: repetition, variation, and equality on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from tests.execution.state.drawing import CPU, SIMULATOR, X, draw, draw_all, load
from tests.model.small_models import Array


@pytest.fixture(params=[CPU, SIMULATOR, gx.BackendType.SIMULATOR_PIXEL], ids=lambda each: each.value)
def backend(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_every_run_draws_anew_and_the_same_seed_repeats_the_runs(backend: gx.BackendType) -> None:
    model = load()
    first = draw_all(model, 6, backend=backend, seed=7)  # more runs than a graph waits for
    assert len(set(first)) == 6
    assert draw_all(model, 6, backend=backend, seed=7) == first
    assert not set(draw_all(model, 6, backend=backend, seed=8)) & set(first)


def test_every_device_draws_the_same() -> None:
    model = load(
        "(float[n] x, float[2, 5] l, float[n] p) => (float[n] a, float16[3] b, int32[2, 4] c, float[n] d, float[n] e) {"
        " a = RandomNormalLike <mean = 2.0> (x) b = RandomNormal <shape = [3], dtype = 10> ()"
        " c = Multinomial <sample_size = 4> (l) d = Bernoulli (p) t = Constant <value = bool {1}> ()"
        " r = Constant <value = float {0.25}> () e = Dropout (a, r, t) }"
    )
    inputs = {"x": X, "l": np.arange(10, dtype=np.float32).reshape(2, 5) / 3, "p": np.full(8, 0.5, np.float32)}
    assert draw_all(model, 3, inputs, backend=CPU, seed=5) == draw_all(model, 3, inputs, backend=SIMULATOR, seed=5)


def test_nodes_alike_draw_apart(backend: gx.BackendType) -> None:
    with gx.Worker(load(), backend=backend, seed=1) as worker:
        a, b = draw(worker)
    assert not np.any(a == b)


def test_node_with_a_seed_repeats_in_any_worker(backend: gx.BackendType) -> None:
    text = "(float[n] x) => (float[n] a) { a = RandomUniformLike <seed = 3.0> (x) }"
    longer = text.replace("{", "{ u = RandomNormalLike (x)").replace("> (x)", "> (u)")
    first = draw_all(load(text), 3, backend=backend)
    assert len(set(first)) == 3
    assert draw_all(load(text), 3, backend=backend, seed=99) == first
    assert draw_all(load(longer), 3, backend=backend) == first


def test_seed_of_the_process_gives_workers_seeds_in_order() -> None:
    model = load()
    gx.set_seed(4)
    first = [draw_all(model, 2, backend=CPU) for _ in range(2)]
    assert first[0] != first[1]
    gx.set_seed(4)
    assert [draw_all(model, 2, backend=CPU) for _ in range(2)] == first
    gx.set_seed(5)
    assert draw_all(model, 2, backend=CPU) not in first


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint8])
def test_seed_may_be_a_number_of_numpy(dtype: Any) -> None:
    model, seed = load(), dtype(200)
    gx.set_seed(200)
    expected = draw_all(model, 2, backend=CPU), draw_all(model, 2, backend=CPU, seed=200)
    gx.set_seed(seed)
    assert (draw_all(model, 2, backend=CPU), draw_all(model, 2, backend=CPU, seed=seed)) == expected


def test_without_any_seed_workers_differ() -> None:
    model = load()
    assert draw_all(model, 1, backend=CPU) != draw_all(model, 1, backend=CPU)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "a"])
def test_bad_seed_is_refused_and_changes_nothing(seed: Any) -> None:
    model = load()
    for call in (gx.set_seed, lambda each: gx.Worker(model, backend=CPU, seed=each)):
        with pytest.raises(gx.InputError, match=r"A seed is a whole number from 0 to 2\*\*64 - 1, got"):
            call(seed)
    with gx.Worker(model, backend=CPU, seed=3) as worker:
        first = draw(worker)[0]
        with pytest.raises(gx.InputError, match="A seed is a whole number"):
            worker.state.seed(seed)
        worker.state.reset()
        np.testing.assert_array_equal(draw(worker)[0], first)


def test_state_is_rewound_kept_and_forked(backend: gx.BackendType) -> None:
    with gx.Worker(load(), backend=backend, seed=2**64 - 1) as worker:
        runs = [draw(worker)[0]]
        kept = worker.state.snapshot()
        fork = worker.state.fork()
        runs += [draw(worker)[0] for _ in range(2)]
        worker.state.restore(kept)
        np.testing.assert_array_equal(draw(worker)[0], runs[1])
        worker.state.reset()
        np.testing.assert_array_equal(draw(worker)[0], runs[0])
        worker.state.seed(9)
        assert not np.any(draw(worker)[0] == runs[0])
        worker.state = fork
        np.testing.assert_array_equal(draw(worker)[0], runs[1])
        np.testing.assert_array_equal(draw(worker)[0], runs[2])
        fork.reset()
        np.testing.assert_array_equal(draw(worker)[0], runs[0])


def test_state_in_a_file_goes_on_where_it_was(tmp_path: Any) -> None:
    model = load()
    with gx.Worker(model, backend=CPU, seed=1) as worker:
        draw(worker)
        worker.state.save(tmp_path / "state.safetensors")
        second = draw(worker)[0]
    with gx.Worker(model, backend=CPU) as worker:
        worker.state.load(tmp_path / "state.safetensors")
        np.testing.assert_array_equal(draw(worker)[0], second)


def test_failed_run_draws_nothing() -> None:
    text = "(float[n] x, float[m] y) => (float[n] a, float[k] s) { a = RandomUniformLike (x) s = Add (x, y) }"
    with gx.Worker(load(text), backend=CPU, seed=1) as worker:
        first = draw(worker, {"x": X, "y": X})[0]
        with pytest.raises(gx.GpuexecError):
            worker.run({"x": X, "y": np.zeros(3, np.float32)})
        second = draw(worker, {"x": X, "y": X})[0]
    with gx.Worker(load(text), backend=CPU, seed=1) as worker:
        assert [draw(worker, {"x": X, "y": X})[0].tobytes() for _ in range(2)] == [first.tobytes(), second.tobytes()]


def test_model_without_chance_has_no_key_and_takes_a_seed() -> None:
    model = load("(float[n] x) => (float[n] y) { y = Neg (x) }")
    assert not model.memories
    with gx.Worker(model, backend=CPU, seed=1) as worker:
        worker.run(X)


def test_dropout_asks_its_mode_while_planning(backend: gx.BackendType) -> None:
    text = "(float[n] x, bool t) => (float[n] y) { y = Dropout (x, , t) }"
    ones = np.ones(64, np.float32)
    with gx.Worker(load(text), backend=backend, seed=1) as worker:
        np.testing.assert_array_equal(draw(worker, {"x": ones, "t": np.array(False)})[0], ones)
        dropped = draw(worker, {"x": ones, "t": np.array(True)})[0]
        assert set(np.unique(dropped)) == {0.0, 2.0}
        assert np.any(draw(worker, {"x": ones, "t": np.array(True)})[0] != dropped)


LOOP = """(int64 trips, float[n] x) => (float[k, n] rows) {
    yes = Constant <value = bool {1}> ()
    rows = Loop (trips, yes) <body = each (int64 i, bool go) => (bool again, float[n] row) {
        again = Identity (go) row = RandomUniformLike (x) }>
}"""
SCAN = """(float[k, n] x) => (float[k, n] rows) {
    rows = Scan <num_scan_inputs = 1, body = each (float[n] slice) => (float[n] row) {
        row = RandomUniformLike (slice) }> (x)
}"""
BRANCH = """(bool c, float[n] x) => (float[n] a, float[n] y) {
    a = RandomUniformLike (x)
    y = If (c) <then_branch = yes () => (float[n] u) { u = RandomUniformLike (x) },
        else_branch = no () => (float[n] v) { v = RandomNormalLike (x) }>
}"""
INNER = {"trips": np.array(5), "x": X}


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        (LOOP, {"trips": np.array(5), "x": X}),
        (SCAN, {"x": np.zeros((5, 8), np.float32)}),
        (LOOP.replace("RandomUniformLike", "RandomUniformLike <seed = 1.0>"), {"trips": np.array(5), "x": X}),
    ],
    ids=["loop", "scan", "loop with a seed"],
)
def test_every_trip_draws_anew(backend: gx.BackendType, text: str, inputs: dict[str, Array]) -> None:
    model = load(text)
    with gx.Worker(model, backend=backend, seed=3) as worker:
        first, second = draw(worker, inputs)[0], draw(worker, inputs)[0]
    assert len(np.unique(np.concatenate([first, second]))) == 2 * 5 * 8
    assert draw_all(model, 2, inputs, backend=CPU, seed=3) == [first.tobytes(), second.tobytes()]


@pytest.mark.parametrize("condition", [True, False])
def test_branches_draw_apart_from_what_is_around(backend: gx.BackendType, condition: bool) -> None:
    inputs = {"c": np.array(condition), "x": X}
    with gx.Worker(load(BRANCH), backend=backend, seed=3) as worker:
        runs = [draw(worker, inputs) for _ in range(2)]
    assert len(np.unique(np.concatenate([each for run in runs for each in run]))) == 4 * 8
    assert bool(np.any(runs[0][1] < 0)) is not condition  # the other branch draws normal numbers


def test_loop_in_a_loop_draws_anew(backend: gx.BackendType) -> None:
    text = """(float[n] x) => (float[k, j, n] rows) {
        yes = Constant <value = bool {1}> () three = Constant <value = int64 {3}> ()
        rows = Loop (three, yes) <body = outer (int64 i, bool go) => (bool again, float[j, n] part) {
            again = Identity (go)
            part = Loop (three, go) <body = inner (int64 m, bool on) => (bool more, float[n] row) {
                more = Identity (on) row = RandomUniformLike (x) }>
        }>
    }"""
    with gx.Worker(load(text), backend=backend, seed=3) as worker:
        made = draw(worker)[0]
    assert made.shape == (3, 3, 8) and len(np.unique(made)) == 72
