"""Environment variables: accepted values, and errors for others."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import pytest

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.devices import backend as backend_module
from gpuexec.devices.backend import BackendType, open_backend
from gpuexec.system import knobs
from gpuexec.system.knobs import KNOBS, Knob

PACKAGE = Path(knobs.__file__).parent
NONSENSE = {
    bool: ["", "maybe", "2", "-1", "nan", " "],
    float: ["", "lots", "-1", "nan", "inf", "1e3", "9" * 5000, " ", "1_0.0"],
    int: ["", "lots", "-1", "nan", "1.5", "1e3", "0x10", "9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}", " ", "1_000"],
}
TAKEN = {
    bool: [("1", True), (" Off ", False), ("no", False)],
    int: [("7", 7), (" 12 ", 12)],
    float: [("0.5", 0.5), ("7", 7.0)],
    str: [("any", "any")],
}
CASES = [(knob, text) for knob in KNOBS.values() for text in NONSENSE.get(knob.kind, ())]


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KNOBS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(knobs, "_warned", set())


@pytest.mark.parametrize(("knob", "text"), CASES, ids=[f"{knob.name}={text[:20]!r}" for knob, text in CASES])
def test_nonsense_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch, knob: Knob, text: str) -> None:
    monkeypatch.setenv(knob.name, text)
    with pytest.raises(gx.InputError, match=f"{knob.name} takes .*, got .*Unset it for the default") as caught:
        knob.read()
    assert len(str(caught.value)) < 300
    with pytest.raises(gx.InputError, match=knob.name):
        knobs.check_environment()


@pytest.mark.parametrize("knob", KNOBS.values(), ids=KNOBS)
def test_value_is_taken(monkeypatch: pytest.MonkeyPatch, knob: Knob) -> None:
    assert knob.read() == knob.default
    for text, value in TAKEN[knob.kind]:
        monkeypatch.setenv(knob.name, text)
        assert knob.read() == value


def test_empty_text_is_as_if_it_were_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CXX", "")
    assert knobs.cxx() is None


def test_device_is_not_opened_where_a_variable_has_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "_open", {})
    monkeypatch.setenv("GPUEXEC_GRAPH_BYTES", "lots")
    for type in (BackendType.CPU, BackendType.AUTO):
        with pytest.raises(gx.InputError, match=r"GPUEXEC_GRAPH_BYTES takes a whole number from 0 .*, got 'lots'"):
            open_backend(type)


def test_misspelt_name_is_warned_of_once_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CACHEDIR", "x")
    monkeypatch.setenv("GPUEXEC_OF_SOMEBODY_ELSE", "x")
    with pytest.warns(RuntimeWarning, match="GPUEXEC_CACHEDIR is not read by gpuexec; GPUEXEC_CACHE_DIR is") as caught:
        knobs.check_environment()
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knobs.check_environment()


def test_every_variable_that_sources_name_is_in_the_table() -> None:
    # Macros of the CUDA sources begin alike.
    macros = {f"GPUEXEC_{name}" for name in ("CHECK", "UCONTEXT", "SIM", "UNARY_STEPS", "BINARY_STEPS")}
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    named = {name for text in sources for name in re.findall(r"\bGPUEXEC_[A-Z_]+[A-Z]\b", text)}
    assert named - macros == set(KNOBS)


def test_variables_are_read_from_the_table_alone() -> None:
    read = [
        f"{path.relative_to(PACKAGE).as_posix()}:{number} {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if path.name != "knobs.py" and re.search(r"\bos\.(environ|getenv)", line)
    ]
    assert [line for line in read if "COLUMNS" not in line] == []  # which belongs to the terminal


def test_doctor_lists_all_with_what_is_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPUEXEC_CHECK_SEED", "41")
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in KNOBS) and "41" in shown


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/gpuexec"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "/cache"}, "/cache/gpuexec"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": ""}, "/home/me/.cache/gpuexec"),
        ({"HOME": "/home/me", "GPUEXEC_CACHE_DIR": "/mine"}, "/mine"),
        ({"HOME": "/home/me", "GPUEXEC_CACHE_DIR": "~/mine"}, "/home/me/mine"),
        ({"HOME": "/home/me", "XDG_CACHE_HOME": "cache"}, None),
        ({"HOME": "home"}, None),
        ({"HOME": ""}, None),
    ],
)
def test_cache_is_never_in_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], folder: str | None
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert knobs.kernel_cache_dir() == (None if folder is None else Path(folder))


def test_explicit_folder_is_where_it_was_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUEXEC_CACHE_DIR", "mine")
    assert knobs.kernel_cache_dir() == Path(os.getcwd()) / "mine"
