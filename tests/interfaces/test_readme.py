"""The README: every block of code runs, and its tables hold."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import gpuexec as gx
import gpuexec.compat.onnxruntime as ours_for_theirs
import gpuexec.ops
from gpuexec.cli import main
from gpuexec.cli.ops import list_rows, split_name
from gpuexec.compat import executorch
from gpuexec.devices import backend as backends
from gpuexec.devices.backend import find_backend
from tests.interfaces.blocks import close_all, read_blocks, run_console, run_python
from tests.interfaces.cli.test_ops import is_ours
from tests.system.conformance.passing import list_path, read_passing, read_reasons
from tests.system.features.marks import find_tests
from tests.system.features.rows import ROWS

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text()
SECTIONS = (
    "Sixty seconds", "Install", "Is my GPU used?", "What runs where, and why", "Results without waiting",
    "Many callers", "Many machines", "Whole jobs", "Frames and budgets", "Precision", "State",
    "Your stream, your memory", "Saved programs", "Programs in Python, models of models", "Faults and times",
    "No GPU: the simulator", "Coming from", "What is there", "Your own operator", "Numbers", "Limits",
)  # fmt: skip
STREAM = re.compile(r"^mine = None.*$", re.M)
# What each section's blocks have to give, as expressions over the names they leave.
GIVES = {
    "Sixty seconds": ["(logits.argmax(1) == labels).all()", "np.array_equal(a, logits)", "request.is_done()"],
    "Is my GPU used?": ["worker.backend_type.name != 'AUTO'", "worker.backend_reason"],
    "What runs where, and why": [
        "report.runs == 2",
        "Path('where.onnx').exists()",
        "report.host_calls == report.host_reads == ()",
    ],
    "Results without waiting": [
        "np.array_equal(asyncio.run(answer(worker, x)), logits)",
        "np.array_equal(a, logits)",
        "np.array_equal(b.readback_and_clone(), logits)",
    ],
    "Many callers": ["all(np.allclose(answer['logits'], each) for answer, each in zip(answers, logits[:, None]))"],
    "Frames and budgets": ["worker.schedule_progress == 1", "np.array_equal(worker.read_output(), logits)"],
    "Precision": ["mixed.report().precision.startswith('bf16, but for ')", "losses.precision == 'bf16'"],
    "State": [
        "policy.memories",
        "decoding.backend_type is worker.backend_type",
        "before",
        "[request.result().shape for request in requests] == [(1, 1)] * 4",
    ],
    "Your stream, your memory": [
        "np.array_equal(a, logits)",
        "np.array_equal(run.peek_output().readback_and_clone(), logits)",
        "not np.array_equal(outputs['logits'].readback_and_clone(), logits)",
        "mine is not None",
    ],
    "Saved programs": ["(logits.argmax(1) == labels).all()", "Path('digits.gxp').exists()"],
    "Programs in Python, models of models": [
        "[len(port.spec.dims) for port in reader.outputs] == [1, 4]",
        "(gx.Module('reader.onnx').forward((15 * x).astype(np.uint8))[0] == labels).all()",
        "'int8' in {str(array.dtype) for array in small.graph.constants.values()}",
        "[n.operator.name for n in quantized.info.graph.nodes].count('QuantizeLinear') == 2",
        "not np.array_equal(worker.run(x)[0], logits)",
        "(frame.shape, frame.dtype) == ((1, 1, 8, 8), np.float32)",
        "(picture.shape, picture.dtype) == ((480, 640, 1), np.uint8)",
    ],
    "Your own operator": ["y.shape == (1, 3, 5)", "abs(float(y[0, 0, 0]) - 1 - np.sin(1.0) ** 2) < 1e-6"],
    "Faults and times": ["seen.find_nonfinite() is None", "profiler.summarise()", "Path('trace.json').exists()"],
    "No GPU: the simulator": ["simulated.backend_type is gx.BackendType.SIMULATOR"],
}

# What each table's samples leave, by name; of the logits and probabilities that are right. Whether Sentis's poll finds
# anything is a matter of time.
LEAVES: dict[str, dict[str, Callable[[Array, Array], Any]]] = {
    "Sentis": {"b": lambda logits, _: logits},
    "Barracuda": {"p": lambda logits, _: logits[0, 3]},
    "ExecuTorch": {"a": lambda logits, _: logits, "p": lambda _, probabilities: probabilities},
    "ONNX Runtime": {
        "a": lambda logits, _: logits, "p": lambda _, probabilities: probabilities, "b": lambda logits, _: logits,
    },
}  # fmt: skip


def read_tables() -> dict[str, tuple[str, str]]:
    """Return what stands left and right in the tables of samples, by system."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    system = None
    for line in TEXT.partition("\n## Coming from\n")[2].partition("\n## ")[0].splitlines():
        cells = [cell.strip() for cell in line[1:-1].split("|")] if line.startswith("|") else []
        if not cells:
            system = None
        elif cells[1] == "gpuexec":
            system = found.setdefault(cells[0], ([], []))
        elif system is not None and not cells[0].startswith("---"):
            for column, cell in zip(system, cells, strict=True):
                column += [cell.strip("`")] * bool(cell)
    return {name: ("\n".join(left), "\n".join(right)) for name, (left, right) in found.items()}


