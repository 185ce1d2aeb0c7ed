"""Cases in program files, and their verification."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpuexec as gx
import tests.ops.operators  # noqa: F401 (registers NoKernel)
from gpuexec.cli import main
from gpuexec.devices.backend import Backend
from tests.model.small_models import affine, expect_affine, ramp
from tests.program.small_programs import SHAPES

X = ramp(2, 3)


def save_case(path: Path, y: np.ndarray | None) -> str:  # type: ignore[type-arg]
    case = gx.Case({"x": X}, None if y is None else {"y": y})
    gx.Program.build({"forward": affine()}, shapes={"forward": SHAPES}, cases={"forward": [case]}).save(path)
    return str(path)


@pytest.mark.feature("E86")
def test_a_file_is_verified_by_the_cases_it_carries(
    tmp_path: Path, backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    on_backend = ["--backend", backend.type.value]
    for y, origin in ((expect_affine(X), "given"), (None, "cpu")):
        assert main(["verify", save_case(tmp_path / "a.gxp", y), *on_backend]) == 0
        assert f"ok  forward case 0 ({origin}) y: maximum error 0" in capsys.readouterr().out
    wrong = expect_affine(X)
    wrong[1, 2] += 0.5
    path = save_case(tmp_path / "b.gxp", wrong)
    assert main(["verify", path, *on_backend]) == 1
    assert "OFF forward case 0 (given) y: maximum error 0.5, mean 0.0833" in capsys.readouterr().out
    assert main(["verify", path, *on_backend, "--atol", "0.6"]) == 0


@pytest.mark.feature("E86")
def test_cases_come_back_from_the_file(tmp_path: Path) -> None:
    (case,) = gx.Program.load(save_case(tmp_path / "a.gxp", None)).contents.methods["forward"].cases
    np.testing.assert_array_equal(case.inputs["x"], X)
    np.testing.assert_array_equal(case.outputs["y"], expect_affine(X))
    for bad, message in ((gx.Case({}), "lacks the inputs x"), ({"x": X}, r"Case\(inputs, outputs\), got a dict")):
        with pytest.raises(gx.InputError, match=message):
            gx.Program.build({"forward": affine()}, cases={"forward": [bad]})  # type: ignore[list-item]
