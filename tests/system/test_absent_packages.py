"""Missing optional packages: tests are skipped with a sentence, when collected and when run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n"


def run_without(tmp_path: Path, names: tuple[str, ...], *files: str) -> str:
    (tmp_path / "blocked.py").write_text(BLOCK.format(names=names))
    command = [sys.executable, "-m", "pytest", "-p", "blocked", "-p", "no:cacheprovider", "-rs", "--tb=short", *files]
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout
    return " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("names", "files", "reason"),
    [
        (
            ("onnxruntime",),
            ("tests/execution/test_counts.py", "tests/execution/segments/test_segments_chained.py"),
            "onnxruntime is not installed: pip install",
        ),
        (("PIL",), ("tests/ops/test_image_decoder.py",), "pillow is not installed: pip install"),
        (
            ("cupy", "cuda", "nvidia"),
            ("tests/devices/cuda", "tests/devices/kernels/test_nvrtc.py"),
            "not installed: pip install",
        ),
    ],
    ids=["onnxruntime", "pillow", "cuda"],
)
def test_tests_are_skipped_with_a_sentence(
    tmp_path: Path, names: tuple[str, ...], files: tuple[str, ...], reason: str
) -> None:
    said = run_without(tmp_path, names, *files)
    assert reason in said and "skipped" in said and "failed" not in said and "error" not in said.lower(), said
