"""Try many bad programs, and print what became of them.

python -m tests.bad_programs --count 3000 [--first 0] [--only NUMBER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from tests.bad_models.__main__ import describe, tabulate
from tests.bad_models.pool import Row, try_mutants
from tests.bad_programs.attempt import attempt
from tests.bad_programs.mutant import make_mutant
from tests.program_seeds import program_bytes

CHILD = (sys.executable, "-m", "tests.bad_programs.child")


def main() -> int:
    """Return 1 if a mutant was bad."""
    parser = argparse.ArgumentParser(prog="python -m tests.bad_programs", description="Try many bad programs.")
    parser.add_argument("--count", type=int, default=3000, help="how many mutants to try")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--only", type=int, help="try one here, without guards, and show what it says")
    options = parser.parse_args()
    if options.only is not None:
        return try_here(options.only)
    rows = []
    for row in try_programs(range(options.first, options.first + options.count)):
        rows.append(row)
        if row.outcome.is_bad:
            print(describe(row), flush=True)
    print(tabulate(rows))
    return int(any(row.outcome.is_bad for row in rows))


def try_programs(numbers: Sequence[int]) -> Iterator[Row]:
    """Yield what becomes of each mutant."""
    return try_mutants(numbers, child=CHILD)


def try_here(number: int) -> int:
    """Try one mutant in this process."""
    good = program_bytes()
    mutant = make_mutant(number, good)
    print(mutant)
    outcome = attempt(mutant, good)
    print(outcome.kind, outcome.error, outcome.message, sep="\n")
    return int(outcome.is_bad)


if __name__ == "__main__":
    sys.exit(main())
