"""Compiled kernels of this folder, and the thread orders they run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpuexec.devices.simulator.compilation import BuiltObject, ObjectSource, build_files
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_files
from gpuexec.devices.simulator.object_cache import ObjectCache
from gpuexec.devices.simulator.toolchain import Mode

FOLDER = Path(__file__).parent / "kernels"
_SHORT = ("__half", "__nv_bfloat16")
_TO = ("float", "double", "int", "long long")
TABLE: dict[str, tuple[str, ...]] = {
    "basic.cu": (
        *("add", "block_sum", "softmax_row", "half_axpy", "histogram", "gemm"),
        *("binary<float, 0>", "binary<int, 1>"),
    ),
    "mistakes.cu": (
        *("divergent_barrier", "deadlock", "exited_lane", "lane_outside_mask", "different_operations", "many_masks"),
        *("missing_barrier", "shared_overrun", "read_unwritten_shared", "too_much_shared"),
        *("divide", "trap_at", "trap_with_copy_under_way", "store", "overflow_stack"),
        *("load_shared_as_global", "store_shared_as_global", "copy_shared_as_global"),
    ),
    "tensor.cu": ("tensor_gemm<__half, 1>", "tensor_gemm<__nv_bfloat16, 1>", "tensor_gemm<__half, 2>"),
    "intrinsics.cu": (
        *(f"convert<{to}, {kind}>" for to in ("float", "double") for kind in _SHORT),
        *(f"convert<{kind}, {of}>" for kind in _SHORT for of in _TO),
        *(f"{name}<{kind}>" for name in ("arithmetic", "fused") for kind in _SHORT),
        *("high_products", "saturating", "bits", "converse", "hurry", "atomics", "take", "layouts", "blocks_seen"),
    ),
}


def build_file(
    path: Path, expressions: Sequence[str], cache: ObjectCache | None = None, mode: Mode = "plain"
) -> BuiltObject:
    """Build the shared object of one kernel file."""
    (built,) = build_files([[ObjectSource(str(path), tuple(expressions))]], cache, mode)
    return built


def instantiations(source: str) -> Sequence[str]:
    """The table of a device of these tests: sources are absolute paths into this folder."""
    return TABLE[Path(source).name]


@pytest.fixture(scope="session")
def kernels() -> Mapping[str, SimulatorFunction]:
    """Every kernel of the folder by name expression."""
    files = load_files({FOLDER / name: expressions for name, expressions in TABLE.items()})
    return {name: function for functions in files.values() for name, function in functions.items()}


@pytest.fixture(
    params=[Schedule("forward"), Schedule("reverse"), Schedule("random", 7), Schedule("random", 8, workers=1)],
    ids=["forward", "reverse", "random", "random-alone"],
)
def schedule(request: pytest.FixtureRequest) -> Schedule:
    """Every order of turns a result must not depend on."""
    assert isinstance(request.param, Schedule)
    return request.param
