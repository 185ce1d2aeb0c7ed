"""Fuzzing with bad models: 200 of them here; ``python -m tests.system.bad_models --count 1000`` tries more."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

import gpuexec as gx
import tests.system.bad_models.mutations  # noqa: F401  (fills the table)
from tests.system.bad_models.attempt import Outcome, attempt, judge
from tests.system.bad_models.command import describe, tabulate
from tests.system.bad_models.mutant import make_mutant
from tests.system.bad_models.pool import Row, try_mutants
from tests.system.bad_models.seeds import build_text, list_seeds

COUNT = 200
# A process in place of the one that tries mutants: 1 dies, 2 blocks for good.
STRANGE_CHILD = """
import json, os, sys, threading
for number in map(int, sys.argv[2:]):
    print(json.dumps({"begin": number, "mutant": str(number)}), flush=True)
    if number == 1:
        os.abort()
    if number == 2:
        threading.Event().wait()
    print(json.dumps({"end": number, "seconds": 0, "kind": "ran", "error": "", "message": ""}), flush=True)
"""


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    # Users' models would be seeds too; the same mutants everywhere need the same seeds.
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GPUEXEC_MODELS", raising=False)
        return list(try_mutants(range(COUNT)))


def test_no_mutant_is_bad(rows: list[Row]) -> None:
    bad = [describe(row) for row in rows if row.outcome.is_bad]
    assert not bad, "\n".join(bad)
    assert sorted(row.number for row in rows) == list(range(COUNT))


def test_mutants_are_of_many_kinds(rows: list[Row]) -> None:
    assert sum(row.outcome.kind == "ran" for row in rows) > COUNT // 20, "most mutants of a graph must be read"
    errors = Counter(row.outcome.error for row in rows)
    assert {"ModelError", "UnsupportedError", "InputError", "OutOfMemoryError"} <= set(errors)
    assert len({row.mutant.split(" by ")[1] for row in rows}) > 60


def test_same_number_is_the_same_mutant() -> None:
    seeds = list_seeds()
    for number in range(20):
        first, second = make_mutant(number, seeds), make_mutant(number, seeds)
        assert (first.content, dict(first.beside), str(first)) == (second.content, dict(second.beside), str(second))


@pytest.mark.parametrize("name", [n.removeprefix("text/") for n in list_seeds() if n.startswith("text/")])
def test_seed_that_was_written_for_this_runs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "seed.onnx"
    path.write_bytes(build_text(name).SerializeToString())
    assert attempt(path, 0) == Outcome("ran")


def test_process_that_dies_or_hangs_counts_as_bad_and_the_rest_goes_on() -> None:
    rows = try_mutants(range(4), child=(sys.executable, "-c", STRANGE_CHILD), limit_s=3.0)
    assert {row.number: row.outcome.error or row.outcome.kind for row in rows} == {
        0: "ran",
        1: "crash",
        2: "hang",
        3: "ran",
    }


@pytest.mark.parametrize(
    ("error", "is_bad"),
    [
        (gx.ModelError("Relu 'y': input %z is made by no node."), False),
        (gx.InputError("something is wrong", node="y"), False),
        (gx.InputError("something is wrong"), True),
        (KeyError("raw"), True),
    ],
)
def test_error_is_bad_unless_it_is_ours_and_names_a_place(error: Exception, is_bad: bool) -> None:
    assert judge(error).is_bad == is_bad


def test_error_with_a_raw_one_behind_it_is_bad() -> None:
    error = gx.InputError("Relu 'y' failed", node="y")
    error.__cause__ = TypeError("no")
    assert judge(error).is_bad


def test_bad_mutant_is_in_the_table() -> None:
    row = Row(7, "7: seed by truncate", Outcome("bad", "ValueError", "why"), 0.1)
    assert "bad      ValueError                    1" in tabulate([row])
    assert "ValueError: why" in describe(row)
