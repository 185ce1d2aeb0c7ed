"""Targets, named without the device."""

from __future__ import annotations

import pytest

from gpuexec.errors import InputError
from gpuexec.ir.target import Target


@pytest.mark.parametrize(
    ("name", "architecture", "shared"),
    [
        ("cpu", 0, 0),
        ("sm_75", 75, 64),
        ("sm_80", 80, 163),
        ("sm_90", 90, 227),
        ("sm_90a", 90, 227),
        ("sm_120", 120, 99),
    ],
)
def test_target_is_named_and_knows_its_limits(name: str, architecture: int, shared: int) -> None:
    target = Target.named(name)
    assert (target.name, target.architecture, target.shared_bytes_per_block) == (name, architecture, shared * 1024)
    assert target.has_kernels == (name != "cpu")


def test_unlisted_architecture_has_the_limits_of_the_one_before() -> None:
    assert Target.named("sm_81").shared_bytes_per_block == Target.named("sm_80").shared_bytes_per_block


@pytest.mark.parametrize(("name", "message"), [("gpu", "unknown"), ("sm_", "unknown"), ("sm_70", "older than sm_75")])
def test_target_that_can_not_be_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Target.named(name)
