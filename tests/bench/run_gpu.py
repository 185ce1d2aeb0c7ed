"""`make bench-gpu`: everything measured on a GPU by one command, within a budget of time, most important first.

    PYTHONPATH=. python3 tests/bench/run_gpu.py --out results        # $OUT where that is set
    PYTHONPATH=. python3 tests/bench/run_gpu.py --device simulator --small    # to see the bench itself run

Each part is a process of its own: what faults, hangs or is absent there takes no other part with it. A part that no
time is left for is dropped by name. Text and JSON are written anew after each part. Kernels are compiled into an empty
cache, so that compile times are those of a first start. What torch.compile needs is compiled beforehand, by processes
side by side, while nothing is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.cuda.cuda import CudaDevice
from gpuexec.devices.device import Device
from gpuexec.ir.precision import STRICT
from gpuexec.system import knobs
from gpuexec.system.atomic_file import write_file
from tests.bench.architectures import ARCHITECTURES, SMALL_ARCHITECTURES
from tests.bench.gpu_ceilings import measure_ceilings, read_ceilings
from tests.bench.gpu_commands import measure_commands
from tests.bench.gpu_contenders import COMPILED, EAGER, GRAPH, MAX_ERRORS, Budget, Turns, noting, warm_compiler
from tests.bench.gpu_kernels import list_cases, list_small_cases, measure_kernels
from tests.bench.gpu_launches import measure_launches
from tests.bench.gpu_models import find_trained, measure_model, summarise
from tests.bench.measure import describe_machine, time_ms
from tests.bench.models import MODELS, SMALL_MODELS, BenchModel
from tests.bench.tables import Figures, show_rows
from tests.system.gpu.ptx_wrappers import measure_wrappers

WIDTH = 170
STEM = "bench-gpu"
SECONDS = 520.0
# Seconds for reading the machine, and kept back for the end.
_MACHINE_S, _RESERVE_S = 60.0, 10.0
# Seconds for compiling all models by torch.compile, side by side.
_WARM_S = 110.0
_SUBMITS = 100

Maker = Callable[[], BenchModel]


@dataclass(slots=True)
class Setting:
    """What a part measures with: a device, how long, and what parts before it found."""

    options: argparse.Namespace
    budget: Budget
    found: list[dict[str, Any]] = field(default_factory=list)

    def keep(self, tables: Sequence[Figures]) -> None:
        """Write what a part has found so far, which stands should its process be killed."""
        if self.options.part:
            write_file(Path(self.options.out), _spell_tables(tables))

    def open_backend(self) -> Backend:
        """Open the device."""
        return Backend(open_device(self.options.device), gx.BackendType.GPU_COMPUTE, "measured")

    @property
    def turns(self) -> Turns:
        """The turns of each contender."""
        return Turns(1, 2, 2) if self.is_small else Turns(self.options.rounds)

    @property
    def makers(self) -> dict[str, Maker]:
        """Makers of the architectures, in the precision that is measured."""
        precision = self.options.precision
        makers = SMALL_ARCHITECTURES if self.is_small else ARCHITECTURES
        return {name: partial(_make_in, precision, make) for name, make in makers.items()}

    @property
    def is_small(self) -> bool:
        """True if the bench itself is to be seen running."""
        return bool(self.options.small)


def _make_in(precision: str, make: Maker) -> BenchModel:
    return replace(make(), precision=precision)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the bench.

    Attributes:
        measure: Measures it.
        limit_s: Seconds it may take.
        least_s: Seconds below which it is not begun.
    """

    measure: Callable[[Setting], list[Figures]]
    limit_s: float
    least_s: float


def _measure_machine(setting: Setting) -> list[Figures]:
    device = setting.open_backend().device
    rows = [("GPU", describe_device(device)), ("driver", read_driver()), *describe_machine()]
    return [Figures("Machine", ("what", "value"), list(rows))]


def _measure_wrappers(setting: Setting) -> list[Figures]:
    return [measure_wrappers(setting.open_backend().device)]


