"""Fuzzing with bad program files from the command line: a table of the outcomes.

python -m tests.system.bad_programs --count 3000 [--seed 0] [--device simulator] [--only NUMBER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tests.program.program_seeds import program_bytes
from tests.system.bad_models.command import run_command
from tests.system.bad_models.pool import Row, Settings, try_mutants
from tests.system.bad_programs.attempt import attempt
from tests.system.bad_programs.mutant import make_mutant

CHILD = (sys.executable, "-m", "tests.system.bad_programs.child")


def main() -> int:
    """Return 1 if a mutant was bad."""
    return run_command("tests.system.bad_programs", "programs", CHILD, try_here)


def try_programs(numbers: Sequence[int]) -> Iterator[Row]:
    """Yield what becomes of each mutant."""
    return try_mutants(numbers, child=CHILD)


def try_here(number: int, settings: Settings) -> int:
    """Try one mutant in this process."""
    good = program_bytes()
    mutant = make_mutant(number, good)
    print(mutant)
    outcome = attempt(mutant, good, settings.device)
    print(outcome.kind, outcome.error, outcome.message, sep="\n")
    return int(outcome.is_bad)


if __name__ == "__main__":
    sys.exit(main())
