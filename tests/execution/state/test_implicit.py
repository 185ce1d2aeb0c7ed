"""Implicit memories: recurrent layers without initial state continue from the run before."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.small_models import CPU
from tests.model.state_models import recurrent

NAMES = ["lstm.initial_h", "lstm.initial_c", "gru.initial_h"]


def make_sequence(steps: int, batch: int = 2) -> np.ndarray:  # type: ignore[type-arg]
    return np.random.default_rng(3).standard_normal((steps, batch, 5)).astype(np.float32)


@pytest.mark.feature("B40", "S28")
def test_each_layer_without_a_start_has_memories() -> None:
    plain, model = gx.load(recurrent()), gx.load(recurrent(), memories="implicit")
    assert plain.memories == ()
    assert [memory.input for memory in model.memories] == NAMES
    assert [memory.output for memory in model.memories] == ["lstm.Y_h", "lstm.Y_c", "gru.Y_h"]
    assert [memory.shape for memory in model.memories] == [(1, None, 4), (1, None, 4), (1, None, 3)]
    assert all(memory.dtype == np.float32 and memory.is_implicit for memory in model.memories)
    assert (model.inputs, model.outputs) == (plain.inputs, plain.outputs)
    assert model.memories[0].zeros(2).shape == (1, 2, 4)


@pytest.mark.feature("B40", "S28")
def test_shapes_are_bound_at_load_where_dims_are() -> None:
    model = gx.load(recurrent(), memories="implicit", dims={"steps": 3, "batch": 2})
    assert [memory.shape for memory in model.memories] == [(1, 2, 4), (1, 2, 4), (1, 2, 3)]
    for memory in model.memories:
        assert memory.zeros().shape == memory.shape and not memory.zeros().any()


@pytest.mark.feature("B41")
def test_shapes_do_not_wait_for_dims_they_do_not_depend_on(backend: Backend) -> None:
    model = gx.load(recurrent(), memories="implicit", dims={"batch": 2})
    assert [memory.shape for memory in model.memories] == [(1, 2, 4), (1, 2, 4), (1, 2, 3)]
    with gx.Worker(model, backend=backend) as worker:
        np.testing.assert_array_equal(worker.state.get("lstm.initial_h"), np.zeros((1, 2, 4), np.float32))
        worker.run(make_sequence(3))


@pytest.mark.feature("B40", "S28")
def test_sequence_in_pieces_is_the_sequence_whole(backend: Backend) -> None:
    xs = make_sequence(12)
    with (
        gx.Worker(gx.load(recurrent()), backend=backend) as whole,
        gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker,
    ):
        expected = whole.run(xs)
        assert [memory.shape for memory in worker.state.memories] == [(1, None, 4), (1, None, 4), (1, None, 3)]
        for start in (0, 3, 4, 9):
            got = worker.run(xs[start : {0: 3, 3: 4, 4: 9, 9: 12}[start]])
        for each, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(each, other, rtol=1e-6, atol=1e-6)
        assert [memory.shape for memory in worker.state.memories] == [(1, 2, 4), (1, 2, 4), (1, 2, 3)]
        np.testing.assert_array_equal(worker.state.get("gru.Y_h"), got[1])
        # From nothing again.
        worker.state.reset()
        np.testing.assert_array_equal(worker.run(xs[:3])[0], whole.run(xs[:3])[0])


def test_state_that_was_given_is_started_from(backend: Backend) -> None:
    xs = make_sequence(4)
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker:
        worker.run(xs[:2])
        kept = {name: worker.state.get(name) for name in NAMES}
        expected = worker.run(xs[2:])
        worker.state.reset()
        for got, each in zip(worker.run({"x": xs[2:], **kept}), expected, strict=True):
            np.testing.assert_array_equal(got, each)


def test_memories_that_are_not_set_keep_what_they_hold(backend: Backend) -> None:
    xs = make_sequence(6)
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker:
        worker.run(xs[:2])
        kept = {name: worker.state.get(name) for name in NAMES} | {"gru.initial_h": worker.state.memories[2].zeros()}
        worker.state.set({"gru.Y_h": kept["gru.initial_h"]})
        for name, array in kept.items():
            np.testing.assert_array_equal(worker.state.get(name), array)
        plans = worker.report().plans
        expected = worker.run({"x": xs[2:4], **kept})
        worker.state.set(kept)
        worker.state.set({"lstm.Y_c": kept["lstm.initial_c"]})
        for got, each in zip(worker.run(xs[2:4]), expected, strict=True):
            np.testing.assert_array_equal(got, each)
        # Where content comes from decides no plan.
        assert worker.report().plans == plans


def test_other_batch_is_refused_until_reset(backend: Backend) -> None:
    with gx.Worker(gx.load(recurrent(), memories="implicit"), backend=backend) as worker:
        worker.run(make_sequence(2))
        before = worker.state.get()
        with pytest.raises(gx.InputError, match=r"initial_h to be float32\[1,3,4\], got float32\[1,2,4\]"):
            worker.run(make_sequence(2, 3))
        np.testing.assert_array_equal(worker.state.get(), before)
        worker.state.reset()
        assert worker.run(make_sequence(2, 3))[0].shape == (1, 3, 3)


def test_layers_with_a_start_are_left_alone() -> None:
    model = onnx.load_from_string(recurrent())
    model.graph.node[0].input.extend(["", "h0", "c0"])
    for name in ("h0", "c0"):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, [1, "batch", 4]))
    loaded = gx.load(model.SerializeToString(), memories="implicit")
    assert [memory.input for memory in loaded.memories] == ["gru.initial_h"]
    with gx.Worker(loaded, backend=CPU) as worker, pytest.raises(gx.InputError, match=r"input 'h0'.*is missing"):
        worker.run({"x": make_sequence(2)})


def test_only_implicit_is_a_way_to_load_memories() -> None:
    with pytest.raises(gx.InputError, match="'implicit', got 'explicit'"):
        gx.load(recurrent(), memories="explicit")
