"""The examples: every script runs, and reads the digits right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.devices.opening import why_no_gpu

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = {
    "basic_execution.py": ["one input", "by name", "blocking"],
    "execute_in_parts.py": ["in parts"],
    "manual_schedule.py": ["frame by frame"],
    "asyncio_server.py": ["served"],
    "frame_budget.py": ["within the budget"],
    "method_memory.py": ["in our own memory"],
    "saved_program.py": ["from the file", "from the model"],
    "baked_processing.py": ["baked in", "from the file", "with weights exchanged"],
    "profiled.py": ["profiled"],
    "find_faults.py": ["watched"],
    "readback.py": ["polled", "awaited", "blocked for"],
    "onnxruntime_code.py": ["run", "bound", "in a loop"],
    "array_program.py": ["traced", "saved"],
    "images.py": ["frame by frame", "in a batch"],
}
# What these say of themselves, each with whether it was so.
CLAIMS = {
    "lstm_policy.py": ["the same again after a reset", "by turns as alone", "from the middle as alone"],
    "streaming_detector.py": ["loud blocks found"],
    "video_detection.py": ["ball found", "every frame answered or dropped"],
    "speech.py": ["as by hand", "each sound has its text"],
    "cache_decoding.py": ["as by hand"],
    "decode.py": ["the same by a draft"],
    "tour.py": ["read right"],
}
# Tried by tests of their own, or shared by the others.
ELSEWHERE = {
    *("train_digits.py", "digits.py", "networks.py", "bpe.py", "own_stream.py", "own_operator.py", "snake.py"),
    *("fastapi_server.py", "ray_batch.py", "ray_serve.py", "triton_model.py"),
}

READ = re.compile(r"^([\w ]+): (\d+) of 360 digits read right$", re.M)


def run_sample(name: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("name", "ways"), SAMPLES.items(), ids=SAMPLES)
def test_sample_reads_the_digits(name: str, ways: list[str]) -> None:
    said = run_sample(name)
    rights = {way: int(right) for way, right in READ.findall(said)}
    assert list(rights) == ways
    assert all(right >= 0.97 * 360 for right in rights.values())


@pytest.mark.skipif(not why_no_gpu(), reason="there is a GPU, whose streams the sample uses instead")
def test_own_stream_is_shown_on_the_simulator_where_there_is_no_gpu() -> None:
    assert [(way, int(right) >= 0.97 * 360) for way, right in READ.findall(run_sample("own_stream.py"))] == [
        ("in a simulated stream", True)
    ]


@pytest.mark.gpu
def test_own_stream_is_shown_with_cupy_and_torch() -> None:
    expected = [("in a CuPy stream", True)] + [("in a torch stream", True)] * (find_spec("torch") is not None)
    assert [(way, int(right) >= 0.97 * 360) for way, right in READ.findall(run_sample("own_stream.py"))] == expected


@pytest.mark.parametrize(("name", "claims"), CLAIMS.items(), ids=CLAIMS)
def test_sample_holds_what_it_claims(name: str, claims: list[str]) -> None:
    assert re.findall(r"^([\w ]+): (True|False)$", run_sample(name), re.M) == [(claim, "True") for claim in claims]


def test_parts_are_synchronised_every_fifth_layer() -> None:
    progress = re.findall(r"(\d+)% scheduled, up to", run_sample("execute_in_parts.py"))
    assert progress and [int(share) for share in progress] == sorted({int(share) for share in progress})


def test_manual_schedule_reports_every_fourth_frame() -> None:
    frames = [int(frame) for frame in re.findall(r"frame (\d+): ", run_sample("manual_schedule.py"))]
    assert frames and frames == list(range(4, frames[-1] + 1, 4))


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {*SAMPLES, *CLAIMS, *ELSEWHERE}
