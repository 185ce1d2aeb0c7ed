"""The soak tests' own detection of growth and faults."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

import gpuexec as gx
from tests.system.soak.companion import load_sums
from tests.system.soak.crowd import Member
from tests.system.soak.growth import Held, find_growth, open_device
from tests.system.soak.models import MODELS, exact_layers

HELD = Held(objects=50_000, traced=1 << 20, rss=90 << 20, device=4096, pinned=0)


@pytest.mark.parametrize(
    ("name", "more"), [("objects", 500), ("traced", 1 << 20), ("rss", 64 << 20), ("device", 1), ("pinned", 4096)]
)
def test_growth_is_named(name: str, more: int) -> None:
    grown = replace(HELD, **{name: getattr(HELD, name) + more})
    assert [problem.split()[0] for problem in find_growth(HELD, grown)] == [name]
    assert find_growth(HELD, HELD) == find_growth(grown, HELD) == []


@pytest.mark.parametrize("name", MODELS)
def test_model_answers_as_expected_for_its_first_and_last_shape(name: str) -> None:
    soak = MODELS[name]()
    with gx.Worker(gx.load(soak.proto), backend=gx.BackendType.CPU) as worker:
        for shape in (soak.shapes[0], soak.shapes[-1]):
            x, expected = soak.case(shape)
            got = worker.run(x)
            for array, wanted in zip(got, expected, strict=True):
                np.testing.assert_allclose(array, wanted, rtol=1e-3, atol=1e-5)


def make_member(offset: float) -> Member:
    proto, expect = exact_layers()
    backend = open_device("cpu")
    moved = lambda x: (expect(x)[0] + np.float32(offset), expect(x)[1])
    return Member(gx.load(proto), backend, moved, 0, load_sums(backend))


@pytest.mark.parametrize("kind", ["cpu", "simulator"])
def test_every_action_of_the_crowd_works(kind: str) -> None:
    proto, expect = exact_layers()
    backend = open_device(kind)
    member = Member(gx.load(proto), backend, expect, 0, load_sums(backend))
    for action in member.list_actions():
        action()
    member.live(time.monotonic())
    assert member.error is None


def test_wrong_answer_ends_a_member_of_the_crowd() -> None:
    member = make_member(offset=1)
    member.live(time.monotonic() + 60)
    assert isinstance(member.error, AssertionError)
