"""Child process of a fuzzing run: limited memory, one line of JSON before and after each bad program.

python -m tests.system.bad_programs.child SETTINGS NUMBER...
"""

from __future__ import annotations

import sys
from functools import partial

from tests.program.program_seeds import program_bytes
from tests.system.bad_models.child import serve
from tests.system.bad_models.pool import Settings
from tests.system.bad_programs.attempt import attempt
from tests.system.bad_programs.mutant import make_mutant

# Beyond what the process maps at its start; a program of 20 KB needs a small part of it.
_ROOM_BYTES = 2 << 30
_PEAK_BYTES = 512 << 20


def main(arguments: list[str]) -> None:
    """Try the mutants of these numbers."""
    settings, good = Settings.read(arguments[0]), program_bytes()

    def make(number: int):  # type: ignore[no-untyped-def]
        mutant = make_mutant(number, good)
        return str(mutant), partial(attempt, mutant, good, settings.device)

    serve(make, arguments[1:], settings, _ROOM_BYTES, _PEAK_BYTES)


if __name__ == "__main__":
    main(sys.argv[1:])
