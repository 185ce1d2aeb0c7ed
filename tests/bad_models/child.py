"""The process in which bad models are tried: limited memory, one line of JSON before and after each.

python -m tests.bad_models.child FOLDER_OF_SEEDS NUMBER...
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import tests.bad_models.mutations  # noqa: F401  (fills the table)
from tests.bad_models.attempt import Outcome, attempt
from tests.bad_models.mutant import make_mutant
from tests.bad_models.seeds import list_seeds

# Beyond what the process maps at its start. An allocation bomb fails here, before the machine does.
ROOM_BYTES = 3 << 30
# What the largest mutants need by rights, twice; a peak above says that something was held which was not asked for.
_PEAK_BYTES = 1 << 30


def main(arguments: list[str]) -> None:
    """Try the mutants of these numbers."""
    seeds = list_seeds(Path(arguments[0]) if arguments[0] else None)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM_BYTES,) * 2)
    for number in map(int, arguments[1:]):
        mutant = make_mutant(number, seeds)
        say({"begin": number, "mutant": str(mutant)})
        before, start = read_peak(), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            outcome = attempt(mutant.write(Path(folder)), number)
        if read_peak() - before > _PEAK_BYTES and not outcome.is_bad:
            outcome = Outcome("bad", "memory", f"{read_peak() - before} bytes more than before: {outcome}")
        say({"end": number, "seconds": time.perf_counter() - start, **dataclasses.asdict(outcome)})


def read_peak() -> int:
    """Return the most memory this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def say(row: dict[str, object]) -> None:
    """Write a line that the parent reads."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
