"""Import floors: a module of gpuexec imports only from lower floors; onnx and cupy stay in their packages."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gpuexec").rglob("*.py"))

# Rooms (a module or a package of gpuexec) from the ground up. Rooms of one floor never import each other; within a
# package anything goes. The rooms of what users hold have an order, so each is a floor of its own here.
HELD = (
    *("state_spec", "ports", "initial_state", "editing", "model", "loading"),
    *("inspecting", "profiling", "weights"),
    *("resources", "results", "array_program", "running", "state"),
    *("run_binder", "engine", "replay", "programs", "report", "flushing", "scheduling", "worker", "diagnosing"),
    "images",
)
FLOORS = (
    ("errors", "phases", "system_files", "version"),
    ("array_files", "attributes", "extensions", "geometry", "knobs")
    + ("atomic_file", "signatures", "spec", "target", "progress", "mapped"),
    ("command", "containers", "pickling"),
    ("host_values", "instances", "operator"),
    ("graphs", "plan", "apply"),
    ("validate",),
    ("plan_json", "graph_json"),  # beside what they write down
    ("ops",),
    ("importer", "passes", "planner", "runtime"),
    *((room,) for room in HELD),
    ("__init__",),  # the public names
    ("compat", "cli"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Who may import these libraries.
HOMES = {
    "onnx": ("gpuexec/importer/", "gpuexec/compat/onnx_backend.py"),
    "cupy": (
        "gpuexec/runtime/cuda.py",
        "gpuexec/runtime/cuda_ranges.py",
        "gpuexec/runtime/kernel_library.py",
        "gpuexec/results/tensor.py",
    ),
}


def test_modules_import_only_downward() -> None:
    assert [problem for path in MODULES for problem in find_problems(path, (ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gpuexec/errors.py", "import gpuexec.knobs"),
        ("gpuexec/spec.py", "from gpuexec.command import Slot"),
        ("gpuexec/spec.py", "from gpuexec import command"),
        ("gpuexec/spec.py", "from .command import Slot"),
        ("gpuexec/ops/norm.py", "from ..runtime import cuda"),
        ("gpuexec/ops/norm.py", "def f():\n    from gpuexec.planner import lower"),
        (
            "gpuexec/graphs.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpuexec.worker import Worker",
        ),
        ("gpuexec/graphs.py", "import importlib\nimportlib.import_module('gpuexec.plan')"),
        ("gpuexec/planner/lower.py", "from gpuexec.runtime.device import Device"),
        ("gpuexec/runtime/cpu.py", "from gpuexec import planner"),
        ("gpuexec/importer/load.py", "import gpuexec.passes.fold as fold"),
        ("gpuexec/passes/fold.py", "from gpuexec.importer import load"),
        ("gpuexec/results/tensor.py", "from gpuexec.running.run import Run"),
        ("gpuexec/resources/memory.py", "from gpuexec.results.readback import ReadbackRequest"),
        ("gpuexec/running/run.py", "from gpuexec import Worker"),
        ("gpuexec/running/run.py", "from gpuexec import load"),
        ("gpuexec/running/run.py", "import gpuexec"),
        ("gpuexec/cli/run.py", "from gpuexec.compat import onnx_backend"),
        ("gpuexec/__init__.py", "from gpuexec.cli import main"),
        ("gpuexec/attic.py", ""),
        ("gpuexec/attic/__init__.py", ""),
        ("gpuexec/cli/run.py", "import gpuexec.attic"),
        ("gpuexec/graphs.py", "import onnx.helper"),
        ("gpuexec/ops/norm.py", "def f():\n    from onnx import helper"),
        ("gpuexec/cli/run.py", "import onnx"),
        ("gpuexec/importer/load.py", "import cupy"),
        ("gpuexec/runtime/device.py", "__import__('cupy')"),
    ],
)
def test_bad_import_is_found(path: str, source: str) -> None:
    assert len(find_problems(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gpuexec/spec.py", "import numpy as np\nimport onnxruntime_tools\nfrom gpuexec.errors import InputError"),
        (
            "gpuexec/planner/lower.py",
            "from gpuexec.planner.arena import pack\nfrom . import edges\nfrom gpuexec.ops import norm",
        ),
        ("gpuexec/importer/load.py", "import onnx\nfrom onnx import helper"),
        (
            "gpuexec/results/tensor.py",
            "def f():\n    import cupy\nfrom gpuexec.results import readback",
        ),
        ("gpuexec/__init__.py", "from gpuexec.worker import Worker\nfrom gpuexec.errors import InputError"),
        ("gpuexec/cli/run.py", "import gpuexec as gx\nfrom gpuexec import Worker, load, knobs"),
    ],
)
def test_good_import_is_left_alone(path: str, source: str) -> None:
    assert find_problems(path, source) == []


def find_problems(path: str, source: str) -> list[str]:
    """Return a sentence for each import of ``source`` that climbs, stays on its floor, or leaves a library's home."""
    room = path.removesuffix(".py").split("/")[1]
    if room not in FLOOR_OF:
        return [f"{path} stands on no floor: give '{room}' its place in FLOORS."]
    problems = []
    for line, names in _imports(path, ast.parse(source)):
        library = names[0].split(".")[0]
        if library in HOMES and not path.startswith(HOMES[library]):
            problems.append(f"{path}:{line} imports {library}, which belongs to {', '.join(HOMES[library])}.")
        if library != "gpuexec":
            continue
        for imported in {_room(name) for name in names}:
            if imported not in FLOOR_OF:
                problems.append(f"{path}:{line} imports gpuexec.{imported}, which stands on no floor.")
            elif imported != room and FLOOR_OF[imported] >= FLOOR_OF[room]:
                problems.append(f"{path}:{line} imports {imported}, which is not on a lower floor than {room}.")
    return problems


def _imports(path: str, tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, full names) of every import statement or call, wherever it stands."""
    package = path.removesuffix(".py").split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, [f"{alias.name}.*" if "." in alias.name else alias.name]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield node.lineno, [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("import_module", "__import__"):
                yield node.lineno, [str(node.args[0].value)]


def _room(name: str) -> str:
    """Return the room of ``gpuexec.room.name``; what the package gives itself, and is no room, is ``__init__``'s."""
    _, *parts = name.split(".")
    return parts[0] if len(parts) > 1 or (parts and parts[0] in FLOOR_OF) else "__init__"
