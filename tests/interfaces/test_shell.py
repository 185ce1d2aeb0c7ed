"""Makefile and CI script, run with stand-ins for Python, pip and make: no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {
    *("demo", "setup", "test", "quick", "format", "lint", "types", "kernels", "test-gpu", "test-ray", "bench"),
    *("bench-gpu", "clean"),
}

# Stands in for Python: says its version, makes a .venv of copies of itself, and writes down every other call.
PYTHON = """#!/bin/sh
case "$*" in
  *version_info*) echo {version} ;;
  *ensurepip*) exit {ensurepip} ;;
  "-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/gpuexec; cp "$0" .venv/bin/ruff ;;
  *--extra) echo {extra} ;;
  *) echo "${{0##*/}} $*" >> calls ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    return folder


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder that, as the whole PATH, has what the Makefile needs: no Python and no compiler."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("make", "bash", "sh", "sed", "cksum", "cut", "touch", "rm", "mkdir", "cp", "find", "dirname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def add_python(tools: Path, name: str, version: str, ensurepip: bool = True, extra: str = "") -> None:
    path = tools / name
    path.write_text(PYTHON.format(version=version, ensurepip=0 if ensurepip else 1, extra=extra))
    path.chmod(0o755)


def add_compiler(tools: Path) -> None:
    (tools / "g++").write_text("#!/bin/sh\n")
    (tools / "g++").chmod(0o755)


def make(checkout: Path, tools: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(tools), "HOME": str(checkout), "LC_ALL": "C"}
    command = [str(tools / "make"), *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def calls(checkout: Path) -> list[str]:
    """Return what the stand-ins were asked to do since the last look, without the printed probe."""
    path = checkout / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.rstrip() for line in lines if not line.endswith("driver.py")]


