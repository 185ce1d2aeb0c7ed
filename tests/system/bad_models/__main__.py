"""Fuzzing with bad models from the command line: a table of the outcomes.

python -m tests.system.bad_models --count 1000 [--seed 0] [--device simulator] [--seeds FOLDER] [--only NUMBER]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import tests.system.bad_models.mutations  # noqa: F401  (fills the table)
from tests.system.bad_models.attempt import attempt
from tests.system.bad_models.command import run_command
from tests.system.bad_models.mutant import make_mutant
from tests.system.bad_models.pool import CHILD, Settings
from tests.system.bad_models.seeds import list_seeds


def main() -> int:
    """Return 1 if a mutant was bad."""
    return run_command("tests.system.bad_models", "models", CHILD, try_here, takes_folder=True)


def try_here(number: int, settings: Settings) -> int:
    """Try one mutant in this process, with the trace of what it raises."""
    mutant = make_mutant(number, list_seeds(Path(settings.folder) if settings.folder else None))
    print(mutant)
    with tempfile.TemporaryDirectory() as place:
        outcome = attempt(mutant.write(Path(place)), number, settings.device)
    print(outcome.kind, outcome.error, outcome.message, sep="\n")
    return int(outcome.is_bad)


if __name__ == "__main__":
    sys.exit(main())
