"""Import order and rooms: imports come only from lower floors, onnx and cupy stay in theirs, and rooms are few."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "gpuexec").rglob("*.py"))

# Rooms (modules and packages of gpuexec) from the ground up. Rooms of one floor never import each other.
FLOORS = (
    ("errors",),
    ("system",),
    ("ir",),
    ("ops",),
    ("importer", "passes", "planner", "devices"),
    ("model",),
    ("execution",),
    ("program",),
    ("__init__",),  # the public names
    ("compat", "cli"),
)
# Modules and packages within a room, from the ground up, in the same way. Within the other rooms, and within what
# stands here, modules import each other as they like.
INNER = {
    "system": (
        (
            "array_files",
            "blas",
            "cores",
            "extensions",
            "knobs",
            "phases",
            "atomic_file",
            "records",
            "system_files",
            "version",
        ),
        ("html", "mapped", "progress", "threads"),
        ("pickling",),
    ),
    "ir": (
        ("symbolic_int",),
        ("validate", "signatures", "geometry", "instances", "kernel_values", "library_problem")
        + ("precision", "spec", "target"),
        ("arena_drawing", "command", "containers", "content_key", "gpus", "host_values", "weight_forms"),
        ("index_map", "moving_arguments", "pointwise", "provider", "roofline", "row_form"),
        ("operator", "plan", "work"),
        ("apply", "graphs", "plan_json", "prepared_calls", "size_layout"),
        ("graph_json", "inferences"),
    ),
    "devices": (
        ("arguments", "dlpack", "host", "kernels", "latch", "libraries", "residency", "revision", "working_here"),
        ("device", "work_thread"),
        ("pixel",),
        ("launch_costs", "completion", "deferred_free", "size_writer"),
        ("prepared", "cpu", "memory_pool", "staging", "transfers"),
        ("graph_cache", "dependent_launch", "device_sizes"),
        ("graph_form",),
        ("recording",),
        ("cuda", "recorder", "simulator"),
        ("backend",),
    ),
    "model": (
        ("state_pairs", "state_spec", "outputs", "ports"),
        ("initial_state",),
        ("editing",),
        ("model",),
        ("loading", "tracing"),
    ),
    "execution": (
        ("inspection", "profiling"),
        ("resources", "weights"),
        ("results",),
        ("runs",),
        ("state",),
        ("run_binder",),
        ("engine", "placement"),
        ("replay", "report"),
        ("worker",),
        ("batcher", "calibration", "debugging", "images", "tuning"),
    ),
}
HEIGHT = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
INNER_HEIGHT = {
    room: {name: floor for floor, names in enumerate(floors) for name in names} for room, floors in INNER.items()
}
MAX_ENTRIES, MAX_FLOORS = 14, 10

# The command line as ``python -m gpuexec``, which can lie nowhere else.
_ENTRY_POINT = "gpuexec/__main__.py"
# What stands in tests/: rooms of gpuexec's, `interfaces` for what users meet, `system` for the project as a whole.
TESTS = {
    *("__init__.py", "conftest.py", "bench", "interfaces", "system"),
    *("ir", "ops", "importer", "passes", "planner", "devices", "model", "execution", "program"),
}

# Modules that import each other, whether on load or when called: only where what they read or trace is recursive.
CIRCLES = (
    # A body is read by the functions that read the graph it stands in, and expands as that does.
    *("importer.bodies importer.entries importer.expand importer.node_reader",),
    # A traced array has methods that are traced functions, which return traced arrays.
    " ".join(
        f"model.tracing.{stem}"
        for stem in (
            *("activations", "assigning", "control", "creation", "dispatch", "drawing", "elementwise", "finding"),
            *("fn", "forward", "indexing", "joining", "network", "nodes", "normalizing"),
            *("norms", "matrix_products", "promotion", "recipes", "reducing", "scope", "selecting"),
            *("shaping", "signal", "symbolic", "tracer"),
        )
    ),
)

# Modules under SMALL_LINES lines that exactly one other imports, with the reason why they are no part of it; those
# that an `__init__` imports, as operators and passes are registered, are aside.
SMALL_LINES = 100
SMALL = {
    "cli.memory_page": "the page that `gpuexec explain` writes, beside what it prints",
    "cli.predictions": "predictions as text and as JSON, of the many tables that `gpuexec explain` prints",
    "compat.onnxruntime.profile": "the format of ONNX Runtime's profile files",
    "devices.cuda.cuda_ranges": "cupy stays in its homes, and the profile log has another room",
    "devices.kernels.cubin_file": "the format of cubins, apart from the compiler that makes them",
    "devices.pixel.addresses": "the address space of textures, below the device that uses it",
    "devices.simulator.rewrite": "the text that a host compiler is given, apart from how it is called",
    "devices.staging": "one of the resources that a backend opens, as transfers and completion are",
    "execution.profiling.alignment": "the alignment of clocks, an algorithm of its own",
    "importer.infer": "onnx stays in the importer, and edits of models call it",
    "importer.versions": "onnx stays in the importer, and `gpuexec ops` calls it",
    "model.editing.renaming": "one of the families of edits, beside selecting and joining",
    "model.state_pairs": "what names say, beside what is checked of pairs whoever names them",
    "model.tracing.normalizing": "a family of traced functions",
    "model.tracing.norms": "a family of traced functions",
    "model.tracing.signal": "a family of traced functions",
    "ops.text.search": "the search of texts by automata, which stand beside it",
    "passes.append_rows": "a rewriting of graphs among passes, which a memory's capacity asks for",
    "planner.own_rounding": "a rewriting of graphs, by what the kernels of a target round themselves",
    "system.cores": "calls of the system, of which others have none",
    "system.extensions": "how packages announce operators of theirs, below the registry that asks for them",
}

# Who may import these libraries.
HOMES = {
    "onnx": ("gpuexec/importer/", "gpuexec/compat/onnx_backend.py"),
    "cupy": (
        "gpuexec/devices/cuda/cuda.py",
        "gpuexec/devices/cuda/cuda_ranges.py",
        "gpuexec/devices/kernels/kernel_library.py",
        "gpuexec/execution/results/tensor.py",
    ),
}


def test_modules_import_only_downward() -> None:
    problems = [problem for path in MODULES for problem in find_problems(path, (ROOT / path).read_text())]
    assert problems == []


def test_rooms_and_floors_stay_few() -> None:
    entries = [
        path.name
        for path in (ROOT / "gpuexec").iterdir()
        if (path.suffix == ".py" and path != ROOT / _ENTRY_POINT) or (path / "__init__.py").exists()
    ]
    assert len(entries) <= MAX_ENTRIES and len(FLOORS) <= MAX_FLOORS
    assert {entry.removesuffix(".py") for entry in entries} == set(HEIGHT)


def test_folders_of_kernels_stay_few() -> None:
    assert len(list((ROOT / "kernels").iterdir())) <= MAX_ENTRIES


def test_rooms_of_tests_stay_few() -> None:
    entries = {path.name for path in (ROOT / "tests").iterdir() if path.name != "__pycache__"}
    assert entries == TESTS and len(entries) <= MAX_ENTRIES


def test_modules_that_import_each_other_are_named() -> None:
    groups = _find_circles(_find_imports())
    circles = {" ".join(sorted(each.removeprefix("gpuexec.") for each in group)) for group in groups}
    assert circles == {" ".join(sorted(row.split())) for row in CIRCLES}


def test_small_modules_with_one_importer_are_named() -> None:
    imports = _find_imports()
    importers: dict[str, set[str]] = {name: set() for name in imports}
    for name, found in imports.items():
        for each in found:
            importers[each].add(name)
    packages = {_dotted(path) for path in MODULES if path.endswith("__init__.py")}
    names = {_dotted(path): path for path in MODULES if not path.endswith(("__init__.py", "__main__.py"))}
    small = {name for name, path in names.items() if len((ROOT / path).read_text().splitlines()) < SMALL_LINES}
    alone = {name for name in small if len(importers[name]) == 1 and importers[name].isdisjoint(packages)}
    assert {name.removeprefix("gpuexec.") for name in alone} == set(SMALL)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gpuexec/errors.py", "import gpuexec.system.knobs"),
        ("gpuexec/ir/spec.py", "from gpuexec.ir.command import Slot"),
        ("gpuexec/ir/spec.py", "from gpuexec.ir import command"),
        ("gpuexec/ir/spec.py", "from .command import Slot"),
        ("gpuexec/ops/nn/norm.py", "from ...devices import device"),
        ("gpuexec/ops/nn/norm.py", "def f():\n    from gpuexec.planner import lower"),
        (
            "gpuexec/ir/graphs.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from gpuexec.execution.worker import Worker",
        ),
        ("gpuexec/ir/graphs.py", "import importlib\nimportlib.import_module('gpuexec.planner')"),
        ("gpuexec/planner/lower.py", "from gpuexec.devices.device import Device"),
        ("gpuexec/devices/device.py", "from gpuexec import planner"),
        ("gpuexec/importer/load.py", "import gpuexec.passes.fold as fold"),
        ("gpuexec/passes/fold.py", "from gpuexec.importer import load"),
        ("gpuexec/execution/results/tensor.py", "from gpuexec.execution.runs.run import Run"),
        ("gpuexec/execution/resources/memory.py", "from gpuexec.execution.results.readback import ReadbackRequest"),
        ("gpuexec/execution/runs/run.py", "from gpuexec.execution import worker"),
        ("gpuexec/execution/runs/run.py", "from gpuexec import Worker"),
        ("gpuexec/execution/runs/run.py", "import gpuexec"),
        ("gpuexec/execution/attic.py", "import gpuexec.errors"),
        ("gpuexec/cli/run.py", "from gpuexec.compat import onnx_backend"),
        ("gpuexec/__init__.py", "from gpuexec.cli import main"),
        ("gpuexec/attic.py", ""),
        ("gpuexec/attic/__init__.py", ""),
        ("gpuexec/cli/run.py", "import gpuexec.attic"),
        ("gpuexec/ir/graphs.py", "import onnx.helper"),
        ("gpuexec/ops/nn/norm.py", "def f():\n    from onnx import helper"),
        ("gpuexec/cli/run.py", "import onnx"),
        ("gpuexec/importer/load.py", "import cupy"),
        ("gpuexec/devices/device.py", "__import__('cupy')"),
    ],
)
def test_bad_import_is_found(path: str, source: str) -> None:
    assert len(find_problems(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("gpuexec/ir/spec.py", "import numpy as np\nimport onnxruntime_tools\nfrom gpuexec.errors import InputError"),
        (
            "gpuexec/planner/lower.py",
            "from gpuexec.planner.arena import pack\nfrom . import edges\nfrom gpuexec.ops.nn import norm",
        ),
        ("gpuexec/importer/load.py", "import onnx\nfrom onnx import helper"),
        (
            "gpuexec/execution/results/tensor.py",
            "def f():\n    import cupy\nfrom gpuexec.execution.results import readback",
        ),
        ("gpuexec/execution/worker.py", "from gpuexec.execution import engine\nimport gpuexec.execution.runs.run"),
        ("gpuexec/__init__.py", "from gpuexec.execution.worker import Worker\nfrom gpuexec.errors import InputError"),
        (
            "gpuexec/cli/run.py",
            "import gpuexec as gx\nfrom gpuexec import Worker, load\nfrom gpuexec.system import knobs",
        ),
    ],
)
def test_good_import_is_left_alone(path: str, source: str) -> None:
    assert find_problems(path, source) == []


@pytest.mark.parametrize(
    ("imports", "circles"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a", "c"}, "c": set()}, [{"a", "b"}]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d", "a"}}, [{"a", "b", "c"}, {"d", "e"}]),
    ],
)
def test_circles_are_found(imports: dict[str, set[str]], circles: list[set[str]]) -> None:
    assert sorted(map(sorted, _find_circles(imports))) == sorted(map(sorted, circles))


def find_problems(path: str, source: str) -> list[str]:
    """Return a sentence for each import of ``source`` that climbs, stays on its floor, or leaves a library's home."""
    own = ["cli"] if path == _ENTRY_POINT else _dotted(path).split(".")[1:] or ["__init__"]
    if own[0] not in HEIGHT:
        return [f"{path} stands on no floor: give '{own[0]}' its place in FLOORS."]
    if own[0] in INNER and len(own) > 1 and own[1] not in INNER_HEIGHT[own[0]]:
        return [f"{path} stands on no floor: give '{own[1]}' its place in INNER."]
    problems = []
    for line, names in _imports(path, ast.parse(source)):
        library = names[0].split(".")[0]
        if library in HOMES and not path.startswith(HOMES[library]):
            problems.append(f"{path}:{line} imports {library}, which belongs to {', '.join(HOMES[library])}.")
        if library != "gpuexec":
            continue
        for room, inner in {_place(name) for name in names}:
            if room not in HEIGHT:
                problems.append(f"{path}:{line} imports gpuexec.{room}, which stands on no floor.")
            elif room != own[0]:
                if HEIGHT[room] >= HEIGHT[own[0]]:
                    problems.append(f"{path}:{line} imports {room}, which is not on a lower floor than {own[0]}.")
            elif room in INNER and len(own) > 1 and inner not in ("", own[1]):
                heights = INNER_HEIGHT[room]
                if heights.get(inner, len(heights)) >= heights[own[1]]:
                    problems.append(f"{path}:{line} imports {room}.{inner}, which is not below {room}.{own[1]}.")
    return problems


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _place(name: str) -> tuple[str, str]:
    """Return room and part of ``gpuexec.room.part.name``; what the package gives itself, and is no room, is its own."""
    _, *parts = name.split(".")
    if len(parts) > 1 or (parts and parts[0] in HEIGHT):
        inner = parts[1] if len(parts) > 1 and parts[1] not in ("", "*") else ""
        return parts[0], inner
    return "__init__", ""


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
                yield (
                    node.lineno,
                    [f"{node.args[0].value}.*" if "." in str(node.args[0].value) else str(node.args[0].value)],
                )


def _find_imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, wherever the statement stands."""
    names = {_dotted(path): path for path in MODULES}
    imports: dict[str, set[str]] = {}
    for name, path in names.items():
        found = {each for _, rows in _imports(path, ast.parse((ROOT / path).read_text())) for each in rows}
        found |= {each.rpartition(".")[0] for each in found if each not in names}
        imports[name] = found & names.keys() - {name}
    return imports


def _find_circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules from each of which every other is reached."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, left = set[str](), [start]
        while left:
            for name in imports[left.pop()] - found:
                found.add(name)
                left.append(name)
        reached[start] = found
    circles: list[set[str]] = []
    for name, found in reached.items():
        circle = {other for other in found if name in reached[other]}
        if len(circle) > 1 and circle not in circles:
            circles.append(circle)
    return circles
