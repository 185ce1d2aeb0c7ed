"""`make bench-gpu`: models, host time and launch cost on a real GPU; prints tables and writes them to ``--out``.

    PYTHONPATH=. python3 tests/bench/run_gpu.py --out results        # $OUT where that is set
    PYTHONPATH=. python3 tests/bench/run_gpu.py --device simulator --small --repeat 2    # to see the bench itself run

Kernels are compiled into an empty cache, so that compile times are those of a first start.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.device import Device
from gpuexec.system import knobs
from tests.bench.gpu_launches import measure_launches
from tests.bench.gpu_models import find_models, measure_models
from tests.bench.measure import describe_machine
from tests.bench.models import MODELS, SMALL_MODELS
from tests.bench.tables import show_rows

WIDTH = 170
STEM = "bench-gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and write ``bench-gpu.txt`` and ``bench-gpu.json``."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("GPUEXEC_CACHE_DIR", cache)
        device = open_device(options.device)
        machine = [("GPU", describe_device(device)), *describe_machine()]
        console = Console(record=True, width=WIDTH, highlight=False)
        show_rows(console, machine)
        backend = Backend(device, gx.BackendType.GPU_COMPUTE, "measured")
        made = SMALL_MODELS if options.small else MODELS
        models = find_models(made, None if options.small else knobs.models_dir(), options.model)
        found = []
        for tables in (
            measure_models(backend, models, options.repeat),
            measure_launches(device, lambda packed: open_device(options.device, packed_launch=packed), options.repeat),
        ):
            for table in tables:
                table.show(console)
                found.append(table.to_json())
        _write(Path(options.out), console, {"machine": dict(machine), "figures": found})
    return 0


def open_device(name: str, **options: Any) -> Device:
    """Return the first GPU, or the simulator, which launches in one way only.

    Raises:
        DeviceNotFoundError: There is no GPU that works.
    """
    if name == "simulator":
        import gpuexec.ops  # noqa: F401 (fills the table of instantiations)
        from gpuexec.devices.simulator.device import SimulatorDevice
        from gpuexec.ir.instances import kernel_table

        return SimulatorDevice(lambda source: kernel_table()[source])
    return CudaDevice(**options)


def describe_device(device: Device) -> str:
    """Return name, architecture, and versions of driver and runtime where there are any."""
    runtime = device.context.cupy.cuda.runtime if isinstance(device, CudaDevice) else None
    read: list[tuple[str, Callable[[], int]]] = [
        (what, getattr(runtime, call))
        for what, call in (("driver", "driverGetVersion"), ("runtime", "runtimeGetVersion"))
        if hasattr(runtime, call)
    ]
    return ", ".join([f"{device.name} ({device.target.name})", *(f"{what} {version()}" for what, version in read)])


def _write(folder: Path, console: Console, figures: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{STEM}.txt").write_text(console.export_text())
    (folder / f"{STEM}.json").write_text(json.dumps(figures, indent=1))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure on a GPU.")
    parser.add_argument("--model", nargs="+", default=None, help="which models, generated ones or of GPUEXEC_MODELS")
    parser.add_argument("--repeat", type=int, default=100, help="runs of each figure (default: 100)")
    parser.add_argument("--out", default=os.environ.get("OUT", "tests/bench/results"), help="folder for the results")
    parser.add_argument("--device", choices=("gpu", "simulator"), default="gpu", help="where (default: gpu)")
    parser.add_argument("--small", action="store_true", help="tiny models, to see the bench itself run")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
