"""Interrupts of Workers at random times from the command line: a table of the outcomes.

python -m tests.system.interrupts [--count 40] [--first 0] [--backend cpu simulator]
"""

from __future__ import annotations

import argparse
import sys

from tests.system.bad_models.command import describe, tabulate
from tests.system.bad_models.pool import Settings, try_mutants
from tests.system.interrupts.child import CHILD


def main() -> int:
    """Return 1 if a Worker was neither usable nor closed."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.interrupts", description="Interrupt Workers.")
    parser.add_argument("--count", type=int, default=40, help="how many interrupts on each backend")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--backend", nargs="+", choices=("cpu", "simulator"), default=["cpu", "simulator"])
    options = parser.parse_args()
    is_bad = False
    for kind in options.backend:
        rows = []
        numbers = range(options.first, options.first + options.count)
        for row in try_mutants(numbers, Settings(device=kind), child=CHILD):
            rows.append(row)
            if row.outcome.is_bad:
                is_bad = True
                print(describe(row), flush=True)
        print(f"{kind}\n{tabulate(rows)}")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
