"""Child process of a fuzzing run: limited memory, one line of JSON before and after each bad file of weights.

python -m tests.system.bad_weights.child SETTINGS NUMBER...
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.system.bad_models.attempt import Outcome
from tests.system.bad_models.child import serve
from tests.system.bad_models.pool import Settings
from tests.system.bad_weights.attempt import attempt
from tests.system.bad_weights.mutant import make_mutant

# Beyond what the process maps at its start; a file of 100 KB needs a small part of it.
_ROOM_BYTES = 2 << 30
_PEAK_BYTES = 512 << 20


def main(arguments: list[str]) -> None:
    """Try the mutants of these numbers."""
    settings = Settings.read(arguments[0])

    def make(number: int) -> tuple[str, Callable[[], Outcome]]:
        mutant = make_mutant(number)

        def run() -> Outcome:
            with tempfile.TemporaryDirectory() as folder:
                return attempt(mutant, Path(folder), settings.device)

        return str(mutant), run

    serve(make, arguments[1:], settings, _ROOM_BYTES, _PEAK_BYTES)


if __name__ == "__main__":
    main(sys.argv[1:])
