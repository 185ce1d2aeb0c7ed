"""Array files on the command line: a damaged one is an error of one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.cli.array_arguments import load_array
from gpuexec.system.array_files import load_arrays
from tests.interfaces.cli.test_cli import DIGITS, ROOT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "two.npz", a=np.arange(2), b=np.ones(1))
    np.save(tmp_path / "objects.npy", np.array(["a", None], object))
    np.savez(tmp_path / "some.npz", a=np.arange(2), b=np.array(["a"], object))
    np.savez(tmp_path / "none.npz")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:100])
    return tmp_path


def test_arrays_are_found_by_name(folder: Path) -> None:
    assert load_array(str(folder / "one.npy")).tolist() == [0, 1, 2]
    assert load_array(f"{folder / 'two.npz'}:b").tolist() == [1]
    named = load_arrays(folder / "some.npz", {"a"})
    assert isinstance(named, dict) and list(named) == ["a"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("objects.npy", r"no .npy or .npz file of arrays: .*text is saved as such by astype\(str\)"),
        ("some.npz:b", "no .npy or .npz file of arrays"),
        ("junk.npy", "no .npy or .npz file of arrays"),
        ("empty.npy", "No data left"),
        ("cut.npz:a", "not a zip file"),
        ("two.npz", "two.npz holds a, b; name one: .*two.npz:a"),
        ("two.npz:c", "two.npz holds a, b; name one"),
        ("none.npz:c", "holds no arrays"),
    ],
)
def test_a_file_that_can_not_be_read_is_named(folder: Path, name: str, words: str) -> None:
    with pytest.raises(gx.InputError, match=words):
        load_array(str(folder / name))


@pytest.mark.parametrize("name", ["objects.npy", "empty.npy", "cut.npz", "two.npz:c", "missing.npy"])
def test_commands_end_in_one_line(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path = str(folder / name)
    commands = [
        ["run", DIGITS, "--backend", "cpu", "--input", f"image={path}"],
        ["compile", DIGITS, "-o", str(folder / "out.gxp"), "--dim", "batch=1", "--case", path],
        ["sanitize", str(ROOT / "examples/sanitize/prefix_sum.cu"), "--arg", f"={path}"],
    ]
    for command in commands:
        assert main(command) != 0
        assert Path(path.partition(":")[0]).name in capsys.readouterr().err
