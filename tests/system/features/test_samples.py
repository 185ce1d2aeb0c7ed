"""Rows on samples: Sentis's samples about running models, as scripts that tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interfaces.test_samples import SAMPLES

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.feature("S83")
def test_every_sample_is_there_and_is_run_by_a_test() -> None:
    wanted = {"basic_execution.py", "execute_in_parts.py", "manual_schedule.py", "readback.py", "frame_budget.py"}
    assert wanted <= set(SAMPLES)
    assert set(SAMPLES) <= {path.name for path in EXAMPLES.glob("*.py")}
