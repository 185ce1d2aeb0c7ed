"""The custom operator example: short, equal on all devices, clean in check mode, found by its domain."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.kernels.kernel_source import find_source, flatten
from gpuexec.devices.kernels.nvrtc import compile_cubin
from gpuexec.errors import KernelError
from gpuexec.ir import operator as operators
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import instantiations
from gpuexec.ir.operator import find_operator
from gpuexec.system import extensions
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.ops.harness import Case, run_case

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(EXAMPLES))
    snake = importlib.import_module("snake")
    make_model = importlib.import_module("own_operator").make_model

X = np.random.default_rng(0).standard_normal((2, 3, 70), np.float32)
FREQUENCY = np.array([0.5, 1.0, 2.0], np.float32)


def expect(x: np.ndarray) -> np.ndarray:
    a = FREQUENCY.astype(np.float64)[:, None]
    return (x + np.sin(a * x) ** 2 / a).astype(np.float32)


@pytest.mark.parametrize("checks", ["host", "simulator"])
@pytest.mark.parametrize("x", [X, X[:, :, ::3], X[:0], X[:1, :, :1]], ids=["dense", "strided", "empty", "small"])
def test_operator_has_the_five_checks(x: np.ndarray, checks: str) -> None:
    run_case(Case("snake", "Snake", (x, FREQUENCY), expected=(expect(x),), domain="com.example", opset=1), checks)


@pytest.mark.parametrize("backend", [gx.BackendType.CPU, gx.BackendType.SIMULATOR])
def test_model_of_its_domain_runs_without_the_host(backend: gx.BackendType) -> None:
    with gx.Worker(gx.load(make_model()), backend=backend) as worker:
        np.testing.assert_allclose(worker.run(X)[0], expect(X), rtol=1e-6, atol=1e-6)
        assert worker.report().host_calls == ()


def test_example_runs_and_says_where() -> None:
    command = [sys.executable, str(EXAMPLES / "own_operator.py")]
    done = subprocess.run(command, env={"PYTHONPATH": str(EXAMPLES.parent)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[[[") and done.stdout.count("\n") == 3


def test_bad_input_is_refused_with_node_expected_and_got() -> None:
    with gx.Worker(gx.load(make_model()), backend=gx.BackendType.CPU) as worker:
        with pytest.raises(gx.InputError, match=r"expects .*float32\[n,3,width\]"):
            worker.run(X[:, :2])
        np.testing.assert_allclose(worker.run(X)[0], expect(X), rtol=1e-6, atol=1e-6)


def test_registration_and_kernel_are_short() -> None:
    folder = EXAMPLES
    assert len((folder / "snake.py").read_text().splitlines()) < 40
    assert len((folder / "snake.cu").read_text().splitlines()) < 20


@needs_cuda_wheels
def test_kernel_compiles_for_a_gpu_with_our_headers() -> None:
    (kernel,) = compile_cubin(
        flatten(find_source(snake.KERNEL.source)), [snake.KERNEL.expression], "sm_90", source="snake.cu"
    ).kernels
    assert kernel.spill_bytes == 0 and kernel.registers <= 64


@needs_cuda_wheels
def test_program_file_keeps_the_operator_and_its_kernel(tmp_path: Path) -> None:
    shapes = {"forward": {"x": (2, 3, 70)}}
    gx.Program.build({"forward": make_model()}, shapes=shapes, architectures=["sm_90"]).save(tmp_path / "snake.gxp")
    program = gx.Program.load(tmp_path / "snake.gxp")
    with program.load_method("forward", backend=gx.BackendType.SIMULATOR) as method:
        method.set_inputs([X])
        method.execute()
        np.testing.assert_allclose(method.get_outputs()[0].readback_and_clone(), expect(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("no.such.module:a.cu", "module 'no.such.module' can't be imported"),
        ("sys:a.cu", "module 'sys' is no file"),
    ],
)
def test_source_beside_no_module_is_named(source: str, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        find_source(source)


def test_absent_file_is_named() -> None:
    kernel = Kernel(f"{snake.__name__}:absent.cu", "absent")
    with pytest.raises(KernelError, match=r"absent\.cu can't be read"):
        flatten(find_source(kernel.source))


def test_domain_is_imported_when_it_is_first_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "com.announced", "Half", "half_operator", monkeypatch)
    assert find_operator("com.other.Half") is None
    assert "half_operator" not in sys.modules
    found = find_operator("com.announced.Half")
    assert found is not None and found.__module__ == "half_operator"
    assert instantiations("half_operator:half.cu") == ("half_of<float>",)


def test_package_that_can_not_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, "com.broken", "Half", "broken_operator", monkeypatch, "import no_such_module\n")
    says = r"Domain 'com.broken': broken_operator of the package .*no_such_module"
    with pytest.raises(gx.UnsupportedError, match=says):
        find_operator("com.broken.Half")


def test_class_that_is_no_dataclass_is_refused() -> None:
    with pytest.raises(gx.InputError, match=r"com\.example\.Bare: expected a frozen dataclass, got class Bare"):

        @operators.operator("Bare", "com.example")
        class Bare(operators.Operator):
            pass

    assert find_operator("com.example.Bare") is None


def _install(
    folder: Path, domain: str, name: str, module: str, monkeypatch: pytest.MonkeyPatch, first: str = ""
) -> None:
    """Put a package into a folder as an installer would, with an operator and the domain that it announces.

    What it registers is forgotten after the test.
    """
    monkeypatch.setattr(operators, "_OPERATORS", dict(operators._OPERATORS))
    (folder / f"{module}.py").write_text(
        f"{first}from dataclasses import dataclass\n"
        "from gpuexec.ir.instances import instantiate\n"
        "from gpuexec.ir.operator import Operator, operator\n"
        f"instantiate(__name__ + ':half.cu', ['half_of<float>'])\n"
        f"@operator({name!r}, {domain!r})\n@dataclass(frozen=True, slots=True)\nclass {name}(Operator):\n    pass\n"
    )
    made = folder / f"{module}-1.0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (made / "entry_points.txt").write_text(f"[{extensions.GROUP}]\n{domain} = {module}\n")
    monkeypatch.syspath_prepend(str(folder))
