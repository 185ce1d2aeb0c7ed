"""Lists of passing cases: they only grow, and a part of them is run here, all of it by ``make conformance``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.conformance import __main__ as command
from tests.system.conformance.judge import Outcome, Verdict
from tests.system.conformance.passing import add_passing, choose_part, list_path, read_passing, read_reasons
from tests.system.conformance.suite import KINDS, load_suite

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.long
def test_listed_cases_of_the_part_pass() -> None:
    """Runs in a process of its own: it forks, and so should have no threads."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "tests.system.conformance", "--part"]
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("device", command.DEVICES)
def test_list_is_sorted_and_without_doubles(device: str) -> None:
    listed = read_passing(list_path(device))
    assert len(listed) > 1000
    assert list(listed) == sorted(set(listed))


def test_fallbacks_are_few_pass_and_have_a_reason() -> None:
    fallbacks = read_reasons("fallbacks")
    assert 0 < len(fallbacks) <= 110
    assert set(fallbacks) <= set(read_passing(list_path("simulator")))
    assert all(re.search(r"\w+ \(.+\)", reason) for reason in fallbacks.values())


def test_misses_are_few_have_a_cause_and_are_all_there_are() -> None:
    misses = read_reasons("misses")
    assert 0 < len(misses) <= 13 and all(misses.values())
    suite = {case.id for case in load_suite(KINDS)}
    passing = {device: set(read_passing(list_path(device))) for device in command.DEVICES}
    assert {device: suite - ids - set(misses) for device, ids in passing.items()} == {"cpu": set(), "simulator": set()}
    assert not any(set(misses) <= ids for ids in passing.values())


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (
            Verdict(Outcome.PASS, "", ("Op (why)",)),
            "FELL BACK simple/test_shrink, not listed in fallbacks.txt: Op (why)",
        ),
        (Verdict(Outcome.FAIL, "off"), "MISSED simple/test_shrink, not listed in misses.txt: fail: off"),
    ],
)
def test_what_falls_back_or_misses_unlisted_is_reported(
    verdict: Verdict, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "list_path", lambda device: tmp_path / "list.txt")
    monkeypatch.setattr(command, "judge_all", lambda cases, *_: [(case, verdict) for case in cases])
    assert command.main(["--device", "simulator", "-k", "simple/test_shrink"]) == 1
    assert says in capsys.readouterr().out


def test_list_keeps_what_does_not_pass_now(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    assert add_passing(path, ["node/b", "node/a"], "onnx 1") == 2
    assert add_passing(path, ["node/a", "light/c"], "onnx 2") == 1
    assert path.read_text() == "# onnx 2\nlight/c\nnode/a\nnode/b\n"
    assert read_passing(path) == ("light/c", "node/a", "node/b")


def test_part_has_some_cases_of_every_operator() -> None:
    operators = {f"node/{name}{index}": [name] for name in ("abs", "exp") for index in range(40)}
    operators["node/alone"] = ["rare"]
    part = choose_part([*operators, "node/gone"], operators)
    assert part == choose_part([*reversed(operators)], operators)
    assert "node/alone" in part
    assert all(1 <= sum(id.startswith(f"node/{name}") for id in part) < 10 for name in ("abs", "exp"))


def test_listed_case_is_lost_when_the_suite_has_it_no_more() -> None:
    verdicts = {"node/a": Verdict(Outcome.PASS), "node/b": Verdict(Outcome.ERROR, "why\n  so")}
    assert command.find_lost(["node/a", "node/b", "node/c"], verdicts, is_whole=False) == {"node/b": "error: why so"}
    assert set(command.find_lost(["node/a", "node/b", "node/c"], verdicts, is_whole=True)) == {"node/b", "node/c"}


@pytest.mark.parametrize(("outcome", "status"), [(Outcome.PASS, 0), (Outcome.FAIL, 1), (Outcome.UNSUPPORTED, 1)])
def test_command_fails_when_a_listed_case_does_not_pass(
    outcome: Outcome, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "list.txt"
    add_passing(path, ["simple/test_shrink"], "onnx")
    monkeypatch.setattr(command, "KINDS", ("simple",))
    monkeypatch.setattr(command, "list_path", lambda device: path)
    monkeypatch.setattr(
        command, "judge_all", lambda cases, *_: [(case, Verdict(outcome, "why", ("Op",))) for case in cases]
    )
    assert command.main(["--device", "cpu", "--update"]) == status
    printed = capsys.readouterr().out
    assert ("LOST simple/test_shrink" in printed) == bool(status)
    assert len(read_passing(path)) == (23 if outcome is Outcome.PASS else 1)
    assert f"{23:>13}" in printed.split("all")[1]
