"""Kernels of the stand-in, from modules, with arguments as CUDA takes them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuexec.ir.command import Kernel, LaunchConfig
from gpuexec.system import knobs
from tests.devices.cupy_standin.objects import Stream
from tests.devices.cupy_standin.statuses import view_bytes

if TYPE_CHECKING:
    from tests.devices.cupy_standin.standin import Standin


class RawModule:
    def __init__(self, standin: Standin, path: str) -> None:
        assert Path(path).read_bytes().startswith(b"\x7fELF")
        self._standin = standin
        # A copy of the cache's entry, by whose key the entry's description is found.
        folder, key = knobs.kernel_cache_dir(), Path(path).name.partition("-")[0]
        assert folder is not None
        self._described = json.loads((folder / "cubins" / f"{key}.json").read_text().split("\n", 1)[1])

    def get_function(self, name: str) -> RawKernel:
        (kernel,) = (row for row in self._described["kernels"] if row["lowered_name"] == name)
        expression = kernel["expression"]
        found = Kernel(self._described["source"], expression, self._standin.texts.get(expression, ""))
        return RawKernel(self._standin, found, kernel["shared_bytes"])


class RawKernel:
    def __init__(self, standin: Standin, kernel: Kernel, shared_bytes: int) -> None:
        self._standin, self.function_kernel = standin, kernel
        self.shared_size_bytes = shared_bytes
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def compile(self) -> None:
        self._standin._require_current()
        self._standin._call(self._standin.device.load, [self.function_kernel])
        self.function = self._standin.device.function(self.function_kernel)
        self.signature = self.function.signature
        self.kernel = SimpleNamespace(ptr=self._standin.handles.add(self))

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Stream) -> None:
        assert all(isinstance(value, np.ndarray) and value.size == 1 for value in args)
        assert len(args) == len(self.signature)
        values = [np.frombuffer(value.tobytes(), np.uint8) for value in args]
        self._standin.launch(self, LaunchConfig(grid, block, shared_mem), values, stream.ptr)


def read_parameters(raw: RawKernel, parameters: int) -> list[np.ndarray]:
    """Return the bytes of each argument behind ``void** kernelParams``."""
    places = view_bytes(parameters, 8 * len(raw.signature)).view(np.uint64)
    # Where the simulator's kernel takes the address of texels, the GPU's takes an object and a byte.
    wide = 16 if raw.function_kernel.source.startswith("pixel/") else 8
    sizes = [wide if kind == "P8" else int(kind[1:]) for kind in raw.signature]
    return [view_bytes(int(place), size).copy() for place, size in zip(places, sizes, strict=True)]


def unpack(kind: str, value: np.ndarray) -> Any:
    """Return the scalar, or the bytes of a struct, that ``kind`` spells."""
    assert value.nbytes == int(kind[1:]), f"{kind} got {value.nbytes} bytes"
    if kind[0] == "s":
        return value.tobytes()
    if kind == "b1":
        return value.view(np.bool_)[0]
    if kind == "f2":
        return value.view(np.float16)[0]
    return value.view(f"{kind[0]}{kind[1:]}")[0]
