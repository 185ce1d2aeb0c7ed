"""Try many bad models, and print what became of them.

python -m tests.bad_models --count 1000 [--first 0] [--seeds FOLDER] [--only NUMBER]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import tests.bad_models.mutations  # noqa: F401  (fills the table)
from tests.bad_models.attempt import attempt
from tests.bad_models.mutant import make_mutant
from tests.bad_models.pool import Row, try_mutants
from tests.bad_models.seeds import list_seeds

_SHOWN_CHARACTERS = 600
_SHOWN_SLOWEST = 5


def main() -> int:
    """Return 1 if a mutant was bad."""
    parser = argparse.ArgumentParser(prog="python -m tests.bad_models", description="Try many bad models.")
    parser.add_argument("--count", type=int, default=1000, help="how many mutants to try")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--seeds", type=Path, help="a folder with more models (*.onnx) to make mutants of")
    parser.add_argument("--only", type=int, help="try one here, without guards, and show what it says")
    options = parser.parse_args()
    if options.only is not None:
        return try_here(options.only, options.seeds)
    rows = []
    for row in try_mutants(range(options.first, options.first + options.count), options.seeds):
        rows.append(row)
        if row.outcome.is_bad:
            print(describe(row), flush=True)
    print(tabulate(rows))
    return int(any(row.outcome.is_bad for row in rows))


def try_here(number: int, folder: Path | None) -> int:
    """Try one mutant in this process, with the trace of what it raises."""
    mutant = make_mutant(number, list_seeds(folder))
    print(mutant)
    with tempfile.TemporaryDirectory() as place:
        outcome = attempt(mutant.write(Path(place)), number)
    print(outcome.kind, outcome.error, outcome.message, sep="\n")
    return int(outcome.is_bad)


def describe(row: Row) -> str:
    """Return a bad mutant in words."""
    return f"{row.mutant}\n  {row.outcome.error}: {row.outcome.message[:_SHOWN_CHARACTERS]}"


def tabulate(rows: Sequence[Row]) -> str:
    """Return the table: how many ran, were refused by which error, were bad; and which took longest."""
    counts = Counter((row.outcome.kind, row.outcome.error) for row in rows)
    lines = [f"{kind:8} {error:24} {count:6}" for (kind, error), count in sorted(counts.items())]
    slowest = sorted(rows, key=lambda row: -row.seconds)[:_SHOWN_SLOWEST]
    lines += [f"slow     {row.seconds:6.1f} s {row.mutant}" for row in slowest]
    return "\n".join([*lines, f"{'all':8} {'':24} {sum(counts.values()):6}"])


if __name__ == "__main__":
    sys.exit(main())
