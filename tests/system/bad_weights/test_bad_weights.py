"""Fuzzing with bad files of weights: 200 of them here; ``python -m tests.system.bad_weights`` tries more."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.system.bad_models.command import describe
from tests.system.bad_models.pool import Row, Settings, try_mutants
from tests.system.bad_weights.__main__ import CHILD
from tests.system.bad_weights.attempt import attempt
from tests.system.bad_weights.mutant import Mutant, make_mutant
from tests.system.bad_weights.seeds import make_beside, make_npz, make_safetensors, make_state

COUNT = 200
GOOD = {"safetensors": make_safetensors, "npz": make_npz, "state": make_state, "external": make_beside}


@pytest.fixture(scope="module", params=["cpu"])
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return list(try_mutants(range(COUNT), Settings(device=request.param), child=CHILD))


def test_no_mutant_is_bad(rows: list[Row]) -> None:
    bad = [describe(row) for row in rows if row.outcome.is_bad]
    assert not bad, "\n".join(bad)
    assert sorted(row.number for row in rows) == list(range(COUNT))
    assert all(row.peak_nbytes > 0 for row in rows)


def test_mutants_are_of_many_kinds(rows: list[Row]) -> None:
    assert {"ModelError", "InputError", "AccessError"} <= set(Counter(row.outcome.error for row in rows))
    assert sum(row.outcome.kind == "ran" for row in rows) > COUNT // 40
    assert len({row.mutant.split(" by ")[1] for row in rows}) > 60


@pytest.mark.parametrize("device", ["cpu", "simulator"])
@pytest.mark.parametrize("kind", GOOD)
def test_good_file_is_taken(tmp_path, kind: str, device: str) -> None:
    outcome = attempt(Mutant(0, kind, ("nothing",), GOOD[kind]()), tmp_path, device)
    assert outcome.kind == "ran", outcome


def test_same_number_is_the_same_mutant() -> None:
    assert [make_mutant(number) for number in range(50)] == [make_mutant(number) for number in range(50)]
