"""Process pool for mutants, which may crash, hang or run out of memory without harm to others."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.system.bad_models.attempt import Outcome
from tests.system.bad_models.seeds import ROOT

# A guard against hangs, far above what the slowest mutant takes (2 s).
LIMIT_S = 60.0
CHILD = (sys.executable, "-m", "tests.system.bad_models.child")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a fuzzing run: a folder of more seeds, if any, and the type of device."""

    folder: str = ""
    device: str = "cpu"

    @staticmethod
    def read(text: str) -> Settings:
        """Return the settings that a process was given as its first argument."""
        return Settings(*json.loads(text))

    def __str__(self) -> str:
        return json.dumps([self.folder, self.device])


@dataclass(frozen=True, slots=True)
class Row:
    """A mutant in words, with its number, what became of it, how long that took, and the process's peak of memory."""

    number: int
    mutant: str
    outcome: Outcome
    seconds: float = LIMIT_S
    peak_nbytes: int = 0


def try_mutants(
    numbers: Sequence[int],
    settings: Settings = Settings(),
    *,
    child: Sequence[str] = CHILD,
    limit_s: float = LIMIT_S,
) -> Iterator[Row]:
    """Yield what becomes of each mutant. One that ends or blocks its process counts as bad, and the rest goes on."""
    left = list(numbers)
    while left:
        command = [*child, str(settings), *map(str, left)]
        for row in _try_in_one_process(command, limit_s):
            left.remove(row.number)
            yield row


def _try_in_one_process(command: Sequence[str], limit_s: float) -> Iterator[Row]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None and child.stderr is not None
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        errors: list[str] = []
        readers = [
            threading.Thread(target=_pass_on, args=(child.stdout, lines)),
            threading.Thread(target=errors.extend, args=(child.stderr,)),
        ]
        for reader in readers:
            reader.start()
        begun = None
        try:
            while True:
                line = lines.get(timeout=limit_s)
                if not line:
                    break
                row = json.loads(line)
                if "begin" in row:
                    begun = row
                    continue
                assert begun is not None
                outcome = Outcome(row["kind"], row["error"], row["message"])
                yield Row(row["end"], begun["mutant"], outcome, row["seconds"], row.get("peak", 0))
                begun = None
        except queue.Empty:
            child.kill()
            assert begun is not None, "the process did not begin"
            yield Row(begun["begin"], begun["mutant"], Outcome("bad", "hang", f"more than {limit_s} s"))
            return
        finally:
            child.kill()
            for reader in readers:
                reader.join()
        if begun is not None:
            said = "".join(errors[-30:])
            yield Row(begun["begin"], begun["mutant"], Outcome("bad", "crash", f"exit {child.wait()}: {said}"))
        elif child.wait() != 0:
            raise AssertionError(f"the process of bad models ended with {child.returncode}: {''.join(errors)}")


def _pass_on(stream: Iterable[str], lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line)
    lines.put("")
