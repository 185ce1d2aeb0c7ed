"""Warnings about unclosed objects, with the line that made them."""

from __future__ import annotations

import gc
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import gpuexec as gx
from tests.model.small_models import CPU, affine, ramp

ROOT = Path(__file__).resolve().parents[3]


def test_worker_never_closed_is_reported_with_its_line() -> None:
    worker = gx.Worker(affine(), backend=CPU)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    worker.run(ramp(2, 3))
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always", ResourceWarning)
        del worker
        gc.collect()
    own = [row for row in reported if row.filename == __file__]
    assert [row.lineno for row in own] == [line]
    assert re.match(rf"A Worker of 'small', made at .*test_unclosed.py:{line}, was never closed", str(own[0].message))


def test_worker_that_was_closed_is_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with gx.Worker(affine(), backend=CPU) as worker:
            worker.run(ramp(2, 3))
        again = gx.Worker(affine(), backend=CPU)
        again.close()
        del worker, again
        gc.collect()


def test_worker_that_could_not_be_made_is_not_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        with pytest.raises(gx.InputError):
            gx.Worker(affine(), backend=CPU, frames=0)
        gc.collect()


def test_end_of_the_process_is_quiet() -> None:
    text = (
        "import gpuexec as gx; from tests.model.small_models import affine, ramp, CPU\n"
        "kept = gx.Worker(affine(), backend=CPU); kept.run(ramp(2, 3))\n"
        "import sys; sys.kept = gx.Worker(affine(), backend=CPU)\n"
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", text]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "never closed" not in result.stderr
