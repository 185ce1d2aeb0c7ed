"""Benchmark of weight uploads: host memory and time, by the form of the file."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.tables import Figures, beside
from tests.execution.weights.models import make_chain, save_inside, save_program

ROOT = Path(__file__).resolve().parents[2]
LAYERS, SIDE = 8, 4096
NBYTES = LAYERS * SIDE * SIDE * 4
MAX_EXTRA = 128 << 20
# File, and the most it may take beside what the process has before.
_FORMS = {"beside.onnx": MAX_EXTRA, "model.gxp": MAX_EXTRA, "inside.onnx": NBYTES + MAX_EXTRA}
_COLUMNS = ("weights", "MiB", "peak beyond the process's own, MiB", "bound", "", "whole process, s")


def measure_weights() -> list[Figures]:
    """Measure peaks of resident memory in processes that load a model and upload to a device that keeps nothing."""
    figures = Figures("Host memory for weights, beside a file, in a program, inside the model", _COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_chain(LAYERS, SIDE)
        save_program(model, folder)
        save_inside(model, folder)
        for file, bound in _FORMS.items():
            start = time.perf_counter()
            command = [sys.executable, "-m", "tests.execution.weights.peak", str(folder / file)]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            seconds = time.perf_counter() - start
            extra = json.loads(done.stdout)["extra"]
            figures.add(file, NBYTES >> 20, extra >> 20, bound >> 20, beside(extra, bound), seconds)
    return [figures]
