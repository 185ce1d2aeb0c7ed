"""Traces of sizes: decoding plans a few lengths, and all others by rows, with the results that planning each gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.execution.runs.size_traces import SizeTraces
from gpuexec.planner.template import Template
from tests.bench.host_time import open_tracer
from tests.planner.test_symbolic_variant import DECODERS

STEPS = 60


def decode(backend: object, name: str = "gpt2", steps: int = STEPS) -> Iterator[tuple[gx.Worker, list[np.ndarray]]]:
    """Yield the results of each step."""
    bench = DECODERS[name]()
    rng = np.random.default_rng(5)
    with gx.Worker(bench.load(), backend=backend) as worker:  # type: ignore[arg-type]
        for step in range(steps):
            feeds = {"input_ids": rng.integers(0, 99, (1, 1)), "position_ids": np.full((1, 1), step)}
            yield worker, [np.asarray(each) for each in worker.run(feeds)]


@pytest.fixture
def specialised(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Sizes that were planned by themselves."""
    met: list[object] = []
    real = Template.specialise

    def note(self: Template, inputs: dict[str, object]) -> object:
        met.append(inputs)
        return real(self, inputs)  # type: ignore[arg-type]

    monkeypatch.setattr(Template, "specialise", note)
    return met


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("backend", ["cpu", "simulator"])
def test_results_are_those_of_planning_each_size(backend: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 30 if backend == "simulator" else STEPS
    traced = [made for _, made in decode(backend, name, steps)]
    monkeypatch.setattr(SizeTraces, "learn", lambda *_: None)
    apart = [made for _, made in decode(backend, name, steps)]
    for got, expected in zip(traced, apart, strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_trace_serves_lengths_of_several_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention over a cache is divided alike at every length; a class that is met first is planned, not traced."""
    traced: list[object] = []
    real = Template.trace
    monkeypatch.setattr(Template, "trace", lambda self, *given: traced.append(given) or real(self, *given))
    bench = replace(DECODERS["gpt2"](), precision="fp16")
    with gx.Worker(bench.load(), backend=open_tracer()) as worker:
        for length in range(250):
            worker.schedule({"input_ids": bench.inputs["input_ids"], "position_ids": np.full((1, 1), length)})
            if length == 80:
                begun = len(traced)
        assert worker.report().variants < 20
    assert len(traced) == begun


def test_few_lengths_are_planned_by_themselves(specialised: list[object]) -> None:
    bench = DECODERS["llama"]()
    with gx.Worker(bench.load(), backend=open_tracer()) as worker:
        for length in range(250):
            worker.schedule({"input_ids": bench.inputs["input_ids"], "position_ids": np.full((1, 1), length)})
        first = len(specialised)
        assert worker.report().variants < 40
        worker.state.reset()
        for length in range(250):
            worker.schedule({"input_ids": bench.inputs["input_ids"], "position_ids": np.full((1, 1), length)})
        assert len(specialised) - first < 10


def test_what_needs_digits_is_planned_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trace that holds for one size alone is dropped, and after a few the plan is traced no more."""
    real, traces = Template.trace, list[object]()

    def tie(self: Template, *given: object) -> object:
        made = real(self, *given)  # type: ignore[arg-type]
        made.tied["somewhere"] = 1
        traces.append(made)
        return made

    monkeypatch.setattr(Template, "trace", tie)
    with caplog.at_level("INFO", "gpuexec"):
        results = [made for _, made in decode("cpu")]
    assert len(results) == STEPS and 0 < len(traces) <= 10
    assert "planned one by one: its extents are needed as digits by somewhere" in caplog.text


def test_content_that_grows_with_sizes_is_left_to_the_device(specialised: list[object]) -> None:
    """A causal mask of arange: its content is known on the host, and no row of numbers could hold it."""

    def masked(x: Any) -> Any:
        places = gx.fn.arange(x.shape[0])
        return gx.fn.where(places[:, None] >= places[None, :], x @ x.T, np.float32(0))

    model = gx.graph(masked, [("float32", ("n", 4))])
    for backend in ("cpu", "simulator"):
        with gx.Worker(model, backend=backend) as worker:
            before = len(specialised)
            for rows in range(70, 100):
                x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
                np.testing.assert_allclose(np.asarray(worker.run(x)[0]), np.tril(x @ x.T), rtol=1e-5, atol=1e-6)
            assert len(specialised) - before < 20


def test_batches_of_any_size_share_a_trace(specialised: list[object]) -> None:
    model = gx.graph(lambda x: gx.fn.softmax(x @ np.ones((8, 8), np.float32), axis=-1) * 2, [("float32", ("n", 8))])
    with gx.Worker(model, backend="cpu") as worker:
        for rows in (130, 150, 140, 200, 131, 255, 170, 199, 201):
            x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
            y = np.asarray(worker.run(x)[0])
            scores = np.exp((x @ np.ones((8, 8), np.float32)).astype(np.float64))
            np.testing.assert_allclose(y, 2 * scores / scores.sum(1, keepdims=True), rtol=1e-5)
    assert len(specialised) <= 6
