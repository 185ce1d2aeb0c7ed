"""Fuzzing with bad programs: some hundreds here; ``python -m tests.system.bad_programs`` tries thousands."""

from __future__ import annotations

from collections import Counter

import pytest

import gpuexec as gx
from tests.program.program_seeds import program_bytes
from tests.system.bad_models.command import describe
from tests.system.bad_models.pool import Row
from tests.system.bad_programs.__main__ import try_programs
from tests.system.bad_programs.attempt import attempt, judge
from tests.system.bad_programs.mutant import Mutant, make_mutant
from tests.system.bad_programs.parts import Parts

COUNT = 400


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(try_programs(range(COUNT)))


def test_no_mutant_is_bad(rows: list[Row]) -> None:
    bad = [describe(row) for row in rows if row.outcome.is_bad]
    assert not bad, "\n".join(bad)
    assert sorted(row.number for row in rows) == list(range(COUNT))


def test_mutants_are_of_many_kinds(rows: list[Row]) -> None:
    kinds = Counter(row.outcome.kind for row in rows)
    assert kinds["refused"] > COUNT // 3 and kinds["ran"] > COUNT // 20, kinds
    assert {"ModelError", "UnsupportedError"} <= {row.outcome.error for row in rows}
    assert len({name for row in rows for name in row.mutant.split(" by ")[1].split(", ")}) >= 19


def test_same_number_is_the_same_mutant() -> None:
    good = program_bytes()
    assert [make_mutant(n, good) for n in range(20)] == [make_mutant(n, good) for n in range(20)]


def test_good_program_runs() -> None:
    good = program_bytes()
    assert attempt(Mutant(0, (), good, True), good).kind == "ran"
    assert attempt(Mutant(0, (), good, False), good).kind == "ran"


def test_program_read_as_something_else_is_bad() -> None:
    good = program_bytes()
    parts = Parts.take_apart(good)
    parts.program["writer"] = "others"
    other = parts.put_together()
    assert other != good
    assert attempt(Mutant(0, (), other, True), good).error == "altered"


@pytest.mark.parametrize(
    ("error", "is_bad"),
    [
        (gx.ModelError("The file was cut."), False),
        (gx.ModelError(""), True),
        (gx.ModelError("x" * 10_000), True),
        (KeyError("methods"), True),
        (RecursionError("deep"), True),
    ],
)
def test_error_is_bad_unless_it_is_ours_and_can_be_read(error: Exception, is_bad: bool) -> None:
    assert judge(error).is_bad is is_bad
