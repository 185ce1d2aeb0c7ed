"""Names over the whole package: one class name is one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
