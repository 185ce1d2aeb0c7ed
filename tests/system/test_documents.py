"""Documents of the project: their tables, paths, names and commands are those of the code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from tests.system.hops import count_hops
from tests.system.test_floors import FLOORS

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "models" / "digits.onnx"
DOCUMENTS = ("ARCHITECTURE.md", "CONTRIBUTING.md", "gpuexec/DECISIONS.md", "gpuexec/ops/README.md")
# A reading of ten minutes; what is longer goes into DECISIONS.md or a docstring.
MAX_WORDS = 2600
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"\w[\w.-]*(/[\w.-]+)*/?")
SUFFIXES = (".py", ".md", ".cu", ".cuh", ".cpp", ".gxp", ".txt")
NAME = re.compile(r"@?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?")


@functools.cache
def list_paths() -> frozenset[str]:
    """Return the project's files and folders, the folders with a slash behind."""
    found = {path.name for path in ROOT.iterdir() if path.is_file()}
    for room in ("gpuexec", "kernels", "tests", "examples"):
        paths = [ROOT / room, *(path for path in (ROOT / room).rglob("*") if "__pycache__" not in path.parts)]
        found.update(path.relative_to(ROOT).as_posix() + "/" * path.is_dir() for path in paths)
    return frozenset(found)


@functools.cache
def list_endings() -> frozenset[str]:
    """Return what documents may call these: from any folder on, a module without its suffix, a folder without slash."""
    endings = set()
    for path in list_paths():
        parts = path.removesuffix("/").split("/")
        for start in range(len(parts)):
            ending = "/".join(parts[start:])
            endings.update((ending, ending.removesuffix(".py"), ending + "/" * path.endswith("/")))
    return frozenset(endings)


@functools.cache
def list_words() -> frozenset[str]:
    """Return the words in the sources, names among them."""
    sources = [ROOT / path for path in list_paths() if path.endswith((".py", ".cu", ".cuh", ".cpp", ".h"))]
    return frozenset(
        word
        for path in sources
        if path.name != Path(__file__).name
        for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))
    )


@functools.cache
def list_targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def read_prose(text: str) -> str:
    """Return a document without its blocks of code."""
    return FENCE.sub("", text)


def list_code(text: str) -> Iterator[str]:
    """Yield what stands between backticks."""
    for found in re.findall(r"`([^`]+)`", read_prose(text)):
        yield " ".join(found.split())


def find_faults(text: str) -> list[str]:
    """Return the paths, names and commands of a document that the project does not have."""
    return [code for code in dict.fromkeys(list_code(text)) if not is_known(code)]


def is_known(code: str) -> bool:
    """Return whether the project has what is named, or it is neither a path nor a name nor a command."""
    if command := re.fullmatch(r"python -m ([\w.]+)( .*)?", code):
        return is_module(command[1])
    if command := re.fullmatch(r"make ([a-z-]+)", code):
        return command[1] in list_targets()
    if re.fullmatch(r"tests\.[\w.]+", code):
        return is_module(code)
    if ("/" in code or code.endswith(SUFFIXES)) and PATH.fullmatch(code):
        return code in list_endings()
    if NAME.fullmatch(code):
        return code in list_endings() or all(part in list_words() for part in re.findall(r"\w+", code))
    return True


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module or package of the project, or one of another project."""
    if name.split(".")[0] not in ("gpuexec", "tests"):
        return True
    path = name.replace(".", "/")
    return f"{path}.py" in list_paths() or f"{path}/__main__.py" in list_paths()


def read_table(head: str) -> list[list[str]]:
    """Return the rows of the table of ARCHITECTURE.md whose first cell is ``head``."""
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def list_entries(cell: str) -> list[str]:
    """Return the entries that a cell names, folders without their slash."""
    return [found.removesuffix("/") for found in re.findall(r"`([^`]+)`", cell)]


def list_packages(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_table_of_rooms_is_that_of_the_floors() -> None:
    floors: list[list[str]] = []
    for floor, room, _ in read_table("floor"):
        if floor:
            floors.append([])
            assert floor == str(len(floors))
        floors[-1] += list_entries(room)
    assert [sorted(rooms) for rooms in floors] == [sorted(rooms) for rooms in FLOORS]


def test_table_of_rooms_names_their_folders() -> None:
    for _, room, reported in read_table("floor"):
        (name,) = list_entries(room)
        if name != "__init__":
            assert set(re.findall(r"`(\w+)/`", reported)) == list_packages(ROOT / "gpuexec" / name), name


@pytest.mark.parametrize("folder", ["kernels", "tests"])
def test_table_of_entries_is_that_of_the_folder(folder: str) -> None:
    reported = [name for row in read_table(f"entry of `{folder}/`") for name in list_entries(row[0])]
    found = [path.stem for path in (ROOT / folder).iterdir() if path.name != "__pycache__"]
    assert sorted(reported) == sorted(found)


def test_walk_of_a_schedule_is_in_the_order_of_its_calls() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    steps = text.partition("### A run")[2].partition("\n## ")[0]
    heads = re.findall(r"^\d+\. \*\*[^*]+\*\* \((.*?)\)\.", steps, re.MULTILINE | re.DOTALL)
    reported = [f"{module}.py" for head in heads for module in re.findall(r"`([^`]+)`", head)]
    x = np.zeros((4, 1, 8, 8), np.float32)
    with gx.Worker(DIGITS, backend="cpu") as worker:
        for _ in range(3):
            worker.run(x)
        walked = iter([file for file, _ in count_hops(lambda: worker.schedule(x)).walk])
    assert len(heads) == 7 and len(reported) > 10
    # `in` goes on from where the last was found.
    assert [module for module in reported if module not in walked] == []


def test_architecture_is_a_reading_of_ten_minutes() -> None:
    words = (ROOT / "ARCHITECTURE.md").read_text().replace("|", " ").split()
    assert len(words) <= MAX_WORDS


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document_names_what_there_is(document: str) -> None:
    assert find_faults((ROOT / document).read_text()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_lines_of_a_document_are_short(document: str) -> None:
    prose = read_prose((ROOT / document).read_text())
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []


@pytest.mark.parametrize(
    "code",
    [
        "execution/runs/attic",
        "gpuexec/attic.py",
        "attic/",
        "attic.cuh",
        "AtticOfPlans",
        "PlanCache.find_attic",
        "python -m tests.system.attic",
        "tests.system.attic",
        "make attic",
    ],
)
def test_what_is_not_there_is_found(code: str) -> None:
    assert find_faults(f"Text, `{code}`,\nand `planner/lower`.\n```\n`more_of_an_attic`\n```\n") == [code]


@pytest.mark.parametrize(
    "code",
    [
        "execution/runs/plan_cache",
        "planner/lower.py",
        "kernels/",
        "softmax.cu",
        "PlanCache.choose",
        "find_partition",
        "python -m tests.system.hops --list",
        "python -m pip list",
        "make quick",
        "[first, last)",
        "tests/ops/test_<stem>.py",
    ],
)
def test_what_is_there_is_left_alone(code: str) -> None:
    assert find_faults(f"`{code}`") == []
