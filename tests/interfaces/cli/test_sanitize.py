"""gpuexec sanitize, end to end."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpuexec.cli import main
from gpuexec.cli.kernel_arguments import parse_argument
from gpuexec.errors import InputError

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "sanitize"
RNG = np.random.default_rng(0)
KERNELS = """\
#include "shared.cuh"
template <class T>
__global__ void __launch_bounds__(128) twice(const T* x, T* y, int n) {
  if (threadIdx.x < n) y[threadIdx.x] = double_of(x[threadIdx.x]);
}
extern "C" __global__ void orders(int* y) {
  extern __shared__ int rows[];
  rows[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = threadIdx.x == 0 ? 0 : rows[threadIdx.x - 1];
}
"""
POWERS = """\
extern "C" __global__ void powers(float* y) {
  float value = y[threadIdx.x];
  for (int i = 0; i < 2; ++i) value = fmaf(value, value, 1.0f);
  y[threadIdx.x] = expf(value);
}
"""


def command_of(name: str) -> list[str]:
    """Return the command line in the head comment of an example."""
    lines = (EXAMPLES / name).read_text().splitlines()
    comments = [line.removeprefix("//") for line in lines if line.startswith("//")]
    typed = " ".join(line for line in comments if line.startswith("  "))
    words = shlex.split(typed)
    assert words[:2] == ["gpuexec", "sanitize"]
    return [words[1], str(EXAMPLES / name), *words[3:]]


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "shared.cuh").write_text("template <class T>\n__device__ T double_of(T x) { return x + x; }\n")
    (tmp_path / "kernels.cu").write_text(KERNELS)
    return str(tmp_path / "kernels.cu")


@pytest.fixture
def powers(tmp_path: Path) -> str:
    (tmp_path / "powers.cu").write_text(POWERS)
    return str(tmp_path / "powers.cu")


def test_planted_race_of_the_example_is_shown_with_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command_of("prefix_sum_racy.cu")) == 1
    said = capsys.readouterr().out
    assert re.search(r"^race: byte \d+ of shared 'sums' of 512$", said, re.M)
    places = re.findall(r"^  (read|write) by thread \(\d+, 0, 0\) of block \(\d, 0, 0\)\n    (\S+)  (.*)$", said, re.M)
    line = "if (threadIdx.x >= distance) sums[threadIdx.x] += sums[threadIdx.x - distance];"
    assert {access for access, _, _ in places} == {"read", "write"}
    assert {(place, text) for _, place, text in places} == {("prefix_sum_racy.cu:12", line)}
    assert "prefix_sum: 1 mistake found with seed 0." in said


def test_mended_example_is_clean_with_every_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command_of("prefix_sum.cu"), "--repeat", "5", "--seed", "3"]) == 0
    assert capsys.readouterr().out == "prefix_sum.cu:prefix_sum: nothing found with seeds 3 to 7.\n"


def test_requests_are_counted_by_line(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", "--count", source, "--kernel", "twice<float>", "--block", "64", "--arg", "float[40]"]
    assert main([*command, "--arg", "float[40]", "--arg", "int=40"]) == 0
    said = capsys.readouterr().out
    rows = {tuple(words[:3]): words for words in map(str.split, said.splitlines()) if len(words) > 3}
    figures = ["2", "5", "5", "1.00", "160", "38%"]  # requests, sectors, ideal, ratio, bytes, lanes off
    for access in ("read", "write"):
        assert rows["kernels.cu:4", access, "4"][-6:] == figures
    assert rows["total", "4", "10"][1:] == ["4", "10", "10", "1.00", "320", "38%"]
    assert "L2 of 50 MiB, empty at first: 160 bytes read from it, 160 written" in said


def test_bank_conflicts_are_counted(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", "--count", source, "--kernel", "orders", "--block", "32", "--arg", "int[32]=zeros"]
    assert main([*command, "--shared", "128", "--target", "sm_80"]) == 0
    said = capsys.readouterr().out
    assert re.search(
        r"^ shared memory +access +source +requests +wavefronts +least +ratio +bytes +lanes off", said, re.M
    )
    assert re.search(r"^ kernels.cu:8 +write 4 B .* 1 +1 +1 +1.00 +128 +0%", said, re.M)
    assert re.search(r"^ kernels.cu:9 +read 4 B .* 1 +1 +1 +1.00 +124 +3%", said, re.M)
    assert "L2 of 40 MiB" in said


def test_arithmetic_is_counted_by_line(powers: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", "--count", powers, "--block", "48", "--arg", "float[48]"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert re.search(r"^ arithmetic +unit +source +calls of warps +issued +of lanes +lanes off", said, re.M)
    assert re.search(r"^ powers.cu:3 +multiply-adds of float .* 4 +128 +96 +25%", said, re.M)
    assert re.search(r"^ powers.cu:4 +special functions .* 2 +64 +48 +25%", said, re.M)
    assert re.search(r"^ total +special functions +2 +64 +48 +25%", said, re.M)


def test_counts_are_printed_as_json(powers: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", "--json", powers, "--block", "48", "--arg", "float[48]"]
    assert main([*command, "--count"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kernel"], found["issued_multiply_adds"]) == ("powers.cu:powers", 128)
    assert (found["needed_multiply_adds"], found["issue_ratio"]) == (None, None)
    assert found["global"] == {"requests": 4, "lanes": 96, "bytes": 384, "transactions": 12, "least": 12}
    row = {"places": [["powers.cu", 4]], "unit": "mufu", "calls": 2, "issued": 64, "taken": 48}
    assert row in found["operations"]
    assert main(command) == 2
    assert "--json prints what --count counts" in capsys.readouterr().err


def test_kernel_that_faults_can_not_be_counted(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", "--count", source, "--kernel", "twice<float>", "--block", "64", "--arg", "null"]
    assert main([*command, "--arg", "float[40]", "--arg", "int=40"]) == 2
    assert "illegal address 0x0" in capsys.readouterr().err


def test_instance_of_a_template_with_files_as_arguments(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "x.npy", np.ones(40, np.float64))
    command = ["sanitize", source, "--kernel", "twice<double>", "--block", "64", "--arg", f"={tmp_path / 'x.npy'}"]
    assert main([*command, "--arg", "double[40]=zeros", "--arg", "int=40"]) == 0
    assert main([*command, "--arg", "double[39]=zeros", "--arg", "int=40"]) == 1
    said = capsys.readouterr().out
    assert "out of bounds: byte 312 of argument 1 of 312" in said
    assert "kernels.cu:4" in said


def test_dynamic_shared_memory_has_the_size_asked_for(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sanitize", source, "--kernel", "orders", "--block", "32", "--arg", "int[32]=zeros", "--shared"]
    assert main([*command, "128"]) == 1
    assert "of shared 'dynamic' of 128" in capsys.readouterr().out
    assert main([*command, "64"]) == 1  # written and then read: both are beyond the end
    said = capsys.readouterr().out
    assert re.search(r"out of bounds: byte \d+ of shared 'dynamic' of 64", said)
    assert "kernels.cu:8  rows[threadIdx.x] = threadIdx.x;" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"kernels.cu has 2 kernels: twice<\.\.\.>, orders. Name one by --kernel"),
        (["--kernel", "thrice"], r"kernels.cu does not compile"),
        (["--kernel", "orders"], r"orders: expected 1 arguments, got 0"),
        (["--kernel", "orders", "--arg", "int=1"], r"argument 0 must be a pointer, got an integer of 4 bytes"),
        (["--kernel", "orders", "--arg", "quad[4]"], r"--arg 'quad\[4\]': there is no type 'quad'"),
        (["--kernel", "orders", "--arg", "int[4]", "--block", "2048"], r"block \(2048, 1, 1\) exceeds"),
        (["--kernel", "orders", "--arg", "int[4]", "--grid", "1,2,3,4"], r"--grid '1,2,3,4' is not X, X,Y or X,Y,Z"),
        (["--kernel", "orders", "--arg", "int[4]", "--target", "sm_9"], r"Target 'sm_9' is older than"),
        (["--kernel", "orders", "--cooperative", "--grid", "99999", "--arg", "int[4]"],
         r"a cooperative grid of 99999 blocks does not fit"),
    ],
)  # fmt: skip
def test_what_can_not_be_run_as_asked_is_said_with_status_2(
    source: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sanitize", source, *options]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sanitize", "absent.cu"]) == 2
    assert "Kernel source absent.cu can't be read" in capsys.readouterr().err


def test_file_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x0a\xf9")
    assert main(["sanitize", str(tmp_path / "model.onnx")]) == 2
    assert "gpuexec sanitize: Kernel source model.onnx is no text in UTF-8." in capsys.readouterr().err


def test_help_documents_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sanitize", "--help"])
    said = capsys.readouterr().out
    for part in ("float[1024]=random", "FILE.npz:KEY", "--kernel", "--seed", "--repeat", "exit status: 0", "null"):
        assert part in said


@pytest.mark.parametrize(
    ("text", "dtype", "expected"),
    [
        ("int=7", np.int32, 7),
        ("int=0x10", np.int32, 16),
        ("half=0.5", np.float16, 0.5),
        ("bool=true", np.bool_, True),
        ("bf16=2", ml_dtypes.bfloat16, 2),
        ("uint64=18446744073709551615", np.uint64, 2**64 - 1),
        ("int[2, 3]=4", np.int32, [[4] * 3] * 2),
        ("float[4]=arange", np.float32, [0, 1, 2, 3]),
        ("uint8[3]=ones", np.uint8, [1, 1, 1]),
        ("double[2]=zeros", np.float64, [0, 0]),
        ("float[2]=1e3", np.float32, [1000, 1000]),
    ],
)
def test_argument_means_what_it_says(text: str, dtype: type, expected: object) -> None:
    value = parse_argument(text, RNG).value
    assert isinstance(value, np.ndarray | np.generic)
    assert value.dtype == dtype
    np.testing.assert_array_equal(np.asarray(value, np.float64), np.asarray(expected, np.float64))


def test_structs_and_null_pointers() -> None:
    assert parse_argument("bytes=0a0bff", RNG).value == b"\x0a\x0b\xff"
    assert parse_argument("null", RNG).value is None


def test_random_contents_are_of_the_seed() -> None:
    first, again, other = (parse_argument("float[9]", np.random.default_rng(seed)).value for seed in (1, 1, 2))
    assert isinstance(first, np.ndarray)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert ((first >= 0) & (first < 1)).all()


def test_array_of_a_file_must_be_as_declared(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6, dtype=np.float32))
    np.testing.assert_array_equal(parse_argument(f"float[6]={tmp_path / 'a.npz'}:x", RNG).value, np.arange(6))
    with pytest.raises(InputError, match=r"the file holds float32\[6\], expected float32\[7\]"):
        parse_argument(f"float[7]={tmp_path / 'a.npz'}:x", RNG)
    with pytest.raises(InputError, match=r"a.npz holds x; name one"):
        parse_argument(f"float[6]={tmp_path / 'a.npz'}:y", RNG)


@pytest.mark.parametrize(
    "text", ["", "int", "int=", "int=1.5", "int8=300", "float[]", "float[x]", "float[2]=soon", "bytes=0", "bool=2"]
)
def test_text_that_is_no_argument_is_refused_with_itself(text: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--arg {text!r}")):
        parse_argument(text, RNG)