def _measure_ceilings(setting: Setting) -> list[Figures]:
    sizes = {"megabytes": 1, "extent": 16} if setting.is_small else {}
    return measure_ceilings(setting.turns, setting.budget, **sizes)


def _measure_architecture(name: str, setting: Setting) -> list[Figures]:
    backend, without = setting.open_backend(), setting.options.without
    return measure_model(backend, setting.makers[name], setting.turns, setting.budget, without)


def _warm_compiler(name: str, setting: Setting) -> list[Figures]:
    figures = Figures("Compiled by torch.compile beforehand, side by side", ("model", "s"))
    with noting(name, figures.notes):
        figures.add(name, time_ms(lambda: warm_compiler(setting.makers[name]())) / 1e3)
    return [figures]


def _measure_kernels(setting: Setting) -> list[Figures]:
    cases = list_small_cases() if setting.is_small else list_cases()
    device = setting.open_backend().device
    return measure_kernels(device, cases, setting.turns, setting.budget, read_ceilings(setting.found))


def _measure_commands(setting: Setting) -> list[Figures]:
    device = setting.open_backend().device
    return measure_commands(device, setting.makers, setting.turns, setting.budget, setting.keep)


def _measure_launches(setting: Setting) -> list[Figures]:
    name = setting.options.device
    submits = 2 if setting.is_small else _SUBMITS
    return measure_launches(open_device(name), lambda packed: open_device(name, packed_launch=packed), submits)


def _measure_others(setting: Setting) -> list[Figures]:
    makers: dict[str, Maker] = dict(SMALL_MODELS if setting.is_small else MODELS)
    if not setting.is_small:
        makers |= find_trained(knobs.models_dir())
    backend, tables = setting.open_backend(), []
    for name, make in makers.items():
        if setting.budget.left_s < 0:
            tables.append(Figures(f"{name}: dropped, no time is left", ("model",)))
            continue
        tables += measure_model(backend, make, setting.turns, setting.budget)
    return tables


_MODEL_PARTS = {f"model {name}": Part(partial(_measure_architecture, name), 90.0, 25.0) for name in ARCHITECTURES}
# In the order of their importance: the first are dropped last.
PARTS: dict[str, Part] = {
    "wrappers": Part(_measure_wrappers, 60.0, 10.0),
    "ceilings": Part(_measure_ceilings, 45.0, 15.0),
    **{name: _MODEL_PARTS[name] for name in ("model bert_base", "model resnet50_b1", "model gpt2_decode")},
    "commands": Part(_measure_commands, 75.0, 20.0),
    "kernels": Part(_measure_kernels, 75.0, 20.0),
    **_MODEL_PARTS,
    "launches": Part(_measure_launches, 40.0, 15.0),
    "others": Part(_measure_others, 60.0, 15.0),
}
# Of torch.compile's cache; together, side by side.
WARM_PARTS = {f"warm {name}": Part(partial(_warm_compiler, name), _WARM_S, 0.0) for name in ARCHITECTURES}
_MACHINE = Part(_measure_machine, _MACHINE_S, 0.0)

