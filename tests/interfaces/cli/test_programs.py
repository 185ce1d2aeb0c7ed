"""gpuexec compile, info, run and verify, end to end."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.cli.verify import judge
from gpuexec.program.cases import Case
from gpuexec.program.container import read_contents
from gpuexec.program.contents import Allowance
from gpuexec.program.data_loader import MmapDataLoader
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.model.state_models import running_sum

ROOT = Path(__file__).resolve().parents[3]
DIGITS = str(ROOT / "examples/models/digits.onnx")
Out = pytest.CaptureFixture[str]


@pytest.fixture
def program(tmp_path: Path) -> str:
    return compile_digits(tmp_path)


def compile_digits(tmp_path: Path) -> str:
    path = str(tmp_path / "digits.gxp")
    assert main(["compile", DIGITS, "-o", path, "--dim", "batch=1..4", "--arch", "sm_80"]) == 0
    return path


@needs_cuda_wheels
def test_program_is_compiled_shown_verified_and_run(capsys: Out, tmp_path: Path) -> None:
    program = compile_digits(tmp_path)
    text = capsys.readouterr().out
    assert "forward: a case of random inputs, with what the CPU makes of them" in text
    assert re.search(r"arenas for cpu \([\d,]+ bytes\), sm_80 \([\d,]+ bytes\), 1 cases", text)
    assert re.search(r"written to .*digits.gxp: [\d,]+ bytes", text)

    assert main(["info", program]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "format 1.1, by gpuexec" in text and "method forward: 10 nodes, 1 cases" in text
    assert "float32[batch,1,8,8] [1..4, 1, 8, 8]" in text
    assert re.search(r"sm_80 \d+ [\d,]+ [\d,]+", text)
    assert re.search(r"sm_80: \d+ kernels, [\d,]+ bytes of machine code, by nvrtc-", text)
    assert re.search(r"compute_80: \d+ kernels, [\d,]+ bytes of PTX for later ones", text)
    assert re.search(r"weights [\d,]+ bytes", text)

    assert main(["verify", program, "--backend", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "all checksums match, graphs and plans are valid" in text
    assert re.search(r"ok  forward case 0 \(cpu\) logits: maximum error 0, mean 0, allowed \S+ \+ \S+ relative", text)

    written = tmp_path / "out.npz"
    assert main(["run", program, "--backend", "cpu", "--output", str(written)]) == 0
    text = capsys.readouterr().out
    assert "inputs: those of the program's first case" in text and "1 of 1 plans restored from the program" in text
    assert np.load(written)["logits"].shape == (4, 10)


@needs_cuda_wheels
def test_verify_compares_and_says_what_is_off(program: str, capsys: Out, tmp_path: Path) -> None:
    image = np.zeros((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "case.npz", image=image, logits=np.ones((2, 10), np.float32))
    path = str(tmp_path / "wrong.gxp")
    assert main(["compile", DIGITS, "-o", path, "--case", str(tmp_path / "case.npz")]) == 0
    capsys.readouterr()
    assert main(["verify", path, "--backend", "cpu"]) == 1
    assert re.search(r"OFF forward case 0 \(given\) logits: maximum error", capsys.readouterr().out)
    assert main(["verify", path, "--backend", "cpu", "--atol", "1e6"]) == 0
    assert "(asked for)" in capsys.readouterr().out


@pytest.mark.feature("E86")
def test_verify_without_cases_does_not_pass(capsys: Out, tmp_path: Path) -> None:
    path = str(tmp_path / "bare.gxp")
    assert main(["compile", DIGITS, "-o", path, "--no-case"]) == 0
    assert main(["verify", path, "--backend", "cpu"]) == 1
    assert "no case was run" in capsys.readouterr().out


def test_several_models_are_methods_that_share_weights(capsys: Out, tmp_path: Path) -> None:
    path = str(tmp_path / "two.gxp")
    options = ["--shape", "image=2,1,8,8", "--no-case"]
    assert main(["compile", f"one={DIGITS}", f"two={DIGITS}", "-o", path, *options]) == 0
    contents = read_contents(MmapDataLoader(path))
    assert list(contents.methods) == ["one", "two"]
    weights = [{id(a) for a in m.model.graph.constants.values()} for m in contents.methods.values()]
    assert weights[0] == weights[1]
    capsys.readouterr()
    assert main(["run", path, "--backend", "cpu", "--dims", "batch=2"]) == 1
    assert "The program has no method 'forward'; it has one, two." in capsys.readouterr().err
    assert main(["run", path, "--backend", "cpu", "--method", "two", "--dims", "batch=2"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compile", DIGITS, "-o", "{}/x.gxp", "--dim", "batch=1.."], "is no extent like 4, nor a range like 1..8"),
        (["compile", DIGITS, "-o", "{}/x.gxp", "--dim", "batch"], "is not NAME=..."),
        (["compile", DIGITS, "-o", "{}/x.gxp", "--dim", "rows=4"], "No model has an input or dimension 'rows'"),
        (["compile", DIGITS, "-o", "{}/x.gxp", "--shape", "image=1,2"], "2 axes"),
        (["compile", DIGITS, DIGITS, "-o", "{}/x.gxp"], "Two models are called 'digits'"),
        (["compile", DIGITS, "-o", "{}/x.gxp", "--arch", "sm_99x9"], "Target 'sm_99x9' is unknown"),
        (["compile", DIGITS, "-o", "{}/absent/x.gxp", "--no-case"], "is no file in a folder that is there"),
        (["compile", "absent.onnx", "-o", "{}"], "is no file in a folder that is there"),
        (["compile", DIGITS, "-o", DIGITS], "would overwrite a model"),
        (["run", DIGITS, "--method", "forward"], "is no program (.gxp) and has no methods"),
        (["info", "{}/absent.gxp"], "There is no file"),
        (["verify", DIGITS, "--method", "forward"], "is no program (.gxp) and has no methods"),
        (["verify", DIGITS, "--rtol=nan"], "--rtol is a finite number from 0 on, got nan"),
        (["verify", DIGITS, "--atol=-1"], "--atol is a finite number from 0 on, got -1.0"),
        (["verify", DIGITS, "--atol=inf"], "--atol is a finite number from 0 on, got inf"),
        (["explain", DIGITS, "--method", "forward"], "is no program (.gxp) and has no methods"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(arguments: list[str], message: str, capsys: Out, tmp_path: Path) -> None:
    assert main([each.format(tmp_path) for each in arguments]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


ENDLESS = """<ir_version: 10, opset_import: ["": 18]> endless (float[n] x) => (float[n] y) <bool yes = {1}> {
  y = Loop ("", yes, x) <body = b (int64 i, bool c, float[n] v) => (bool c_out, float[n] v_out) {
    none = Constant <value = float {0}> ()
    one = Constant <value = float {1}> ()
    v_out = Mul (v, none)
    s = ReduceSum <keepdims = 0> (v_out)
    c_out = Less (s, one)
  }>
}"""


def test_model_whose_loop_does_not_end_with_random_inputs_has_no_case(capsys: Out, tmp_path: Path) -> None:
    source, path = str(tmp_path / "endless.onnx"), str(tmp_path / "endless.gxp")
    onnx.save(onnx.parser.parse_model(ENDLESS), source)
    assert main(["compile", source, "-o", path]) == 0
    text = capsys.readouterr().out
    assert "no case, for random inputs don't do: Loop " in text and "Loops made 1,000 trips without an end" in text
    assert read_contents(MmapDataLoader(path)).methods["forward"].cases == ()


def test_each_case_of_a_model_with_memories_starts_from_nothing(capsys: Out, tmp_path: Path) -> None:
    path = str(tmp_path / "sums.gxp")
    x = np.ones((2, 3), np.float32)
    gx.Program.build({"forward": running_sum()}, cases={"forward": [Case({"x": x}), Case({"x": 3 * x})]}).save(path)
    assert main(["verify", path, "--backend", "cpu"]) == 0
    assert capsys.readouterr().out.count("ok  forward") == 2
    assert main(["explain", path, "--target", "cpu"]) == 0
    assert "first case" in (text := capsys.readouterr().out) and "float32[2,3] = Add(" in text


@needs_cuda_wheels
def test_explain_takes_a_method_of_a_program(program: str, capsys: Out) -> None:
    assert main(["explain", program, "--target", "sm_80", "--method", "forward", "--dims", "batch=2"]) == 0
    text = capsys.readouterr().out
    assert "plan for sm_80" in text and re.search(r"arena [\d,]+ bytes, lower bound", text)
    assert main(["explain", program, "--method", "backward"]) == 1
    assert "has no method 'backward'; it has forward" in capsys.readouterr().err


@needs_cuda_wheels
def test_check_of_a_program_names_verify(program: str, capsys: Out) -> None:
    assert main(["run", program, "--backend", "cpu", "--check"]) == 1
    assert "a program is checked by: gpuexec verify" in capsys.readouterr().err


@needs_cuda_wheels
def test_altered_program_is_reported(program: str, capsys: Out) -> None:
    content = bytearray(Path(program).read_bytes())
    content[-1] ^= 1
    Path(program).write_bytes(content)
    assert main(["verify", program]) == 1
    assert "altered or damaged: SHA-256 of its code" in capsys.readouterr().err


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("expected", "got", "rtol", "atol", "largest", "is_close"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0, 0, 0.0, True),
        ([1.0, 2.0], [1.0, 2.5], 0, 0.5, 0.5, True),
        ([1.0, 2.0], [1.0, 2.5], 0.2, 0, 0.5, False),
        ([1.0, 2.0], [1.0, 2.5], 0.25, 0, 0.5, True),
        ([NAN, INF], [NAN, INF], 0, 0, 0.0, True),
        ([NAN, 1.0], [1.0, 1.0], 9, 9, INF, False),
        ([INF], [-INF], 9, 9, INF, False),
        ([1e10], [NAN], 1e308, 0, INF, False),
        ([1, 2], [1, 3], 0, 0, 1.0, False),
        ([True], [False], 0, 0, 1.0, False),
        ([], [], 0, 0, 0.0, True),
    ],
)
def test_outputs_are_judged(
    expected: list[float], got: list[float], rtol: float, atol: float, largest: float, is_close: bool
) -> None:
    found = judge(np.array(expected), np.array(got), Allowance(rtol, atol, "test"))
    assert (found.largest, found.is_close) == (largest, is_close)


def test_large_integers_are_compared_exactly() -> None:
    a, b = np.array([2**62]), np.array([2**62 + 1])
    assert not judge(a, b, Allowance(0, 0, "test")).is_close
    with pytest.raises(gx.InputError, match="can't compare"):
        judge(a, a.astype(np.int32), Allowance(0, 0, "test"))
