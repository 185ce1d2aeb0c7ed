"""The page for each task: every block runs, in order, and gives what is said of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.interfaces.blocks import close_all, read_blocks, run_console, run_python
from tests.interfaces.docs import PAGES

ROOT = Path(__file__).resolve().parents[2]
# What the blocks of each page have to leave, as expressions over their names.
GIVES = {
    "first_run": [
        "(logits.argmax(1) == labels).all()",
        "np.array_equal(a, logits)",
        "bounded.dims == {'batch': (1, 64)}",
    ],
    "decode": ["worker.is_closed", "scores.shape[:2] == (1, 1)", "len(decoder.memories) == 2", "len(runs) == 4"],
    "serve": [
        "[scores.shape for scores in answers] == [(1, 10), (5, 10), (64, 10)]",
        "done == [(8, 10)] * 2",
        "Path('digits.gxp').exists()",
    ],
    "profile": [
        "len(profiler.runs()) == 5",
        "report.host_calls == report.host_reads == ()",
        "all(Path(name).exists() for name in ('trace.json', 'where.onnx', 'out.onnx', 'arena.html'))",
    ],
    "own_operator": ["abs(simulated - expected).max() < 1e-5", "abs(expected).max() > 1"],
    "without_a_gpu": ["0 < abs(on_cpu).max()", "abs(on_cpu - simulated).max() < 1e-4", "Path('out.onnx').exists()"],
}


@pytest.mark.parametrize("page", PAGES)
def test_page_runs_and_gives_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    blocks = read_blocks((ROOT / "examples" / f"{page}.md").read_text())
    assert {block.language for block in blocks} <= {"python", "console"} and blocks
    names: dict[str, Any] = {"Path": Path}
    with contextlib.ExitStack() as ending:
        ending.callback(close_all, names)
        for block in blocks:
            if block.language == "python":
                run_python(block.text, names, f"examples/{page}.md, block at line {block.line}")
            else:
                run_console(block.text, capsys)
            capsys.readouterr()
        for claim in GIVES[page]:
            assert eval(claim, names), f"{page}: {claim}"
