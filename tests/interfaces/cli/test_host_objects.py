"""Strings and containers on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from gpuexec.cli import main
from tests.model.objects import MIXED, parse


def test_run_reads_and_writes_host_objects_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(MIXED, tmp_path / "mixed.onnx")
    given = {"s": [[1, 2], [0.5]], "x": [-1, 2.5], "w": ["a", "ü"]}
    (tmp_path / "in.json").write_text(json.dumps(given))
    common = ["run", str(tmp_path / "mixed.onnx"), "--input", str(tmp_path / "in.json"), "--check"]
    for backend in ("cpu", "simulator"):
        assert main([*common, "--backend", backend, "--output", str(tmp_path / "out.json")]) == 0
        assert json.loads((tmp_path / "out.json").read_text()) == {
            "t": [[2, 4], [1], [0, 5]],
            "c": [2, 4, 1, 0, 5],
            "v": ["a", "ü", "more"],
            "o": [0, 2.5],
        }
    text = capsys.readouterr().out
    assert "t[0]: float32[2], min 2, mean 3, max 4" in text
    assert "v: string[3], first 'a'" in text
    assert "check v: maximum error 0" in text and "check t[2]: maximum error 0" in text
    assert re.search(r"SequenceInsert_1\s+SequenceInsert\s+sequences and ", text)
    assert main([*common, "--output", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as written:
        assert written["v"].tolist() == ["a", "ü", "more"] and written["t[2]"].tolist() == [0, 2.5 * 2]


def test_run_takes_one_input_from_json_and_makes_up_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(MIXED, tmp_path / "mixed.onnx")
    (tmp_path / "s.json").write_text("[[1, 2]]")
    model, common = str(tmp_path / "mixed.onnx"), ["--backend", "cpu", "--repeat", "0"]
    assert main(["run", model, "--input", f"s={tmp_path / 's.json'}", "--dims", "k=2", *common]) == 0
    text = capsys.readouterr().out
    assert "w: random string[2]" in text and "t[0]: float32[2]" in text
    assert main(["run", model, *common]) == 0
    assert "s: empty sequence" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "item", "message"),
    [
        ("[1", "s={}", "is no JSON"),
        ("[1]", "{}", "holds a list; name the input"),
        ("3", "s={}", "Input 's': expected a list of values, got a int"),
        ('["a"]', "x={}", "Input 'x': expected float32[...], got string[1]"),
        ("[1, null]", "x={}", "Input 'x': expected float32[...], got Python objects"),
        ("[1e99]", "x={}", "Input 'x': expected float32, got 1e+99, which is beyond that"),
        ('["a", 1]', "w={}", "Input 'w': expected strings, got an element of type int"),
    ],
)
def test_run_refuses_json_that_is_no_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, item: str, message: str
) -> None:
    onnx.save(MIXED, tmp_path / "mixed.onnx")
    (tmp_path / "in.json").write_text(content)
    model, given = str(tmp_path / "mixed.onnx"), item.format(tmp_path / "in.json")
    assert main(["run", model, "--backend", "cpu", "--input", given]) != 0
    assert message in " ".join(capsys.readouterr().err.split())


def test_text_comes_and_goes_to_its_last_character(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a[b]"
    folder.mkdir()
    onnx.save(parse("(string[k] w) => (string[k] v) { v = StringConcat (w, w) }", 20), folder / "text.onnx")
    (tmp_path / "in.json").write_text(json.dumps({"w": ["a\0", "[red]"]}))
    common = [
        "run",
        str(folder / "text.onnx"),
        "--backend",
        "cpu",
        "--repeat",
        "0",
        "--input",
        str(tmp_path / "in.json"),
    ]
    assert main([*common, "--output", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text()) == {"v": ["a\0a\0", "[red][red]"]}
    assert f"{folder / 'text.onnx'}: 1 nodes" in capsys.readouterr().out.replace("\n", "")
    assert main([*common, "--output", str(tmp_path / "out.npz")]) == 1
    assert "Output 'v' has text that ends in NUL" in capsys.readouterr().err
    assert main(["info", str(folder / "text.onnx")]) == 0
    assert "a[b]" in capsys.readouterr().out.replace("\n", "")


def test_explain_reports_host_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(MIXED, tmp_path / "mixed.onnx")
    (tmp_path / "in.json").write_text(json.dumps({"s": [[1]], "x": [1.5], "w": ["a"]}))
    args = ["explain", str(tmp_path / "mixed.onnx"), "--backend", "cpu", "--input", str(tmp_path / "in.json")]
    assert main(args) == 0
    text = capsys.readouterr().out
    assert "then the host computes SequenceInsert 'SequenceInsert_1': sequences and optionals are" in text


def test_what_holds_outputs_against_another_engine_refuses_host_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(MIXED, tmp_path / "mixed.onnx")
    (tmp_path / "in.json").write_text(json.dumps({"s": [[1]], "x": [1.5], "w": ["a"]}))
    for extra in ([], ["--gap", "cpu"]):
        args = ["verify", str(tmp_path / "mixed.onnx"), "--input", str(tmp_path / "in.json"), *extra]
        assert main(args) != 0
        assert "only tensors of numbers can be compared" in capsys.readouterr().err
