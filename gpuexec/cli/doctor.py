"""gpuexec doctor: the state of this machine's installation, and what to install for what does not work."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from gpuexec.devices.backend import BackendType, choose_backend, open_backend
from gpuexec.devices.cuda import driver
from gpuexec.errors import GpuexecError
from gpuexec.execution.profiling.terminal import make_table, print_table
from gpuexec.system import knobs

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


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="say what works on this machine, and what to install"
    )
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    console.print(f"driver   {driver.probe()}")
    packages = make_table(("package", "version"))
    for name in _PACKAGES:
        try:
            packages.add_row(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            packages.add_row(name, "-")
    print_table(console, packages)
    for type in (BackendType.GPU_COMPUTE, BackendType.GPU_PIXEL, BackendType.SIMULATOR, BackendType.CPU):
        try:
            backend = open_backend(type)
        except GpuexecError as error:
            console.print(f"{type.name:12} no: {error}", markup=False)
        else:
            console.print(f"{type.name:12} yes: {backend.device.name}", markup=False)
    for knob, value in knobs.list_settings():
        console.print(f"{knob.name:22} {value:12} {knob.meaning}", markup=False, soft_wrap=True)
    chosen, reason = choose_backend(BackendType.AUTO)
    console.print(f"AUTO takes {chosen.type.name}: {reason}", markup=False)
    return 0
