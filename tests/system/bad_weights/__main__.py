"""Fuzzing with bad files of weights and states from the command line: a table of the outcomes.

python -m tests.system.bad_weights --count 3000 [--seed 0] [--device simulator] [--only NUMBER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.system.bad_models.command import run_command
from tests.system.bad_models.pool import Settings
from tests.system.bad_weights.attempt import attempt
from tests.system.bad_weights.mutant import make_mutant

CHILD = (sys.executable, "-m", "tests.system.bad_weights.child")


def main() -> int:
    """Return 1 if a mutant was bad."""
    return run_command("tests.system.bad_weights", "files of weights and states", CHILD, try_here)


def try_here(number: int, settings: Settings) -> int:
    """Try one mutant in this process."""
    mutant = make_mutant(number)
    print(mutant)
    with tempfile.TemporaryDirectory() as folder:
        outcome = attempt(mutant, Path(folder), settings.device)
    print(outcome.kind, outcome.error, outcome.message, sep="\n")
    return int(outcome.is_bad)


if __name__ == "__main__":
    sys.exit(main())
