"""The notebook: every cell runs in a kernel, from this folder or from examples/, and it is kept without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What runs all cells in a folder and returns what they printed and showed, cell by cell."""
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name, reason=f"a notebook is executed by nbclient and ipykernel: {name} is not installed")
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(folder: Path) -> list[str]:
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
        return ["".join(_texts(cell)) for cell in notebook.cells if cell.cell_type == "code"]

    return run


def _texts(cell: Any) -> list[str]:
    return [output.text if output.output_type == "stream" else output.data["text/plain"] for output in cell.outputs]


@pytest.mark.parametrize("folder", [ROOT, NOTEBOOK.parent], ids=["root", "examples"])
def test_every_cell_runs(execute: Any, folder: Path) -> None:
    opened, *_, read, _, summary = execute(folder)
    assert "BackendType." in opened
    found = re.fullmatch(r"in a cell: (\d+) of 360 digits read right\n", read)
    assert found is not None and int(found[1]) >= 0.97 * 360
    assert "runs 2, plans 1" in summary


def test_notebook_is_kept_without_outputs() -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
