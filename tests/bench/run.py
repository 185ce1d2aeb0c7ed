"""`make bench`: benchmarks without a GPU, each figure printed beside its bound and not judged.

python tests/bench/run.py                          # everything
python tests/bench/run.py models --model mlp chain --repeat 50
python tests/bench/run.py overlap schedule decode
GPUEXEC_MODELS=folder python tests/bench/run.py cpu  # the folder's models, the digits, generated ones: five minutes
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from gpuexec.system import knobs
from tests.bench.arenas import measure_arenas
from tests.bench.batching import measure_batching
from tests.bench.budgets import measure_budgets
from tests.bench.compiling import measure_compiling
from tests.bench.cpu_models import measure_models
from tests.bench.cpu_suite import measure_suite
from tests.bench.decoding import measure_decoding, measure_step
from tests.bench.host_time import measure_schedule
from tests.bench.measure import QUIET, Bystanders, describe_machine, describe_numpy_threads
from tests.bench.memory_requests import measure_requests
from tests.bench.models import MODELS
from tests.bench.overlap import measure_overlap
from tests.bench.predictions import measure_predictions
from tests.bench.regions import measure_regions
from tests.bench.tables import Figures, show_rows
from tests.bench.weights import measure_weights

WIDTH = 150
BENCHES: dict[str, Callable[[argparse.Namespace], list[Figures]]] = {
    "models": lambda options: measure_models(options.model, options.repeat),
    "overlap": lambda options: measure_overlap(options.repeat),
    "schedule": lambda options: measure_schedule(options.repeat * 50),
    "budget": lambda options: measure_budgets(options.repeat),
    "batching": lambda options: measure_batching(knobs.models_dir(), options.repeat),
    "decode": lambda options: [*measure_decoding(knobs.models_dir()), *measure_step()],
    "arenas": lambda options: measure_arenas(knobs.models_dir()),
    "weights": lambda options: measure_weights(),
    "compiling": lambda options: measure_compiling(),
    "requests": lambda options: measure_requests(),
    "predictions": lambda options: measure_predictions(),
    "regions": lambda options: measure_regions(knobs.models_dir()),
    "cpu": lambda options: measure_suite(knobs.models_dir(), options.model, options.repeat * 2),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benches chosen, print their tables, and write them as JSON if asked."""
    options = _parse(arguments)
    console = Console(width=None if Console().is_terminal else WIDTH, highlight=False)
    machine = [*describe_machine(), ("NumPy's BLAS", describe_numpy_threads())]
    show_rows(console, machine)
    found: list[dict[str, object]] = []
    for name in options.bench or BENCHES:
        with Bystanders() as bystanders:
            tables = BENCHES[name](options)
        for table in tables:
            table.notes.append(f"Cores that other processes used meanwhile: {bystanders}.")
            if not bystanders.is_quiet:
                table.notes.append(f"NOISY: more than {QUIET} cores; don't quote these figures, measure again.")
            table.show(console)
            found.append({"bench": name, "other_cores": bystanders.cores, **table.to_json()})
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": dict(machine), "figures": found}, indent=1))
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure what runs without a GPU.")
    parser.add_argument("bench", nargs="*", help=f"which to run: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS, help="which models (default: all)")
    parser.add_argument(
        "--repeat", type=int, default=20, help="runs of each figure; host times: 50, cpu: 2 times as many"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures to a file too")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.bench if name not in BENCHES]
    if unknown:
        parser.error(f"there is no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
