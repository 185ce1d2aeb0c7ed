"""Renaming of inputs and outputs, and fixing of dimensions, after loading."""

from __future__ import annotations

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.backend import Backend
from tests.model.editing.test_choosing import run
from tests.model.small_models import affine, expect_affine, ramp
from tests.model.state_models import running_sum

X = ramp(2, 3)


def test_inputs_and_outputs_get_other_names(backend: Backend) -> None:
    named = affine().rename({"x": "image", "y": "a"})
    assert [port.name for port in (*named.inputs, *named.outputs)] == ["image", "a"]
    np.testing.assert_array_equal(run(named, {"image": X}, backend)["a"], expect_affine(X))


def test_names_are_swapped(backend: Backend) -> None:
    np.testing.assert_array_equal(run(affine().rename({"x": "y", "y": "x"}), {"y": X}, backend)["x"], expect_affine(X))


def test_memories_go_by_their_new_names(backend: Backend) -> None:
    named = running_sum().rename({"held": "before", "total": "after", "y": "answer"})
    assert [(memory.input, memory.output) for memory in named.memories] == [("before", "after")]
    with gx.Worker(named, backend=backend) as worker:
        worker.run(X)
        np.testing.assert_array_equal(worker.run(X)[0], 4 * X)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"b": "c"}, "no input or output 'b'; it has x, y"),
        ({"x": "y"}, "two inputs or outputs would be called 'y'"),
        ({"x": ""}, "the new name of 'x' is ''"),
        (["x"], "new names by old ones"),
    ],
)
def test_names_that_can_not_be_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        affine().rename(names)


def test_a_dimension_is_fixed_after_loading(backend: Backend) -> None:
    free = affine()
    fixed = free.bind({"n": 2})
    assert (fixed.dims, free.dims) == ({"n": 2}, {})
    np.testing.assert_array_equal(run(fixed, X, backend)["y"], expect_affine(X))
    with pytest.raises(gx.InputError, match="n"):
        run(fixed, ramp(3, 3), backend)


def test_a_bound_replaces_an_older_one() -> None:
    assert affine().bind({"n": (1, 4)}).bind({"n": 3}).dims == {"n": 3}


def test_a_memory_has_the_extents_that_are_bound() -> None:
    assert running_sum().bind({"n": 5}).memories[0].shape == (5, 3)


@pytest.mark.parametrize("dims", [{"m": 1}, {"n": -1}, {"n": (4, 2)}, {"n": "1"}, 3])
def test_dimensions_that_can_not_be_are_refused(dims: dict[str, int]) -> None:
    with pytest.raises(gx.InputError):
        affine().bind(dims)
