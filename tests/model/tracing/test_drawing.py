"""Random numbers in array programs: seeds, runs without a seed, and distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ops.random.sample_token import SampleToken
from tests.model.tracing.tracing import CPU, SIMULATOR, trace

fn = gx.fn
X = np.zeros((40, 50), np.float32)
WEIGHTS = np.array([0.0, 1.0, 3.0], np.float32)


def draw(function: Any, *arrays: Any, backend: gx.BackendType = CPU, runs: int = 1, free: bool = False) -> list[Any]:
    """Return what each run gives."""
    with gx.Worker(trace(function, *arrays, free=free), backend=backend) as worker:
        return [worker.run(list(arrays)) for _ in range(runs)]


@pytest.mark.parametrize("backend", [CPU, SIMULATOR], ids=str)
def test_numbers_are_distributed_as_they_say(backend: gx.BackendType) -> None:
    def function(x: Any) -> Any:
        return {
            "rand": fn.rand((50, 40)) + x[0, 0],
            "rand_like": fn.rand_like(x),
            "randn": fn.randn((2000,)) + x[0, 0],
            "randn_like": fn.randn_like(x),
            "normal": fn.normal(3.0, 0.5, (2000,)) + x[0, 0],
            "normal_like": fn.normal_like(x, -1.0, 2.0),
            "randint": fn.randint(-3, 4, (2000,)),
            "randint_like": fn.randint_like(x, 2, 5),
            "bernoulli": fn.bernoulli(x + 0.25),
            "multinomial": fn.multinomial(x[0, 0] + WEIGHTS, 2000),
            "random_choice": fn.random_choice(np.array([2, 7, 9]), 2000),
            "shuffled": fn.random_choice(np.arange(9), 9, replace=False),
        }

    model = trace(function, X)
    with gx.Worker(model, backend=backend) as worker:
        drawn = dict(worker.run([X]))
    # Bounds of five standard deviations of a mean of 2000.
    for name, mean, deviation in (
        ("rand", 0.5, 0.29), ("rand_like", 0.5, 0.29), ("randn", 0, 1), ("randn_like", 0, 1), ("normal", 3, 0.5),
        ("normal_like", -1, 2), ("randint", 0, 2), ("randint_like", 3, 0.82), ("bernoulli", 0.25, 0.43),
        ("multinomial", 1.75, 0.43), ("random_choice", 6, 2.94),
    ):  # fmt: skip
        assert drawn[name].size == 2000
        assert abs(float(drawn[name].mean()) - mean) < 5 * deviation / 2000**0.5, name
        assert abs(float(drawn[name].std()) - deviation) < 0.1 * deviation, name
    assert set(np.unique(drawn["randint"])) == set(range(-3, 4)) and drawn["randint"].dtype == np.int64
    assert set(np.unique(drawn["randint_like"])) == {2, 3, 4} and drawn["randint_like"].dtype == np.float32
    assert set(np.unique(drawn["bernoulli"])) == {0, 1}
    assert set(np.unique(drawn["multinomial"])) == {1, 2}
    assert set(np.unique(drawn["random_choice"])) == {2, 7, 9}
    assert sorted(drawn["shuffled"]) == list(range(9)) and list(drawn["shuffled"]) != list(range(9))


def test_a_seed_gives_the_same_numbers_everywhere_and_runs_differ() -> None:
    def function(x: Any) -> Any:
        return fn.rand_like(x, seed=3.0), fn.rand(x.shape, seed=3.0), fn.rand_like(x)

    first, second = draw(function, X, runs=2)
    (other,) = draw(function, X, backend=SIMULATOR)
    np.testing.assert_array_equal(first[0], other[0])
    np.testing.assert_array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0]) and not np.array_equal(first[2], second[2])


def test_two_draws_differ_and_extents_may_be_free() -> None:
    def function(x: Any) -> Any:
        return fn.rand_like(x), fn.rand_like(x), fn.randn((x.shape[0], 3)), fn.multinomial(abs(x) + 1, 4)

    ((first, second, rows, classes),) = draw(function, X, free=True)
    assert not np.array_equal(first, second)
    assert rows.shape == (40, 3) and classes.shape == (40, 4)


SAMPLED = (
    ({}, {}),
    ({"temperature": 0}, {"temperature": 0}),
    (
        {"temperature": np.full(40, 0.5), "top_k": 3, "top_p": np.float64(0.9)},
        {"temperature": 0.5, "top_k": 3, "top_p": 0.9},
    ),
    ({"penalty": 1, "tokens": X[:, :3]}, {}),
    ({"penalty": 1.5, "tokens": X[:, :3].astype(np.int32)}, {"penalty": 1.5, "tokens": X[:, :3].astype(np.int64)}),
    ({"places": np.arange(40), "seed": 2.0}, {"places": np.arange(40), "seed": 2.0}),
)


@pytest.mark.parametrize("backend", [CPU, SIMULATOR], ids=str)
@pytest.mark.parametrize(("given", "meant"), SAMPLED)
def test_tokens_are_those_of_the_operator(
    given: dict[str, Any], meant: dict[str, Any], backend: gx.BackendType
) -> None:
    x = np.random.default_rng(3).standard_normal(X.shape) * 2
    seed = meant.get("seed")
    types = {"temperature": np.float32, "top_k": np.int64, "top_p": np.float32, "penalty": np.float32}
    arrays = {name: np.asarray(value, types.get(name, np.int64)) for name, value in meant.items() if name != "seed"}
    with gx.Worker(trace(lambda x: fn.sample_token(x, **given), x), backend=backend, seed=11) as worker:
        for run in range(2):
            key = np.array([11, run], np.uint64)
            expected = SampleToken(seed=seed, stream=1).compute(x.astype(np.float32), **arrays, key=key)[0]
            np.testing.assert_array_equal(worker.run(x)[0], expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: fn.sample_token(x, penalty=2.0), "tokens and their penalty together"),
        (lambda x: fn.sample_token(x[0]), r"expects logits \[sequences, classes\]"),
        (lambda x: fn.randint(3, 3, (2,)), "from low to before high"),
        (lambda x: fn.rand((2,), np.int64), "drawn as floats, got int64"),
        (lambda x: fn.multinomial(x.astype(np.int32), 2), "takes probabilities"),
        (lambda x: fn.random_choice(np.arange(2), 3, replace=False), "3 elements of 2 can't be drawn"),
    ],
)
def test_what_can_not_be_drawn_is_refused(function: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=r"test_drawing.py:\d+: .*" + message):
        trace(function, X)


def test_a_model_that_draws_may_be_part_of_a_program() -> None:
    inner = trace(lambda x: fn.rand_like(x), X)
    ((first, second),) = draw(lambda x: (*fn.forward(inner, x), *fn.forward(inner, x)), X)
    assert not np.array_equal(first, second)
