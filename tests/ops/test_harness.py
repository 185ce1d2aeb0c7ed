"""The operator harness: each check fails on an operator or a case made to break it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest

import gpuexec.ops  # noqa: F401 (registers the operators)
from gpuexec.devices.device import Device
from gpuexec.errors import UnsupportedError
from gpuexec.ir import operator as gx_operator
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.operator import Array, Emitter, Operator, Tolerance, build, operator
from gpuexec.ir.spec import TensorSpec
from tests.devices.opening import open_living
from tests.ops import harness
from tests.ops.harness import Case, run_case
from tests.ops.tolerance import allow

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
Slots = tuple[Slot | None, ...]


class Negation(Operator):
    """Negates, in its kernel and in NumPy; subclasses do not."""

    __slots__ = ()
    tolerance = Tolerance.EXACT

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape(x.shape),)

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.negative(x),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        negate = build("Neg", {})
        assert negate.lower is not None
        negate.lower(emit, inputs, outputs)


@dataclass(frozen=True, slots=True)
class InfersWrong(Negation):
    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        return (x.with_shape((1, *x.shape)),)


@dataclass(frozen=True, slots=True)
class ComputesWrong(Negation):
    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.abs(x),)


@dataclass(frozen=True, slots=True)
class WritesWrong(Negation):
    """Right where it returns, wrong where it is given memory."""

    def compute(self, x: Array, out: Any = None) -> tuple[Array, ...]:
        return (np.negative(x) + np.float32(out is not None),)


@dataclass(frozen=True, slots=True)
class ForgetsStrides(Negation):
    """Takes an input for dense that is not."""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x = inputs[0]
        assert x is not None and outputs[0] is not None
        dense = Slot(x.buffer, 0, x.spec, outputs[0].strides)
        Negation.lower(self, emit, (dense,), outputs)


@dataclass(frozen=True, slots=True)
class ReadsTooFar(Negation):
    """Reads beyond its input, as a plan shows."""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        x = inputs[0]
        assert x is not None
        Negation.lower(self, emit, (Slot(x.buffer, x.offset_bytes + 64, x.spec, x.strides),), outputs)


class _Understating:
    """An emitter whose launches say of what they write all but the last element."""

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._emit, name)

    def launch(self, kernel: Kernel, grid: Any, block: Any, arguments: Any, writes: Any, *rest: Any) -> None:
        y = arguments[writes[0]]
        fewer = Slot(y.buffer, y.offset_bytes, y.spec.with_shape((y.spec.size - 1,)), (1,))
        said = [fewer if a is y else a for a in arguments]
        self._emit.launch(kernel, grid, block, said, writes, *rest)


@dataclass(frozen=True, slots=True)
class WritesMoreThanItSays(Negation):
    """Right numbers, by a launch whose slots are too small: a plan would let others use the last byte meanwhile."""

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        Negation.lower(self, cast(Emitter, _Understating(emit)), inputs, outputs)


@dataclass(frozen=True, slots=True)
class HasNoKernel(Negation):
    lower = None  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def negation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Neg be another operator in a test that names one."""
    chosen = getattr(request.node, "callspec", None)
    cls = chosen.params.get("cls") if chosen is not None else None
    before = gx_operator.find_operator("Neg")
    if cls is not None:
        base = build("Neg", {})
        monkeypatch.setattr(Negation, "lower", lambda self, *given: type(base).lower(base, *given))
        operator("Neg")(cls)
    yield
    assert before is not None
    operator("Neg")(before)


@pytest.mark.parametrize(
    ("cls", "breaks"),
    [
        (InfersWrong, ["host", "simulator", "pixel", "gpu"]),
        (ComputesWrong, ["host", "simulator", "pixel", "gpu"]),
        (WritesWrong, ["host"]),
        (ForgetsStrides, ["simulator", "pixel", "gpu"]),
        (ReadsTooFar, ["simulator", "pixel", "gpu"]),
        (WritesMoreThanItSays, ["simulator", "pixel"]),
    ],
)
def test_fault_is_seen(checks: str, cls: type[Operator], breaks: list[str]) -> None:
    seen = (Exception,)
    if checks in breaks:
        with pytest.raises(seen):
            run_case(Case("broken", "Neg", (X,)), checks)
    else:
        run_case(Case("broken", "Neg", (X,)), checks)


@pytest.mark.parametrize("cls", [HasNoKernel])
def test_operator_without_a_kernel_is_refused_by_name(checks: str, cls: type[Operator]) -> None:
    case = Case("host only", "Neg", (X,))
    run_case(case, checks)
    if checks != "host":
        with pytest.raises(UnsupportedError, match="Neg"):
            harness.run_on(checks, case, *harness.build_operator(case), set())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that are asked for, one after the other."""
    names: list[str] = []

    def note(name: str) -> Device:
        names.append(name)
        return open_living(name)

    monkeypatch.setattr(harness, "open_living", note)
    return names


def test_dense_inputs_and_windows_run_in_check_mode(opened: list[str]) -> None:
    for checks in ("host", "simulator", "pixel"):
        run_case(Case("right", "Neg", (X,)), checks)
    assert opened == ["cpu", "check", "check", "pixel_check", "pixel_check"]


@pytest.mark.parametrize("x", [X[0, 0], X[:0], X[:1, :1]], ids=["scalar", "empty", "one_element"])
def test_case_that_gaps_leave_as_it_is_runs_once(x: Array, opened: list[str]) -> None:
    run_case(Case("right", "Neg", (np.asarray(x),)), "simulator")
    assert opened == ["check"]


def test_large_case_runs_without_check_mode(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "MAX_CHECKED_ELEMENTS", 2 * X.size - 1)
    run_case(Case("right", "Neg", (X,)), "simulator")
    assert opened == ["simulator", "simulator"]


def test_check_mode_compares_dense_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "spread_all", lambda inputs, known: inputs)  # so that no window sees it
    wrong = np.ones(5, np.float32)
    with pytest.raises(AssertionError, match="halves: output 0"):
        run_case(
            Case("halves", "Gather", (wrong, np.array([9])), expected=(wrong[:1] / 2,), refusal="index 9"), "simulator"
        )


def test_oracle_is_asked(checks: str) -> None:
    if checks != "host":
        run_case(Case("wrong answer", "Neg", (X,), expected=(X,)), checks)
        return
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        run_case(Case("wrong answer", "Neg", (X,), expected=(X,)), checks)


def test_refused_inputs_have_a_result_on_devices_alone(checks: str) -> None:
    y = np.stack((np.zeros_like(X[0]), X[0]))
    case = Case("beyond", "Gather", (X, np.array([3, 0])), expected=(y,), refusal="index 3 is out of range")
    run_case(case, checks)
    with pytest.raises(AssertionError, match="Regex pattern did not match"):
        run_case(replace(case, refusal="index 4 is out of range"), checks)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        run_case(replace(case, inputs=(X, np.array([2, 0]))), checks)
    if checks in ("simulator", "gpu"):
        with pytest.raises(AssertionError, match="beyond: output 0"):
            run_case(replace(case, expected=(y + 1,)), checks)


def test_reduction_may_be_off_by_as_much_as_its_terms_say() -> None:
    a, b = np.array([[3, -4]], np.float32), np.array([[5], [4]], np.float32)
    op, eps = build("MatMul", {}), float(np.finfo(np.float32).eps)
    expected = a @ b  # 15 - 16 = -1, of magnitudes 31
    assert allow(op, (a, b), 0, expected, 2)[0, 0] == pytest.approx(2 * eps * 31 + eps, rel=1e-6)
