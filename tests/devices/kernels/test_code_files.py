"""Ownership checks of folders and files of compiled code."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.devices.kernels import code_files
from gpuexec.devices.kernels.code_files import load_library, make_folder, open_code, private_folder, read_code
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.nvrtc import CompiledKernel, Cubin
from gpuexec.devices.simulator.object_cache import ObjectCache, is_whole
from gpuexec.devices.simulator.toolchain import find_compiler

CUBIN = Cubin("a.cu", b"\x7fELF image", (CompiledKernel("k", "k", 1, 0, 0, 0),), "")
ROOT = Path(__file__).resolve().parents[3]
# An account that is not this process's.
STRANGER = 54321


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of another user."""
    check = code_files._check_owner

    def check_as_a_stranger(path: Path, found: os.stat_result) -> None:
        row = list(found)
        if path.is_relative_to(tmp_path):
            row[stat.ST_UID] = STRANGER
        check(path, os.stat_result(row))

    monkeypatch.setattr(code_files, "_check_owner", check_as_a_stranger)
    return tmp_path


def build(path: Path) -> None:
    path.write_bytes(b"content")


def test_folders_are_made_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        ObjectCache(tmp_path / "a" / "simulator").get("key", build)
        KernelCache(tmp_path / "b" / "cubins").get("key", lambda: CUBIN)
    finally:
        os.umask(before)
    folders = [tmp_path / name for name in ("a", "a/simulator", "b", "b/cubins")]
    assert {mode_of(folder) for folder in folders} == {0o700}
    files = [path for folder in folders for path in folder.iterdir() if path.suffix in (".so", ".cubin", ".json")]
    assert len(files) == 3 and not any(mode_of(path) & 0o077 for path in files)


def test_right_of_others_to_write_is_taken_from_a_folder_of_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    make_folder(tmp_path)
    assert mode_of(tmp_path) == 0o755


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_file_that_others_may_write_to_is_not_loaded_and_made_anew(tmp_path: Path, mode: int) -> None:
    objects, kernels = ObjectCache(tmp_path / "a"), KernelCache(tmp_path / "b")
    path = objects.get("key", build)
    kernels.get("key", lambda: CUBIN)
    for each in (path, tmp_path / "b" / "key.cubin"):
        each.chmod(mode)
        with pytest.raises(gx.AccessError, match=r"Others may write to .*chmod go-w"):
            open_code(each)
    assert not is_whole(path)
    assert is_whole(objects.get("key", build)) and not mode_of(path) & 0o022
    assert KernelCache(tmp_path / "b").get("key", lambda: CUBIN).was_compiled
    assert not KernelCache(tmp_path / "b").get("key", lambda: CUBIN).was_compiled


def test_link_in_the_place_of_a_file_or_a_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "real" / "key.so").write_bytes(b"content")
    (tmp_path / "real" / "link.so").symlink_to(tmp_path / "real" / "key.so")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    assert read_code(tmp_path / "real" / "key.so") == b"content"
    with pytest.raises(gx.AccessError, match="can't be loaded"):
        open_code(tmp_path / "real" / "link.so")
    with pytest.raises(gx.AccessError, match="is a link"):
        open_code(tmp_path / "folder" / "key.so")
    with pytest.raises(gx.AccessError, match="is a link"):
        make_folder(tmp_path / "folder")


def test_pipe_is_no_code_and_nothing_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key.so", 0o600)
    tmp_path.chmod(0o700)
    with pytest.raises(gx.AccessError, match="no regular file"):
        open_code(tmp_path / "key.so")


def test_code_of_another_user_is_not_loaded(foreign: Path) -> None:
    (foreign / "key.so").write_bytes(b"content")
    with pytest.raises(gx.AccessError, match=f"belongs to user {STRANGER}"):
        open_code(foreign / "key.so")


def test_folder_of_another_user_is_reported_once_and_a_private_one_is_used(foreign: Path) -> None:
    cache = ObjectCache(foreign)
    with pytest.warns(RuntimeWarning, match=r"belongs to user .*Point GPUEXEC_CACHE_DIR") as caught:
        paths = [cache.get(key, build) for key in ("key", "other")]
    assert len(caught) == 1 and not list(foreign.iterdir())
    assert all(is_whole(path) and mode_of(path.parent) == 0o700 for path in paths)


def test_kernels_stay_in_memory_where_the_folder_is_another_user_s(foreign: Path) -> None:
    cache = KernelCache(foreign)
    with pytest.warns(RuntimeWarning, match=r"belongs to user .*Point GPUEXEC_CACHE_DIR") as caught:
        entries = [cache.get(key, lambda: CUBIN) for key in ("key", "other")]
    assert len(caught) == 1 and not list(foreign.iterdir())
    assert cache.file_of(entries[0]).read_bytes() == CUBIN.image


def compile_library(path: Path, value: int) -> Path:
    source = path.with_suffix(".cpp")
    source.write_text(f'extern "C" int value() {{ return {value}; }}\n')
    find_compiler().build(path.name, [source], path, ("-shared", "-fPIC"))
    return path


def test_library_is_loaded_by_the_descriptor_that_was_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    good, other = (compile_library(tmp_path / f"{value}.so", value) for value in (1, 2))
    real = open_code

    def open_and_exchange(path: Path) -> int:
        file = real(path)
        os.replace(other, path)
        return file

    monkeypatch.setattr(code_files, "open_code", open_and_exchange)
    assert load_library(good).value() == 1


def test_libraries_of_one_file_share_a_descriptor_and_others_never_do(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    paths = [compile_library(tmp_path / f"{value}.so", value) for value in range(3)]
    assert [load_library(path).value() for path in paths] == [0, 1, 2]
    before = len(os.listdir("/proc/self/fd"))
    assert [load_library(path).value() for path in paths] == [0, 1, 2]
    assert len(os.listdir("/proc/self/fd")) == before
    shutil.rmtree(tmp_path)
    assert load_library(compile_library(private_folder() / "again.so", 7)).value() == 7


@pytest.mark.parametrize(
    "settings",
    [{}, {"XDG_CACHE_HOME": "cache"}, {"HOME": ""}, {"HOME": "here"}, {"HOME": "/tmp", "XDG_CACHE_HOME": "x"}],
)
def test_cache_without_a_home_is_private_and_gone_at_exit(tmp_path: Path, settings: dict[str, str]) -> None:
    program = (
        "import os, pwd, warnings\n"
        "def absent(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = absent\n"
        "from gpuexec.devices.kernels import code_files\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    folders = [code_files.cache_folder(name) for name in ('cubins', 'simulator')]\n"
        "for folder in folders: code_files.make_folder(folder)\n"
        "print(len(caught), oct(os.stat(folders[0].parent).st_mode & 0o777), *folders)\n"
    )
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "LD_LIBRARY_PATH")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)} | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, mode, *folders = done.stdout.split()
    assert (count, mode) == ("1", "0o700")
    assert {Path(folder).parent.parent for folder in folders} == {tmp_path}
    assert not list(tmp_path.iterdir())


def test_cubin_is_loaded_from_a_private_copy_that_nobody_can_have_exchanged(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    entry = cache.get("key", lambda: CUBIN)
    assert entry.path is not None
    entry.path.write_bytes(b"another")
    path = cache.file_of(entry)
    assert path.read_bytes() == CUBIN.image and path.parent == private_folder()
    assert (mode_of(path), mode_of(path.parent)) == (0o600, 0o700)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert KernelCache(tmp_path).file_of(entry) == path