BLOCKS, TABLES = read_blocks(TEXT), read_tables()


@pytest.fixture(params=["as it is", "simulator"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like a checkout; AUTO takes what works here, or the simulator in the place of a GPU."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if request.param == "simulator":
        simulator = backends.open_backend(gx.BackendType.SIMULATOR)
        monkeypatch.setattr(backends, "_open", {})
        monkeypatch.setitem(backends._OPENERS, gx.BackendType.GPU_COMPUTE, lambda ordinal: simulator)
    return tmp_path


def test_readme_has_the_sections_that_people_look_for() -> None:
    assert tuple(re.findall(r"^## (.+)$", TEXT, re.M)) == SECTIONS
    assert {block.section for block in BLOCKS if block.language == "python"} == set(GIVES)
    assert set(TABLES) == set(LEAVES)
    assert {block.language for block in BLOCKS} == {"", "python", "console"}


def test_every_block_runs_and_gives_what_it_says(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {"Path": Path, "asyncio": asyncio}
    with contextlib.ExitStack() as ending:
        ending.callback(close_all, names)
        for index, block in enumerate(BLOCKS):
            if block.language == "python":
                run_python(block.text, names, f"README.md, block at line {block.line}")
                if STREAM.search(block.text):
                    # The same lines once more, on a stream like those of CuPy and torch that the text speaks of.
                    names["mine"] = find_backend(gx.BackendType.AUTO, None)[0].device.create_stream()
                    run_python(STREAM.sub("", block.text), names, f"README.md, block at line {block.line}, streamed")
            elif block.language == "console" or block.text.startswith("make "):
                run_console(block.text, capsys)
            if all(later.section != block.section for later in BLOCKS[index + 1 :]):
                for claim in GIVES.get(block.section, ()):
                    assert eval(claim, names), f"{block.section}: {claim}"


@pytest.fixture
def samples(checkout: Path) -> dict[str, Any]:
    """Files that the samples begin with: the digits, as a model and a program."""
    digits = checkout / "examples" / "models" / "digits.onnx"
    shutil.copy(digits, "digits.onnx")
    gx.Program.build({"forward": gx.load(digits)}, shapes={"forward": {"image": ((1, 8), 1, 8, 8)}}).save("digits.gxp")
    shutil.copy("digits.gxp", "digits.pte")
    with np.load(checkout / "examples" / "data" / "digits.npz") as data:
        return {"x": data["images"][-8:, None].astype(np.float32)}


@pytest.fixture
def expected(samples: dict[str, Any]) -> list[Array]:
    session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
    return list(session.run(None, {"image": samples["x"]}))


@pytest.mark.parametrize("system", LEAVES)
def test_our_side_of_each_table_gives_what_onnxruntime_gives(
    system: str, samples: dict[str, Any], expected: list[Array]
) -> None:
    names = samples | {"gx": gx}
    with contextlib.ExitStack() as ending:
        ending.callback(close_all, names)
        run_python(TABLES[system][1], names, f"README.md, coming from {system}")
        for name, wanted in LEAVES[system].items():
            np.testing.assert_allclose(names[name], wanted(*expected), rtol=1e-4, atol=1e-5)
        if system == "Sentis":
            with gx.Worker(names["reader"]) as worker:
                np.testing.assert_array_equal(worker.run(names["x"])[0], expected[0].argmax(1))


@pytest.mark.filterwarnings("ignore:.*CUDAExecutionProvider")
@pytest.mark.parametrize("package", ["onnxruntime", "gpuexec.compat.onnxruntime"])
def test_their_side_for_onnxruntime_runs_on_both(
    package: str, samples: dict[str, Any], expected: list[Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    if package != "onnxruntime":
        monkeypatch.setitem(sys.modules, "onnxruntime", ours_for_theirs)
    names = dict(samples)
    run_python(TABLES["ONNX Runtime"][0], names, "README.md, ONNX Runtime's side")
    for name, wanted in LEAVES["ONNX Runtime"].items():
        np.testing.assert_allclose(names[name], wanted(*expected), rtol=1e-4, atol=1e-5)


def test_their_side_for_executorch_runs_on_its_look_alike(
    samples: dict[str, Any], expected: list[Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = types.ModuleType("executorch")
    monkeypatch.setitem(sys.modules, "executorch", package)
    monkeypatch.setitem(sys.modules, "executorch.runtime", executorch)
    names = dict(samples)
    python = [line for line in TABLES["ExecuTorch"][0].splitlines() if not line.startswith("C++")]
    run_python("\n".join(python), names, "README.md, ExecuTorch's side")
    for name, wanted in LEAVES["ExecuTorch"].items():
        np.testing.assert_allclose(names[name], wanted(*expected), rtol=1e-4, atol=1e-5)


def test_counts_in_the_text_are_those_of_the_code() -> None:
    said = {
        name: tuple(map(int, counts))
        for name, *counts in re.findall(r"^\| `([\w.]+)`[^|]*" + r" \| (\d+)" * 4 + r"[^|]* \| (\d+) \|$", TEXT, re.M)
    }
    counted: dict[str, Counter[str]] = {}
    for row in list_rows():
        if is_ours(row.name):
            counts = counted.setdefault(split_name(row.name)[0] or "ai.onnx", Counter())
            counts.update(["operators", row.device, *(["blits"] if row.pixel.startswith("blits") else [])])
    assert said == {
        name: (n := each["operators"], k := each["kernels"], n - k - each["host"], each["host"], each["blits"])
        for name, each in counted.items()
    }
    assert re.search(rf"\b{len(read_reasons('fallbacks'))} have an operator on", TEXT)
    passing = re.search(r"compared, (\d+) pass on the CPU and (\d+) on the\s+simulator", TEXT)
    assert passing and [int(each) for each in passing.groups()] == [
        len(read_passing(list_path(device))) for device in ("cpu", "simulator")
    ]
    musts = [row.number for row in ROWS.values() if row.judgement == "M"]
    assert f"all {len(musts)} rows that must be there" in TEXT
    assert set(musts) <= set(find_tests(ROOT / "tests"))


def test_files_and_commands_that_the_text_names_are_there() -> None:
    for name in re.findall(r"`((?:examples|gpuexec)/[\w/.]+)`", TEXT):
        assert (ROOT / name).exists(), name
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([a-z-]+)", TEXT)) <= set(targets)
    commands = re.search(r"`gpuexec ([a-z |\n]+)`, each with", TEXT)
    assert commands
    for command in re.split(r"\s*\|\s*", commands[1]):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
