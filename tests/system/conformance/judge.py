"""Verdict on one case on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import gpuexec.compat.onnx_backend as backend
from gpuexec.errors import UnsupportedError
from tests.system.conformance.compare import find_difference
from tests.system.conformance.suite import Case

DEVICES = {"cpu": "CPU", "simulator": "SIMULATOR", "cuda": "CUDA"}


class Outcome(Enum):
    """PASS: as expected. FAIL: something else came out. UNSUPPORTED: refused as such. ERROR: nothing came out."""

    PASS = "pass"
    FAIL = "fail"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a case: ``reason`` says why it failed, ``host_calls`` name what fell back to the host, and why."""

    outcome: Outcome
    reason: str = ""
    host_calls: tuple[str, ...] = ()


def judge_on(device: str) -> Callable[[Case], Verdict]:
    """Return the function that judges a case on a device of DEVICES."""
    return lambda case: judge(case, DEVICES[device])


def judge(case: Case, device: str) -> Verdict:
    """Run a case by the backend interface and compare all its data sets."""
    model = case.read_model()
    data = case.read_data(model)
    try:
        with backend.prepare(model, device) as prepared:
            results = [prepared.run(list(inputs)) for inputs, _ in data]
            rows = prepared.report().host_calls
            host_calls = tuple(dict.fromkeys([f"{row.operator} ({row.why})" for row in rows]))
    except UnsupportedError as error:
        return Verdict(Outcome.UNSUPPORTED, str(error))
    except Exception as error:  # whatever a case ends in is its verdict
        return Verdict(Outcome.ERROR, f"{type(error).__name__}: {error}")
    for result, (_, expected) in zip(results, data, strict=True):
        difference = find_difference(list(expected), list(result), case.rtol, case.atol, "outputs")
        if difference:
            return Verdict(Outcome.FAIL, difference, host_calls)
    return Verdict(Outcome.PASS, "", host_calls)
