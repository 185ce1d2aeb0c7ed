"""The reference as HTML: public names by pdoc, a page for each task, environment variables and commands.

Run as a program (``python -m tests.interfaces.docs FOLDER``) it writes them into a folder; ``make docs`` does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pdoc
import pdoc.render

from gpuexec.cli import COMMANDS, main
from gpuexec.system.knobs import KNOBS
from gpuexec.system.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
# One for each task: files of examples/, in the order to read them.
PAGES = ("first_run", "decode", "serve", "profile", "own_operator", "without_a_gpu")
# Modules that are documented beside the public names: `gx.fn`, and interfaces of other systems.
_COMPAT = ("barracuda", "executorch", "onnx_backend", "onnxruntime", "polygraphy", "sentis")
MODULES = ("gpuexec.model.tracing.fn", *(f"gpuexec.compat.{name}" for name in _COMPAT))


def make_docs(folder: Path, modules: Sequence[str] = MODULES, *, has_search: bool = True) -> None:
    """Write the reference and the pages into a folder.

    Args:
        folder: Where.
        modules: What is documented beside the public names.
        has_search: Whether to write an index to search in, too.
    """
    pdoc.render.configure(docformat="google", show_source=False, search=has_search, footer_text=f"gpuexec {VERSION}")
    with tempfile.TemporaryDirectory() as made, _at(Path(made)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pandas", UserWarning)  # what Profiler.to_dataframe returns, if it is there
        guide = Path(made) / "guide"
        guide.mkdir()
        (guide / "__init__.py").write_text('"""A page for each task, environment variables, and commands."""\n')
        for name in PAGES:
            _write(guide / f"{name}.py", (ROOT / "examples" / f"{name}.md").read_text())
        _write(guide / "knobs.py", _list_knobs())
        _write(guide / "commands.py", _list_commands())
        pdoc.pdoc("gpuexec", "!gpuexec\\.", *modules, str(guide), output_directory=folder)


def _write(path: Path, text: str) -> None:
    """Write a module whose docstring is a page."""
    path.write_text(f"__doc__ = {text!r}\n__all__ = []\n")


def _list_knobs() -> str:
    """Return a page with every environment variable."""
    rows = [
        f"| `{knob.name}` | {knob.describe_values()} | {knob.describe_default()} | {knob.meaning} |"
        for knob in KNOBS.values()
    ]
    head = "# Environment variables\n\nThey are read when asked for. `gpuexec doctor` shows those that are set.\n\n"
    return head + "\n".join(["| variable | takes | default | |", "|---|---|---|---|", *rows]) + "\n"


def _list_commands() -> str:
    """Return a page with what every command takes."""
    parts = ["# Commands\n"]
    for name in COMMANDS:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([name, "--help"])
        parts.append(f"## gpuexec {name}\n\n```text\n{said.getvalue().rstrip()}\n```\n")
    return "\n".join(parts)


@contextlib.contextmanager
def _at(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported, and terminals be wide."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name == "guide" or name.startswith("guide.")]:
            del sys.modules[name]
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    make_docs(parser.parse_args().folder)