Run = Callable[[str, float, list[dict[str, Any]]], list[dict[str, Any]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts and write ``bench-gpu.txt`` and ``bench-gpu.json``; or one part in this process."""
    options = _parse(arguments)
    if options.part:
        tables = run_part(options, options.part, options.seconds, json.loads(Path(options.found).read_text()))
        write_file(Path(options.out), json.dumps(tables))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(options, Path(folder))
        warm = (
            options.device == "gpu"
            and COMPILED not in options.without
            and importlib.util.find_spec("torch") is not None
        )
        return Bench(options, processes.run, processes.warm if warm else None).run()


class Bench:
    """The parts in their order, within the budget, and what they found.

    Args:
        options: Of the command line.
        run: Runs a part for so many seconds, given the tables found so far, and returns its tables.
        warm: Runs parts side by side with a last one, whose tables it returns; None: nothing is compiled beforehand.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        run: Run,
        warm: Callable[[Sequence[str], str, float], list[dict[str, Any]]] | None = None,
    ) -> None:
        self._options, self._run_part, self._warm = options, run, warm
        self._budget = Budget(options.seconds)
        self._console = Console(record=True, width=WIDTH, highlight=False)
        self._found: list[dict[str, Any]] = []
        self._machine: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def run(self) -> int:
        """Run what was asked for; return 1 where there is no device to run it on."""
        (table,) = self._run_part("machine", _MACHINE_S, [])
        self._machine = {row["what"]: row["value"] for row in table["rows"]}
        if not self._machine:
            self._note(table["notes"])
            return 1
        show_rows(self._console, list(self._machine.items()))
        names = [name for name in PARTS if not self._options.part_names or _is_chosen(name, self._options.part_names)]
        models = [name for name in names if name in _MODEL_PARTS]
        if self._warm is not None and models and "wrappers" in names:
            warm = [name.replace("model", "warm", 1) for name in models]
            self._take("wrappers", lambda limit: self._warm_beside(warm, limit))
            names.remove("wrappers")
        for name in names:
            self._take(name, lambda limit, name=name: self._run_part(name, limit, self._found))  # type: ignore[misc]
        summary = summarise(self._found)
        summary.notes.append(f"Architectures in {self._options.precision}.")
        summary.notes.append("Seconds: " + ", ".join(f"{name} {taken:.0f}" for name, taken in self._seconds.items()))
        summary.show(self._console)
        self._found.append(summary.to_json())
        self._write()
        return 0

    def _warm_beside(self, warm: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
        assert self._warm is not None
        return self._warm(warm, "wrappers", limit_s)

    def _take(self, name: str, run: Callable[[float], list[dict[str, Any]]]) -> None:
        """Run a part if there is time for it, and write down what it found."""
        left_s = self._budget.left_s - _RESERVE_S
        if left_s < PARTS[name].least_s:
            self._note([f"DROPPED {name}: {left_s:.0f} s are left, it takes at least {PARTS[name].least_s:.0f}."])
            self._found.append(Figures(f"{name}: dropped, no time was left", ()).to_json())
        else:
            tables = _join_tables(run(min(left_s, PARTS[name].limit_s)))
            self._seconds[name] = left_s - (self._budget.left_s - _RESERVE_S)
            for table in tables:
                Figures.from_json(table).show(self._console)
            self._found += tables
        self._write()

    def _note(self, notes: Sequence[str]) -> None:
        for note in notes:
            self._console.print(note, markup=False)

    def _write(self) -> None:
        folder = Path(self._options.out)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"machine": self._machine, "seconds": self._seconds, "figures": self._found}
        stem = STEM if self._options.precision == STRICT else f"{STEM}-{self._options.precision}"
        write_file(folder / f"{stem}.txt", self._console.export_text(clear=False))
        write_file(folder / f"{stem}.json", json.dumps(content, indent=1))


class Processes:
    """Parts in processes of their own; on a GPU with a cache of kernels that is empty at first."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self._environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        if options.device == "gpu":
            self._environment["GPUEXEC_CACHE_DIR"] = str(folder / "cache")

    def run(self, name: str, limit_s: float, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run a part, and kill it when its time is over."""
        return self._finish(name, self._start(name, limit_s, found), Budget(limit_s))

    def warm(self, names: Sequence[str], last: str, limit_s: float) -> list[dict[str, Any]]:
        """Run parts side by side, and another one with them; return the tables of all, that one's first."""
        budget = Budget(max(limit_s, _WARM_S))
        started = {name: self._start(name, budget.left_s, []) for name in names}
        try:
            tables = self.run(last, limit_s, [])
            for name, process in started.items():
                tables += self._finish(name, process, budget)
        finally:
            for process in started.values():
                _kill(process)
        return tables

    def _start(self, name: str, limit_s: float, found: list[dict[str, Any]]) -> subprocess.Popen[bytes]:
        stem = self._folder / name.replace(" ", "-")
        stem.with_suffix(".found").write_text(json.dumps(found))
        options = self._options
        command = [sys.executable, "-m", "tests.bench.run_gpu", "--part", name, "--device", options.device]
        command += ["--seconds", str(limit_s * 0.8), "--rounds", str(options.rounds)]
        command += ["--precision", options.precision, *(f"--without={name}" for name in options.without)]
        command += ["--found", str(stem.with_suffix(".found")), "--out", str(stem.with_suffix(".json"))]
        with open(stem.with_suffix(".log"), "wb") as log:
            return subprocess.Popen(
                [*command, *(["--small"] if options.small else [])],
                cwd=Path(__file__).parents[2],
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def _finish(self, name: str, process: subprocess.Popen[bytes], budget: Budget) -> list[dict[str, Any]]:
        stem = self._folder / name.replace(" ", "-")
        try:
            ended = f"ended with {process.wait(max(budget.left_s, 0.1))}"
        except subprocess.TimeoutExpired:
            ended = "was killed when its time was over"
        finally:
            _kill(process)
        if not stem.with_suffix(".json").exists():
            tail = stem.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-8:]
            return [Figures(f"{name}: no figures", (), [], [f"Its process {ended}.", *tail]).to_json()]
        tables: list[dict[str, Any]] = json.loads(stem.with_suffix(".json").read_text())
        if process.returncode:
            tables.append(Figures(f"{name}: not to its end", (), [], [f"Its process {ended}."]).to_json())
        return tables


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and those that it started, if it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_part(
    options: argparse.Namespace, name: str, limit_s: float, found: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run a part in this process; what it raises becomes notes."""
    part = {"machine": _MACHINE, **PARTS, **WARM_PARTS}[name]
    try:
        tables = part.measure(Setting(options, Budget(limit_s), found))
    except Exception as error:
        tables = [Figures(f"{name}: no figures", (), [], traceback.format_exception(error)[-6:])]
    read: list[dict[str, Any]] = json.loads(_spell_tables(tables))  # as they are read again from a file
    return read


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


def read_driver() -> str:
    """Return the driver's version, the limits of clocks and power, and how warm the GPU is, by nvidia-smi."""
    fields = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,temperature.gpu"
    try:
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown, {error}"
    return "; ".join(done.stdout.strip().splitlines()) or f"unknown, nvidia-smi ended with {done.returncode}"


def _is_chosen(name: str, chosen: Sequence[str]) -> bool:
    return name in chosen or name.removeprefix("model ") in chosen


def _join_tables(tables: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return tables with those of one title joined."""
    joined: dict[str, dict[str, Any]] = {}
    for table in tables:
        known = joined.setdefault(table["title"], {**table, "rows": [], "notes": []})
        known["rows"] += table["rows"]
        known["notes"] += [note for note in table["notes"] if note not in known["notes"]]
    return list(joined.values())


def _spell_tables(tables: Sequence[Figures]) -> str:
    return json.dumps([table.to_json() for table in tables], default=_to_number)


def _to_number(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    return value.item()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure on a GPU.")
    parser.add_argument("part_names", nargs="*", metavar="PART", help=f"which parts (default: all): {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: 7)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"budget of time (default: {SECONDS:.0f})")
    parser.add_argument("--out", default=os.environ.get("OUT", "tests/bench/results"), help="folder for the results")
    parser.add_argument("--device", choices=("gpu", "simulator"), default="gpu", help="where (default: gpu)")
    parser.add_argument(
        "--precision", choices=MAX_ERRORS, default=STRICT, help="of the architectures (default: strict)"
    )
    parser.add_argument(
        "--without", choices=(EAGER, GRAPH, COMPILED), action="append", default=[], help="a contender to leave out"
    )
    parser.add_argument("--small", action="store_true", help="tiny models, to see the bench itself run")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--found", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    known = {*PARTS, *ARCHITECTURES}
    unknown = [name for name in options.part_names if name not in known]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
