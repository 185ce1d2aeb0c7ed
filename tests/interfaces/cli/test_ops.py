"""gpuexec ops: every operator of ONNX is listed, and each one on the host has a reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from examples import snake
from gpuexec.cli import main
from gpuexec.cli.ops import OperatorRow, count_rows, list_rows, make_row, shorten
from gpuexec.importer.versions import list_forms
from gpuexec.ir.operator import decomposition_for, find_operator
from gpuexec.ir.spec import DTYPES
from gpuexec.ops.control.control import LOOPS, If
from gpuexec.ops.nn.gradient import Gradient
from tests.interfaces.cli.terminal import run_on_terminal


def is_ours(name: str) -> bool:
    """Return whether gpuexec has the operator, and not a test or an example."""
    found = find_operator(name)
    return found is None or found.__module__.startswith("gpuexec.")


@pytest.fixture(scope="module")
def rows() -> Mapping[str, OperatorRow]:
    return {row.name: row for row in list_rows() if is_ours(row.name)}


def test_every_operator_of_onnx_runs_somewhere(rows: Mapping[str, OperatorRow]) -> None:
    assert set(list_forms()) <= set(rows)
    assert [name for name, row in rows.items() if not row.device] == []


def test_what_the_host_computes_has_a_reason(rows: Mapping[str, OperatorRow]) -> None:
    on_host = {name: row for name, row in rows.items() if row.device == "host"}
    assert {"StringSplit", "SequenceAt", "ImageDecoder", "ai.onnx.ml.ZipMap"} <= set(on_host)
    assert all(row.reason for row in on_host.values())


def test_what_is_listed_as_parts_is_replaced_or_repeated(rows: Mapping[str, OperatorRow]) -> None:
    parts = {name: find_operator(name) for name, row in rows.items() if row.device == "parts"}
    whole = {name: found for name, found in parts.items() if decomposition_for(name) is None}
    assert parts != whole
    assert [
        name for name, found in whole.items() if found is None or not issubclass(found, (If, *LOOPS, Gradient))
    ] == []


def test_what_is_said_to_have_kernels_lowers(rows: Mapping[str, OperatorRow]) -> None:
    found = {name: find_operator(name) for name, row in rows.items() if row.device == "kernels"}
    assert found
    assert [name for name, operator in found.items() if not callable(getattr(operator, "lower", None))] == []


def test_versions_are_those_of_onnx(rows: Mapping[str, OperatorRow]) -> None:
    assert (rows["Relu"].versions, rows["Relu"].place) == ((1, 6, 13, 14), "kernels")
    assert rows["com.microsoft.BiasGelu"].versions == ()


def test_types_are_reported_of_every_operator_input_by_input(rows: Mapping[str, OperatorRow]) -> None:
    assert [name for name, row in rows.items() if not row.types] == []
    assert set(rows["Relu"].types[0]) == {
        *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    }
    microsoft = rows["com.microsoft.MatMulBnb4"]
    assert [shorten(types) for types in microsoft.types] == ["f16 f32 bf16", "u8", "f16 f32 bf16"]
    assert rows["RandomNormal"].types == (("float32", "float16", "float64", "bfloat16"),)
    assert rows["SequenceAt"].types == (("sequence",), ("int32", "int64"))
    assert rows["com.microsoft.Gelu"].types == rows["Gelu"].types


def test_places_on_textures_name_types_or_parts(rows: Mapping[str, OperatorRow]) -> None:
    assert [rows[name].pixel for name in ("Not", "Conv", "TopK", "StringSplit", "If")] == [
        *("blits", "blits: f16 f32", "host", "host", ""),
    ]
    assert rows["Attention"].pixel == "host: AttentionOverCache"
    assert (rows["com.microsoft.Gelu"].place, rows["com.microsoft.Gelu"].pixel) == ("as Gelu", rows["Gelu"].pixel)
    assert (rows["ScaledTanh"].place, rows["ScaledTanh"].pixel) == ("as Affine, Tanh", "")


def test_an_operator_of_ones_own_is_reported_like_any() -> None:
    row = make_row(snake.Snake.name, None)
    assert (row.place, row.pixel, row.types) == ("kernels", "host", (("float32",), ("float32",)))


@pytest.mark.parametrize(
    ("types", "short"),
    [
        (("float32", "bfloat16", "uint4", "float8e5m2", "string"), "u4 f32 bf16 f8e5m2 string"),
        (("int8", "int16", "int32", "bool"), "bool i8-32"),
        (("int8", "int16", "int64", "uint2", "uint8"), "i8 i16 i64 u2 u8"),
        (tuple(row.name for row in DTYPES), "bool i2-64 u2-64 f16-64 f4 f6 f8 bf16 f8e8m0"),
        ((), ""),
    ],
)
def test_types_are_written_in_few_letters(types: tuple[str, ...], short: str) -> None:
    assert shorten(types) == short


def test_counts_add_up_by_domain(rows: Mapping[str, OperatorRow]) -> None:
    lines = count_rows(list(rows.values()))
    assert sum(int(line.split(": ")[1].split()[0]) for line in lines) == len(rows)
    assert [line.split(":")[0] for line in lines] == sorted(line.split(":")[0] for line in lines)


def test_command_prints_what_the_pattern_chooses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "^Softmax$"]) == 0
    printed = capsys.readouterr().out
    assert "Softmax" in printed and "1 11 13" in printed and "kernels" in printed
    assert "ai.onnx: 1 operators (1 kernels), 1 with blits" in printed


def test_command_keeps_to_120_characters() -> None:
    printed = run_on_terminal(120, "ops", "^(com|Str|Cast)")
    assert max(map(len, printed.splitlines())) <= 120 and "…" not in printed
    assert " DecoderMaskedMultiHeadAttention " in printed and "com.microsoft\n" in printed.replace(" ", "")


def test_command_refuses_what_is_no_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "("]) != 0
    assert "'(' is no regular expression" in "".join(capsys.readouterr())


def test_command_prints_the_host_alone_and_the_counts_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--host", "^(StringConcat|Softmax)$"]) == 0
    printed = capsys.readouterr().out
    assert "StringConcat" in printed and "host: " in printed and "Softmax" not in printed
    assert main(["ops", "--count", "(ZipMap|Softmax)$"]) == 0
    assert "Softmax" not in (printed := capsys.readouterr().out) and "ai.onnx.ml: " in printed


def test_operators_of_passes_are_left_out(rows: Mapping[str, OperatorRow]) -> None:
    assert not any(name.startswith(("gpuexec.", "test.")) for name in rows)
