"""gpuexec doctor: the state of this machine's installation, and what to install for what does not work."""

from __future__ import annotations

import argparse
import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from gpuexec.cli.json_output import add_json_argument, open_output, print_json
from gpuexec.devices.backend import BackendType, choose_backend, open_backend
from gpuexec.devices.cuda import driver
from gpuexec.errors import GpuexecError
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.system import knobs
from gpuexec.system.version import VERSION

_PACKAGES = (
    "numpy",
    "onnx",
    "ml_dtypes",
    "safetensors",
    "rich",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "nvmath-python",
    "nvidia-cudnn-frontend",
    "onnxruntime",
)

_BACKENDS = (BackendType.GPU_COMPUTE, BackendType.GPU_PIXEL, BackendType.SIMULATOR, BackendType.CPU)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="say what works on this machine, and what to install"
    )
    add_json_argument(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    console = open_output(options)
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    console.print(f"gpuexec {VERSION}, Python {python}")
    found = str(driver.probe())
    console.print(f"driver   {found}", markup=False)
    packages = {name: _find_version(name) for name in _PACKAGES}
    table = make_table(("package", "version"))
    for name, version in packages.items():
        table.add_row(name, version or "-")
    print_table(console, table)
    backends = {type.value: _try_backend(type) for type in _BACKENDS}
    for name, state in backends.items():
        console.print(f"{name.upper():12} {'yes' if state.works else 'no'}: {state.about}", markup=False)
    settings = {knob.name: value for knob, value in knobs.list_settings()}
    for name, value in settings.items():
        console.print(f"{name:22} {value:12} {knobs.KNOBS[name].meaning}", markup=False)
    chosen, reason = choose_backend(BackendType.AUTO)
    console.print(f"AUTO takes {chosen.type.name}: {reason}", markup=False)
    print_json(
        options,
        version=VERSION,
        python=python,
        driver=found,
        packages=packages,
        backends=backends,
        settings=settings,
        auto={"backend": chosen.type, "reason": reason},
    )
    return 0


@dataclass(frozen=True, slots=True)
class BackendState:
    """Whether a backend works, and its device, or what is missing."""

    works: bool
    about: str


def _find_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _try_backend(type: BackendType) -> BackendState:
    try:
        return BackendState(True, open_backend(type).device.name)
    except GpuexecError as error:
        return BackendState(False, str(error))