def test_make_alone_lists_every_target(checkout: Path, tools: Path) -> None:
    result = make(checkout, tools)
    assert result.returncode == 0
    assert set(re.findall(r"^  make ([\w-]+)\t\S", result.stdout, re.MULTILINE)) >= TARGETS


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_can_be_planned(target: str, checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    add_compiler(tools)
    assert make(checkout, tools, "-n", target).returncode == 0


def test_missing_compiler_is_one_line_that_says_what_to_install(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    result = make(checkout, tools, "test")
    assert result.returncode != 0
    assert len((result.stdout + result.stderr).splitlines()) == 1
    assert "C++17" in result.stderr
    assert "apt-get install g++" in result.stderr
    assert not (checkout / ".venv").exists()


def test_real_compiler_is_accepted(checkout: Path, tools: Path) -> None:
    compiler = os.environ.get("GPUEXEC_CXX") or shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None
    (tools / "g++").write_text(f'#!/bin/sh\nPATH="{os.environ["PATH"]}" exec {compiler} "$@"\n')
    (tools / "g++").chmod(0o755)
    assert make(checkout, tools, "compiler").returncode == 0


def test_compiler_that_can_not_compile_is_refused(checkout: Path, tools: Path) -> None:
    (tools / "g++").write_text("#!/bin/sh\nexit 1\n")
    (tools / "g++").chmod(0o755)
    assert make(checkout, tools, "compiler").returncode != 0


def test_python_without_ensurepip_names_the_package(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12", ensurepip=False)
    result = make(checkout, tools, "demo")
    assert result.returncode != 0
    assert "apt-get install python3.12-venv" in result.stderr
    assert not (checkout / ".venv").exists()


def test_python_with_ensurepip_is_preferred_to_a_newer_one_without(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3.13", "3.13", ensurepip=False)
    add_python(tools, "python3.11", "3.11")
    assert "Making .venv with python3.11 (3.11)." in make(checkout, tools, "demo").stdout


@pytest.mark.parametrize("version", ["3.10", "3.15", "2.7"])
def test_other_versions_of_python_are_refused(version: str, checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", version)
    result = make(checkout, tools, "demo")
    assert result.returncode != 0
    assert f"gpuexec needs Python 3.11 to 3.14; found: python3 ({version})." in result.stderr


def test_python_that_was_named_is_the_only_one_tried(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    add_python(tools, "old", "3.9")
    assert "found: old (3.9)." in make(checkout, tools, "demo", "PYTHON=old").stderr
    add_python(tools, "mine", "3.14")
    assert "Making .venv with mine (3.14)." in make(checkout, tools, "demo", "PYTHON=mine").stdout


@pytest.mark.parametrize(("extra", "package"), [("", "."), ("cuda13", ".[cuda13]"), ("cuda12", ".[cuda12]")])
def test_demo_installs_by_driver_once_and_runs_the_digits(
    extra: str, package: str, checkout: Path, tools: Path
) -> None:
    add_python(tools, "python3", "3.12", extra=extra)
    result = make(checkout, tools, "demo")
    assert result.returncode == 0, result.stderr
    install, run = calls(checkout)
    assert install == f"python -m pip install --disable-pip-version-check -e {package}"
    assert run.split() == ["gpuexec", "demo"]
    assert ("cupy" in result.stdout) == bool(extra)
    assert re.search(r"Downloading .*onnx.* MB", result.stdout)
    make(checkout, tools, "demo")
    assert calls(checkout) == [run]


def test_test_installs_once_for_each_pyproject(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    add_compiler(tools)
    assert make(checkout, tools, "test", "ARGS=-k arena").returncode == 0
    install = "python -m pip install --disable-pip-version-check -e .[test,dev,cuda13]"
    pytest_alone = "python -m pytest -n auto --dist worksteal -m not ray"
    assert calls(checkout) == [install, f"{pytest_alone} -k arena"]
    make(checkout, tools, "test")
    assert calls(checkout) == [pytest_alone]
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    make(checkout, tools, "test")
    assert calls(checkout) == [install, pytest_alone]


def test_ray_is_installed_for_its_tests_alone(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    assert make(checkout, tools, "test-ray", "ARGS=-x").returncode == 0
    install, tests = calls(checkout)
    assert install.endswith("-e .[test,ray]")
    assert tests == "python -m pytest -m ray tests/interfaces/compat/test_ray.py -x"


def test_quick_asks_linter_types_and_tests_of_the_host(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    add_compiler(tools)
    assert make(checkout, tools, "setup").returncode == 0
    (checkout / ".venv/bin/mypy").symlink_to("python")
    calls(checkout)
    assert make(checkout, tools, "quick").returncode == 0
    rules, form, types, tests = calls(checkout)
    assert (rules, form, types) == ("ruff format --check .", "ruff check .", "mypy")
    assert re.fullmatch(r"python -m pytest -n auto --dist worksteal -m quick( tests/[\w/]+)+", tests)
    assert all((ROOT / folder).is_dir() for folder in re.findall(r"tests/[\w/]+", tests))


def test_tests_take_cuda_12_where_the_driver_does(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12", extra="cuda12")
    add_compiler(tools)
    make(checkout, tools, "test")
    assert calls(checkout)[0].endswith(".[test,dev,cuda12]")


def test_setup_leaves_nothing_to_install_for_the_other_targets(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    add_compiler(tools)
    make(checkout, tools, "setup")
    assert calls(checkout) == ["python -m pip install --disable-pip-version-check -e .[test,dev,cuda13]"]
    for target in ("demo", "test", "format", "lint", "kernels", "bench"):
        assert make(checkout, tools, target).returncode == 0
    assert not [call for call in calls(checkout) if "pip" in call]


def test_failed_install_is_tried_again(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    assert make(checkout, tools, "demo").returncode == 0
    for stamp in (checkout / ".venv").glob(".installed-*"):
        stamp.unlink()
    python = checkout / ".venv/bin/python"
    working = python.read_text()
    python.write_text(working.replace('case "$*" in', 'case "$*" in\n  *pip*) exit 1 ;;'))
    assert make(checkout, tools, "demo").returncode != 0
    python.write_text(working)
    calls(checkout)
    assert make(checkout, tools, "demo").returncode == 0
    assert "pip install" in calls(checkout)[0]


def test_gpu_tests_need_no_virtual_environment(checkout: Path, tools: Path) -> None:
    add_python(tools, "python3", "3.12")
    assert make(checkout, tools, "test-gpu").returncode == 0
    assert calls(checkout)[0].startswith("python3 -m tests.system.gpu")
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(("beside", "given", "seen"), [(False, "", ""), (True, "", "{}"), (True, "/mine", "/mine")])
def test_ci_points_to_models_beside_the_checkout(
    beside: bool, given: str, seen: str, checkout: Path, tools: Path
) -> None:
    script = checkout / ".ci" / "run"
    relative = re.search(r"\.\./[\w/]+", script.read_text())
    assert relative is not None
    folder = checkout / relative[0]
    if beside:
        folder.mkdir(parents=True)
    (tools / "make").unlink()
    (tools / "make").write_text('#!/bin/sh\necho "$PWD $* [$GPUEXEC_MODELS]"\n')
    (tools / "timeout").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    for tool in ("make", "timeout"):
        (tools / tool).chmod(0o755)
    environment = {"PATH": str(tools), "GPUEXEC_MODELS": given}
    command = [str(tools / "bash"), str(script)]
    result = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
    models = seen.format(folder.resolve())
    assert (
        result.stdout
        == f"{checkout} test [{models}]\n{checkout} test-ray ARGS=-k 'not example and not queue' [{models}]\n"
    )
