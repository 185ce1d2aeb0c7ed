"""gpuexec ops tells what the code has: nothing that ONNX has is missing, and what the host computes has a reason."""

from __future__ import annotations

import pytest

from gpuexec.cli import main
from gpuexec.cli.ops import count_rows, list_rows, make_row, shorten
from gpuexec.importer.versions import list_forms
from gpuexec.operator import decomposition_for, find_operator
from gpuexec.ops.control import LOOPS, If
from gpuexec.ops.gradient import Gradient


def is_ours(name: str) -> bool:
    """Return whether gpuexec has the operator, and not a test or an example."""
    found = find_operator(name)
    return found is None or found.__module__.startswith("gpuexec.")


ROWS = {row.name: row for row in list_rows() if is_ours(row.name)}


def test_every_operator_of_onnx_runs_somewhere() -> None:
    assert set(list_forms()) <= set(ROWS)
    assert [name for name, row in ROWS.items() if not row.device] == []


def test_what_the_host_computes_has_a_reason() -> None:
    on_host = {name: row for name, row in ROWS.items() if row.device == "host"}
    assert {"StringSplit", "SequenceAt", "ImageDecoder", "ai.onnx.ml.ZipMap"} <= set(on_host)
    assert all(row.reason for row in on_host.values())


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.device == "parts"])
def test_what_is_told_to_be_parts_is_replaced_or_repeated(name: str) -> None:
    found = find_operator(name)
    assert found is not None
    assert decomposition_for(name) is not None or issubclass(found, (If, *LOOPS, Gradient))


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.device == "kernels"])
def test_what_is_told_to_have_kernels_lowers(name: str) -> None:
    found = find_operator(name)
    assert found is not None and callable(found.lower)


def test_versions_and_types_are_those_of_onnx() -> None:
    relu = ROWS["Relu"]
    assert (relu.versions, relu.device) == ((1, 6, 13, 14), "kernels")
    assert {"float32", "bfloat16", "int8"} <= set(relu.types) and "uint8" not in relu.types
    assert make_row("com.microsoft.BiasGelu", None).versions == ()
    assert shorten(("float32", "bfloat16", "uint4", "float8e5m2", "string")) == "f32 bf16 u4 f8e5m2 string"


def test_counts_add_up_by_domain() -> None:
    lines = count_rows(list(ROWS.values()))
    assert sum(int(line.split(": ")[1].split()[0]) for line in lines) == len(ROWS)
    assert [line.split(":")[0] for line in lines] == sorted(line.split(":")[0] for line in lines)


def test_command_prints_what_the_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "^Softmax$"]) == 0
    printed = capsys.readouterr().out
    assert "Softmax" in printed and "1 11 13" in printed and "kernels" in printed
    assert "ai.onnx: 1 operators (1 kernels)" in printed


def test_command_prints_the_host_alone_and_the_counts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--host"]) == 0
    printed = capsys.readouterr().out
    assert "StringConcat" in printed and "host: " in printed and "Softmax" not in printed
    assert main(["ops", "--count"]) == 0
    assert "Softmax" not in (printed := capsys.readouterr().out) and "ai.onnx.ml: " in printed


def test_operators_of_passes_are_left_out() -> None:
    assert not any(name.startswith(("gpuexec.", "test.")) for name in ROWS)
