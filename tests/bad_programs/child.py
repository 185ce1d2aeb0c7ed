"""The process in which bad programs are tried: limited memory, one line of JSON before and after each.

python -m tests.bad_programs.child "" NUMBER...
"""

from __future__ import annotations

import dataclasses
import resource
import sys
import time
from pathlib import Path

from tests.bad_models.attempt import Outcome
from tests.bad_models.child import read_peak, say
from tests.bad_programs.attempt import attempt
from tests.bad_programs.mutant import make_mutant
from tests.program_seeds import program_bytes

# Beyond what the process maps at its start; a program of 20 KB needs a small part of it.
_ROOM_BYTES = 2 << 30
_PEAK_BYTES = 512 << 20


def main(arguments: list[str]) -> None:
    """Try the mutants of these numbers."""
    good = program_bytes()
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM_BYTES,) * 2)
    for number in map(int, arguments[1:]):
        mutant = make_mutant(number, good)
        say({"begin": number, "mutant": str(mutant)})
        before, start = read_peak(), time.perf_counter()
        outcome = attempt(mutant, good)
        if read_peak() - before > _PEAK_BYTES and not outcome.is_bad:
            outcome = Outcome("bad", "memory", f"{read_peak() - before} bytes more than before: {outcome}")
        say({"end": number, "seconds": time.perf_counter() - start, **dataclasses.asdict(outcome)})


if __name__ == "__main__":
    main(sys.argv[1:])
