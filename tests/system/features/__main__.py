"""Feature list from the command line: the tests marked with its rows are run, and the list printed with the results.

    python -m tests.system.features                 all rows
    python -m tests.system.features --missing       only rows that must be there and have no test, or a failing one
    python -m tests.system.features -k "readback"   further arguments are pytest's; rows not run are counted as not run

Exit status 1 if a test failed, or if a mark names a row that the list does not have.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from tests.system.features.marks import find_tests
from tests.system.features.rows import ROWS
from tests.system.features.table import Outcomes, format_table, format_totals

TESTS = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> int:
    """Run the tests, print the table, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.features", description=__doc__.splitlines()[0])
    parser.add_argument("--missing", action="store_true", help="print rows that lack a passing test only")
    options, rest = parser.parse_known_args(arguments)
    outcomes = Outcomes()
    tests = sorted({str(TESTS / test) for tests in find_tests(TESTS).values() for test in tests})
    ended = pytest.main([*tests, "-q", "--no-header", "-p", "no:cacheprovider", *rest], plugins=[outcomes])
    print()
    print("\n".join(format_table(ROWS, outcomes, only_missing=options.missing)))
    print()
    print("\n".join(format_totals(ROWS, outcomes)))
    unknown = sorted(set(outcomes.counts) - set(ROWS))
    if unknown:
        print(f"Marks name rows that the list does not have: {', '.join(unknown)}.")
    return 1 if unknown or ended not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
