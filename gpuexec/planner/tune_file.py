"""Tune files: times of the candidates of problems, measured once on a GPU.

A tune file is JSON that a person can read and change: the GPU, the driver and the libraries that were measured, then
for each problem the microseconds of each provider, and what a provider said that could not solve it. It holds for GPUs
of the same name alone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuexec.errors import InputError, abridge
from gpuexec.ir.provider import LIBRARIES, OURS
from gpuexec.system.atomic_file import write_file
from gpuexec.system.mapped import read_file

_FORMAT = 1
_NAMES = (OURS, *LIBRARIES)


@dataclass(frozen=True, slots=True)
class Tuning:
    """Content of a tune file.

    Attributes:
        gpu: Name of the GPU.
        versions: What was measured, by name: driver, package, libraries.
        times_us: Median microseconds of providers, by problem.
        refused: What providers said that could not solve a problem, by problem.
        source: Where it was read from, for messages.
    """

    gpu: str
    versions: Mapping[str, str]
    times_us: Mapping[str, Mapping[str, float]]
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    source: str = ""

    def find(self, problem: str) -> Mapping[str, float]:
        """Return the microseconds of providers that were measured on a problem."""
        return self.times_us.get(problem, {})

    def check_gpu(self, name: str) -> None:
        """Check that it was measured on such a GPU.

        Raises:
            InputError: It was not; names both.
        """
        if name != self.gpu:
            raise InputError(
                f"The tune file {self.source} was measured on {self.gpu!r}, and this is {name!r}: measure here with"
                " `gpuexec tune`."
            )


def write_tuning(path: str | os.PathLike[str], tuning: Tuning) -> None:
    """Write a tune file.

    Raises:
        AccessError: The file can't be written.
    """
    rows = []
    for problem in sorted({*tuning.times_us, *tuning.refused}):
        times = tuning.times_us.get(problem, {})
        row: dict[str, Any] = {"problem": problem}
        if times:
            row["fastest"] = min(times, key=lambda name: (times[name], name != OURS))
        row["median_us"] = {name: round(us, 3) for name, us in times.items()}
        if problem in tuning.refused:
            row["refused"] = dict(tuning.refused[problem])
        rows.append(row)
    data = {"gpuexec_tuning": _FORMAT, "gpu": tuning.gpu, "versions": dict(tuning.versions), "problems": rows}
    write_file(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def merge_tunings(before: Tuning, added: Tuning) -> Tuning:
    """Return both; problems that were measured again have the new times.

    Raises:
        InputError: They were measured on other GPUs, or with other versions.
    """
    before.check_gpu(added.gpu)
    changed = [
        name for name in before.versions if name in added.versions and before.versions[name] != added.versions[name]
    ]
    if changed:
        raise InputError(f"{before.source} was measured with another version of {', '.join(changed)}: name a new file.")
    return Tuning(
        added.gpu,
        {**before.versions, **added.versions},
        {**before.times_us, **added.times_us},
        {**before.refused, **added.refused},
        before.source,
    )


def read_tuning(path: str | os.PathLike[str]) -> Tuning:
    """Read a tune file; ``fastest`` in it is for readers, and ``median_us`` decides.

    Raises:
        InputError: It is no tune file, or one of a later release.
        OSError: It can't be opened.
    """
    name = os.fsdecode(path)
    try:
        data = json.loads(read_file(path).decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is no tune file: {abridge(str(error), 200)}.") from error
    if not isinstance(data, dict) or "gpuexec_tuning" not in data:
        raise InputError(f"{name} is no tune file: it lacks 'gpuexec_tuning'. `gpuexec tune` writes one.")
    if data["gpuexec_tuning"] != _FORMAT:
        raise InputError(f"{name} is a tune file of format {data['gpuexec_tuning']!r}; this release reads {_FORMAT}.")
    try:
        times, refused = {}, {}
        for row in data["problems"]:
            problem = _check(row["problem"], str)
            times[problem] = {_check_name(key): _check_time(us) for key, us in row["median_us"].items()}
            if "refused" in row:
                refused[problem] = {_check_name(key): _check(why, str) for key, why in row["refused"].items()}
        versions = {_check(key, str): _check(value, str) for key, value in data["versions"].items()}
        return Tuning(_check(data["gpu"], str), versions, times, refused, name)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{name} is no tune file: {type(error).__name__}: {abridge(str(error), 200)}. `gpuexec tune` writes one."
        ) from error


def _check(item: Any, kind: type[Any]) -> Any:
    if not isinstance(item, kind):
        raise TypeError(f"expected {kind.__name__}, got {item!r}")
    return item


def _check_name(name: Any) -> str:
    if name not in _NAMES:
        raise ValueError(f"there is no provider {name!r}")
    return str(name)


def _check_time(us: Any) -> float:
    if isinstance(us, bool) or not isinstance(us, (int, float)) or not math.isfinite(us) or us <= 0:
        raise ValueError(f"expected microseconds, got {us!r}")
    return float(us)
