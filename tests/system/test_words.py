"""First lines of modules and kernel sources, one line each, which names a subject; and no banners over sections."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = ("what", "where", "how", "who", "whom", "whose", "whoever", "whether", "which", "when", "why")
KERNELS = (".cu", ".cuh", ".cpp", ".h")
BANNER = re.compile(r"^\s*(?:#|//)\s*[-=#*]{3,}", re.MULTILINE)


def find_fault(line: str) -> str | None:
    """Return what is wrong with a first line, or None."""
    if "\n" in line or not line.endswith("."):
        return "it does not end in a period, or goes on in the next line"
    if line.split()[0].rstrip(":,").lower() in QUESTIONS:
        return "it begins with a question word"
    return None


def read_module(path: Path) -> str:
    """Return the first paragraph of a module's docstring as it stands."""
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n\n")[0]


def read_kernel(path: Path) -> str:
    """Return the first line of a kernel source, which is a comment."""
    line = path.read_text(encoding="utf-8").partition("\n")[0]
    return line.removeprefix("// ") if line.startswith("// ") else ""


def list_faults(lines: dict[str, str]) -> list[str]:
    found = {name: find_fault(line) if line else "there is none" for name, line in lines.items()}
    return [f"{name}: first line {lines[name]!r}: {fault}" for name, fault in found.items() if fault is not None]


def test_first_line_of_a_module_names_its_subject() -> None:
    paths = sorted((ROOT / "gpuexec").rglob("*.py"))
    assert paths
    faults = list_faults({str(path.relative_to(ROOT)): read_module(path) for path in paths})
    assert not faults, "\n".join(faults)


def test_first_line_of_a_kernel_source_names_its_subject() -> None:
    paths = sorted(path for path in (ROOT / "kernels").rglob("*") if path.suffix in KERNELS)
    assert paths
    faults = list_faults({str(path.relative_to(ROOT)): read_kernel(path) for path in paths})
    assert not faults, "\n".join(faults)


def test_no_banner_stands_over_a_section() -> None:
    paths = [path for room in ("gpuexec", "tests", "examples", "kernels") for path in sorted((ROOT / room).rglob("*"))]
    sources = [path for path in paths if path.suffix in (".py", *KERNELS)]
    assert len(sources) > 1000
    found = [str(path.relative_to(ROOT)) for path in sources if BANNER.search(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize("line", ["# ---- results", "    # -------- parts", "// ==== loads", "#####"])
def test_a_banner_is_found(line: str) -> None:
    assert BANNER.search(f"x = 1\n\n{line}\n") and not BANNER.search("# a -- b\n#   - a point of a list\n")


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("Dead-code elimination.", False),
        ("Wheres and whats.", False),
        ("What nobody reads goes.", True),
        ("Where: it lies.", True),
        ("whether all of a text matches.", True),
        ("A sentence that goes on", True),
        ("Two lines,\nof one sentence.", True),
        ("Two lines.\nOf two sentences.", True),
    ],
)
def test_a_riddle_is_found(line: str, is_fault: bool) -> None:
    assert bool(list_faults({"module": line})) == is_fault
