"""Consistency of the feature list, its tests and the printed table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from tests.system.features.marks import MARK, device_of, find_tests
from tests.system.features.rows import ROWS, Row
from tests.system.features.table import Outcomes, Status, format_table, format_totals

FOLDER = Path(__file__).resolve().parents[2]
FOUND = find_tests(FOLDER)
# Rows that must be there and are proved; the rest says in its row why not.
MIN_MUSTS = 159


def test_every_mark_names_rows_that_are_there() -> None:
    assert [row for row in FOUND if row not in ROWS] == []


def test_every_row_is_tested_or_says_why_not() -> None:
    assert [row.number for row in ROWS.values() if row.number not in FOUND and not row.reason] == []


def test_reasons_are_sentences_that_put_nothing_off() -> None:
    missing = {row.number for row in ROWS.values() if row.judgement in "MT" and row.number not in FOUND}
    reasons = {row.number: row.reason for row in ROWS.values() if row.reason and row.number not in missing}
    assert [number for number, reason in reasons.items() if len(reason.split()) < 6 or "later" in reason.split()] == []
    assert [row.number for row in ROWS.values() if row.judgement == "N" and row.number not in reasons] == []


def test_a_row_that_is_tested_is_not_put_off() -> None:
    assert [row.number for row in ROWS.values() if row.number in FOUND and row.judgement != "N" and row.reason] == []


def test_most_of_what_must_be_there_is_tested() -> None:
    musts = [row.number for row in ROWS.values() if row.judgement == "M"]
    assert Counter(row.judgement for row in ROWS.values()) == {"M": 159, "S": 56, "N": 12, "T": 13, "-": 1}
    assert sum(number in FOUND for number in musts) >= MIN_MUSTS


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ('@pytest.mark.feature("B24")\ndef test_inputs(): ...', {"B24": ["test_x.py::test_inputs"]}),
        (
            '@pytest.mark.feature("B24", "T13")\n@pytest.mark.long\nasync def test_inputs(): ...',
            {"B24": ["test_x.py::test_inputs"], "T13": ["test_x.py::test_inputs"]},
        ),
        ("@pytest.mark.long\ndef test_b24(): ...", {}),
    ],
)
def test_rows_are_read_from_marks(source: str, rows: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(source)
    assert find_tests(tmp_path) == rows


def test_every_mark_stands_on_a_function_that_is_found() -> None:
    tests = {test for tests in FOUND.values() for test in tests}
    found = Counter(test.partition("::")[0] for test in tests)
    others = [path for path in FOLDER.rglob("test_*.py") if path != Path(__file__).resolve()]
    marks = {path.relative_to(FOLDER).as_posix(): path.read_text().count(f"@{MARK}(") for path in others}
    assert found == Counter({path: count for path, count in marks.items() if count})


@pytest.mark.parametrize(
    ("params", "column"),
    [
        ({"backend": "cpu", "rows": 3}, "cpu"),
        ({"backend": gx.BackendType.SIMULATOR, "x": np.zeros(2)}, "simulator"),
        ({"method": (gx.BackendType.CPU, True)}, "cpu"),
        ({"backend": "tracer"}, "other"),
        ({"one": "cpu", "other": "simulator"}, "other"),
    ],
)
def test_a_test_counts_for_the_device_of_its_parameters(params: dict[str, object], column: str) -> None:
    assert device_of(params) == column


def test_the_table_distinguishes_passed_failed_and_missing() -> None:
    rows = {
        number: Row(number, judgement, "what it is", reason)
        for number, judgement, reason in (
            ("B1", "M", ""),
            ("B2", "M", ""),
            ("B3", "M", "next"),
            ("B4", "S", ""),
            ("B5", "N", "no"),
            ("B6", "M", ""),
        )
    }
    outcomes = Outcomes(
        {
            "B1": Counter({("cpu", "passed"): 2, ("simulator", "passed"): 1}),
            "B2": Counter({("cpu", "passed"): 1, ("simulator", "failed"): 1}),
            "B6": Counter(),
        }
    )
    statuses = [outcomes.status(row) for row in rows.values()]
    assert statuses == [
        Status.TESTED,
        Status.FAILED,
        Status.MISSING,
        Status.LATER,
        Status.NOT,
        Status.NOT_RUN,
    ]
    table = [line.split() for line in format_table(rows, outcomes)]
    assert table[1] == ["B1", "M", "2", "1", "-", "tested", "what", "it", "is"]
    assert table[2] == ["B2", "M", "1", "1", "FAILED", "-", "FAILED", "what", "it", "is"]
    assert table[3] == ["B3", "M", "-", "-", "-", "missing", "what", "it", "is", "(next)"]
    only = format_table(rows, outcomes, only_missing=True)
    assert [line.split()[0] for line in only] == ["row", "B2", "B3", "B6"]
    totals = format_totals(rows, outcomes)
    assert totals[0].split(": ", 1)[1].strip() == "4 rows: 1 tested, 1 FAILED, 1 not run, 1 missing".strip()
    assert totals[-1].split() == ["missing:", "B3"]
