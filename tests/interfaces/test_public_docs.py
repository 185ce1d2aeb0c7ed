"""Every public name has a docstring with an example, which runs; and the reference that is made of them has it all."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.cli import COMMANDS
from gpuexec.system.knobs import KNOBS
from tests.interfaces.docs import MODULES, PAGES, make_docs
from tests.interfaces.public_docs import make_names, read_docstring

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the digits, and the examples of the checkout beside the packages."""
    shutil.copy(ROOT / "examples/models/digits.onnx", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    return tmp_path


@pytest.mark.parametrize("name", gx.__all__)
def test_example_of_a_name_runs(name: str, folder: Path) -> None:
    example = doctest.DocTestParser().get_doctest(read_docstring(name), make_names(ROOT), name, name, 0)
    assert example.examples, f"gpuexec.{name} has no example"
    said: list[str] = []
    assert not doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append).failed, "".join(said)


def test_an_example_that_fails_is_seen(folder: Path) -> None:
    example = doctest.DocTestParser().get_doctest(">>> x.shape\n(8, 1, 8)\n", make_names(ROOT), "wrong", "wrong", 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(example, out=lambda _: None).failed == 1


def test_reference_has_every_name_page_variable_and_command(tmp_path: Path) -> None:
    make_docs(tmp_path, MODULES[:1], has_search=False)
    reference = (tmp_path / "gpuexec.html").read_text()
    assert [name for name in gx.__all__ if f'<section id="{name}">' not in reference] == ["fn"]
    functions = (tmp_path / "gpuexec/model/tracing/fn.html").read_text()
    assert [name for name in gx.fn.__all__ if f'<section id="{name}">' not in functions] == []
    guide = {name: (tmp_path / "guide" / f"{name}.html").read_text() for name in (*PAGES, "knobs", "commands")}
    assert all("<h1" in text for text in guide.values())
    assert [name for name in KNOBS if name not in guide["knobs"]] == []
    assert [name for name in COMMANDS if f"gpuexec {name}" not in re.sub(r"<[^>]*>", "", guide["commands"])] == []
    assert set(PAGES) == {path.stem for path in (ROOT / "examples").glob("*.md")}
