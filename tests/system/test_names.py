"""Names over the whole package: one class name is one class, one stem of a file is one subject."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Stems (names of modules without their folders) that stand more than once, with the folders and the reason. Modules of
# `compat/onnxruntime` are not counted: there the folder says whose words they are.
STEMS = {
    # Operators of com.microsoft beside those of ONNX that they extend.
    "attention": "ops/microsoft ops/nn",
    "conv": "ops/microsoft ops/nn",
    "matmul": "ops/linalg ops/microsoft",
    "norm": "ops/microsoft ops/nn",
    "rotary": "ops/microsoft ops/nn",
    # Operators, and the functions of traced programs that become these.
    "control": "model/tracing ops/control",
    "elementwise": "model/tracing ops/elementwise",
    # The command of that name, and what it calls.
    "run": "cli execution/runs",
    "verify": "cli planner",
    # Operators that give the statistics of a tensor, and these as users read them.
    "statistics": "execution/inspection ops/reduce",
    # The protocol, and the simulator's implementation of it.
    "device": "devices devices/simulator",
    # A word of two fields: views of tensors, and offsets in the arena.
    "layout": "ops/tensor planner",
    # Memory of a device, and memory of an engine.
    "memory": "devices/simulator execution/resources",
    # A compiled file of kernels as CUDA names it, and ExecuTorch's Module.
    "module": "devices/simulator program",
    # Recorders of calls: those made to a device, and those made to arrays.
    "tracer": "devices/recorder model/tracing",
}


def list_classes() -> Iterator[tuple[str, str]]:
    """Yield name and place of each class, but for classes that bear another system's names, which stand in compat."""
    for path in sorted((ROOT / "gpuexec").rglob("*.py")):
        place = path.relative_to(ROOT / "gpuexec").as_posix()
        if not place.startswith("compat/"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and not is_operator(node):
                    yield node.name, place


def is_operator(node: ast.ClassDef) -> bool:
    """Return whether a class is registered as an operator, which is named as ONNX or another domain has it."""
    calls = [each.func for each in node.decorator_list if isinstance(each, ast.Call)]
    return any(isinstance(function, ast.Name) and function.id == "operator" for function in calls)


def test_class_name_is_one_class() -> None:
    places = defaultdict(list)
    for name, place in list_classes():
        places[name].append(place)
    assert len(places) > 500
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_stem_is_one_subject() -> None:
    folders = defaultdict(list)
    for path in sorted((ROOT / "gpuexec").rglob("*.py")):
        folder = path.parent.relative_to(ROOT / "gpuexec").as_posix()
        if not path.stem.startswith("__") and not folder.startswith("compat/onnxruntime"):
            folders[path.stem].append(folder)
    assert len(folders) > 400
    assert {stem: " ".join(found) for stem, found in folders.items() if len(found) > 1} == STEMS
