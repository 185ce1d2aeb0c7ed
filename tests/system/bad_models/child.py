"""Child process of a fuzzing run: limited memory, one line of JSON before and after each bad model.

python -m tests.system.bad_models.child SETTINGS NUMBER...
"""

from __future__ import annotations

import dataclasses
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import tests.system.bad_models.mutations  # noqa: F401  (fills the table)
from gpuexec.errors import OutOfMemoryError
from tests.system.bad_models.attempt import Outcome, attempt
from tests.system.bad_models.mutant import make_mutant
from tests.system.bad_models.pool import Settings
from tests.system.bad_models.seeds import list_seeds

# Beyond what the process maps at its start. An allocation bomb fails here, before the machine does.
ROOM_BYTES = 3 << 30
# What the largest mutants need by rights, twice; a peak above says that something was held which was not asked for.
_PEAK_BYTES = 1 << 30
# What the simulator's threads and kernels take beside.
_SIMULATOR_BYTES = 1 << 30

# Makes the mutant of a number: in words, and what tries it.
MakeTrial = Callable[[int], tuple[str, Callable[[], Outcome]]]


def main(arguments: list[str]) -> None:
    """Try the mutants of these numbers."""
    settings = Settings.read(arguments[0])
    seeds = list_seeds(Path(settings.folder) if settings.folder else None)

    def make(number: int) -> tuple[str, Callable[[], Outcome]]:
        mutant = make_mutant(number, seeds)

        def run() -> Outcome:
            with tempfile.TemporaryDirectory() as folder:
                return attempt(mutant.write(Path(folder)), number, settings.device)

        return str(mutant), run

    serve(make, arguments[1:], settings, ROOM_BYTES, _PEAK_BYTES)


def serve(make: MakeTrial, numbers: Sequence[str], settings: Settings, room_bytes: int, peak_bytes: int) -> None:
    """Try mutants in limited memory, and say of each how it begins and ends.

    Args:
        make: Makes the mutant of a number.
        numbers: Which.
        settings: Of the command.
        room_bytes: What there may be beyond what the process has now.
        peak_bytes: What the process may come to hold more for one mutant, or hold still where memory was refused.
    """
    limit_memory(settings.device, room_bytes)
    if settings.device == "simulator":
        peak_bytes += _SIMULATOR_BYTES
    for number in map(int, numbers):
        mutant, run = make(number)
        say({"begin": number, "mutant": mutant})
        before, held, start = read_peak(), read_held(), time.perf_counter()
        outcome = run()
        peak = read_peak()
        # Where memory is refused, a part of what was asked for may have been taken: it must be given back.
        more = read_held() - held if outcome.error == OutOfMemoryError.__name__ else peak - before
        if more > peak_bytes and not outcome.is_bad:
            outcome = Outcome("bad", "memory", f"{more} bytes more than before: {outcome}")
        seconds = time.perf_counter() - start
        say({"end": number, "seconds": seconds, "peak": peak, **dataclasses.asdict(outcome)})


def limit_memory(device: str, room_bytes: int) -> None:
    """Limit what this process may take: addresses, or on the simulator, which reserves many, what can be written."""
    if device == "simulator":
        resource.setrlimit(resource.RLIMIT_DATA, (room_bytes + 2 * _SIMULATOR_BYTES,) * 2)
        return
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + room_bytes,) * 2)


def read_peak() -> int:
    """Return the most memory this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_held() -> int:
    """Return the memory this process holds now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def say(row: dict[str, object]) -> None:
    """Write a line that the parent reads."""
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
