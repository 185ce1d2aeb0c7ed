"""Soak tests from the command line: memory held is printed, and growth, hangs and errors fail.

python -m tests.system.soak [growth] [crowd] [--runs 10000] [--minutes 30] [--backend cpu simulator]
"""

from __future__ import annotations

import argparse
import sys

from tests.system.soak.crowd import run_crowd
from tests.system.soak.growth import run_long
from tests.system.soak.models import MODELS


def main() -> int:
    parser = argparse.ArgumentParser(description="Run for long and look for what grows, hangs or goes wrong.")
    parser.add_argument("parts", nargs="*", default=[], help="growth, crowd; both unless named")
    parser.add_argument("--runs", type=int, default=10_000, help="runs of each model")
    parser.add_argument("--simulator-runs", type=int, help="runs of each model on the simulator, if fewer")
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the crowd runs, in all")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", nargs="+", choices=("cpu", "simulator"), default=["cpu", "simulator"])
    options = parser.parse_args()
    parts = options.parts or ["growth", "crowd"]
    problems: list[str] = []
    for kind in options.backend:
        if "growth" in parts:
            runs = options.simulator_runs if kind == "simulator" and options.simulator_runs else options.runs
            for name in options.models:
                problems += run_long(MODELS[name](), kind, runs)
        if "crowd" in parts:
            share_s = options.minutes * 60 / len(options.backend)
            problems += run_crowd(kind, options.workers, share_s, options.seed)
    for problem in problems:
        print(f"PROBLEM {problem}")
    print("soak: " + (f"{len(problems)} problems" if problems else "nothing grew, hung or went wrong"))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
