"""Command line shared by the fuzzing programs: count, seed, device, and the table of outcomes."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.system.bad_models.pool import Row, Settings, try_mutants

# Seeds are so far apart that numbers of one never reach those of another.
_SEED_STEP = 1_000_000
_SHOWN_CHARACTERS = 600
_SHOWN_SLOWEST = 5
# Of a mutant. The simulator compiles kernels that the cache does not have yet.
_LIMIT_S = {"cpu": 60.0, "simulator": 600.0}


def run_command(
    name: str, what: str, child: Sequence[str], try_here: Callable[[int, Settings], int], *, takes_folder: bool = False
) -> int:
    """Return 1 if a mutant was bad.

    Args:
        name: Of the module.
        what: Is tried, in words.
        child: The command of the process that tries.
        try_here: Tries one mutant in this process; returns the exit status.
        takes_folder: Whether there may be more seeds in a folder.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=f"Try many bad {what}.")
    parser.add_argument("--count", type=int, default=1000, help="how many mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="another one gives other mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--device", choices=list(_LIMIT_S), default="cpu", help="where they run")
    parser.add_argument("--only", type=int, help="try one here, without guards, and show what it says")
    if takes_folder:
        parser.add_argument("--seeds", type=Path, help="a folder with more models (*.onnx) to make mutants of")
    options = parser.parse_args()
    settings = Settings(str(getattr(options, "seeds", None) or ""), options.device)
    first = options.first + options.seed * _SEED_STEP
    if options.only is not None:
        return try_here(options.only, settings)
    rows = []
    limit_s = _LIMIT_S[options.device]
    for row in try_mutants(range(first, first + options.count), settings, child=child, limit_s=limit_s):
        rows.append(row)
        if row.outcome.is_bad:
            print(describe(row), flush=True)
    print(tabulate(rows))
    return int(any(row.outcome.is_bad for row in rows))


def describe(row: Row) -> str:
    """Return a bad mutant in words."""
    return f"{row.mutant}\n  {row.outcome.error}: {row.outcome.message[:_SHOWN_CHARACTERS]}"


def tabulate(rows: Sequence[Row]) -> str:
    """Return the table: how many ran, were refused by which error, were bad; which took longest; the most memory."""
    counts = Counter((row.outcome.kind, row.outcome.error) for row in rows)
    lines = [f"{kind:8} {error:24} {count:6}" for (kind, error), count in sorted(counts.items())]
    slowest = sorted(rows, key=lambda row: -row.seconds)[:_SHOWN_SLOWEST]
    lines += [f"slow     {row.seconds:6.1f} s {row.mutant}" for row in slowest]
    lines.append(f"peak     {max((row.peak_nbytes for row in rows), default=0) / 2**20:.0f} MiB resident")
    return "\n".join([*lines, f"{'all':8} {'':24} {sum(counts.values()):6}"])
