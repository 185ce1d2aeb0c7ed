"""The tour: each package's page, with the data it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuexec.importer.load import load_graph
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import AT_LOAD, AT_PLAN, run_passes
from gpuexec.planner.template import plan_graph

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("bytes", "graph", "passes", "commands", "plan", "recording", "run", "answer")
PAGE_LINES, PAGE_COLUMNS = 40, 110


def take_tour(*rooms: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "examples" / "tour.py"), *rooms]
    return subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def pages() -> dict[str, list[str]]:
    """Return the lines of each room."""
    done = take_tour()
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^\d+  (\w+) ─+$", done.stdout, flags=re.M)[1:]
    return {name: text.strip("\n").splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_each_room_has_a_page_that_fits_a_terminal(pages: dict[str, list[str]]) -> None:
    assert tuple(pages) == ROOMS
    for name, lines in pages.items():
        assert 5 <= len(lines) <= PAGE_LINES, name
        assert max(map(len, lines)) <= PAGE_COLUMNS, name


def test_pages_report_what_the_rooms_hold(pages: dict[str, list[str]]) -> None:
    path = ROOT / "examples" / "models" / "digits.onnx"
    imported = load_graph(path)
    specs = {"image": TensorSpec((1, 1, 8, 8), np.dtype("float32"))}
    graph = run_passes(imported.graph, (*AT_LOAD, *AT_PLAN), specs=specs)
    plan = plan_graph(graph, specs, Target.named("sm_90")).plan
    text = {name: "\n".join(lines) for name, lines in pages.items()}

    assert f"{path.stat().st_size:,} bytes" in text["bytes"]
    assert "image float32[batch,1,8,8]" in text["bytes"]
    assert all(
        re.search(rf"^  {node.operator.name} +{node.name} ", text["graph"], re.M) for node in imported.graph.nodes
    )
    assert [line.split()[0] for line in pages["passes"] if re.search(r"^  \w+ +\d+ ", line)] == [
        each.name for each in (*AT_LOAD, *AT_PLAN)
    ]
    assert [int(row[1]) for row in re.finditer(r"^ +(\d+) +[a-z]", text["commands"], re.M)] == [
        *range(len(plan.segment.commands))
    ]
    for kernel in plan.kernels():
        assert kernel.expression[:30] in text["commands"]
        assert kernel.expression[:30] in text["recording"]
    assert f"arena {plan.layout.nbytes:,} bytes" in text["plan"]
    assert all(
        f"{buffer.nbytes:>7,} bytes at" in text["plan"] for buffer in plan.buffers if buffer.role.value == "temp"
    )
    assert "1 of them patched" in text["recording"]
    assert "'logits', done)" in text["run"]
    assert "read right: True" in text["answer"]


def test_rooms_are_shown_by_name_and_others_refused() -> None:
    assert re.findall(r"^\d+  (\w+) ─", take_tour("plan", "bytes").stdout, re.M) == ["plan", "bytes"]
    refused = take_tour("attic")
    assert refused.returncode == 1
    assert "attic" in refused.stderr and "recording" in refused.stderr
