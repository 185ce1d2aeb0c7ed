"""Kernel instance table: registration and look-up."""

from __future__ import annotations

import pytest

from gpuexec.ir import instances
from gpuexec.ir.instances import instantiate, instantiations, kernel_table


def test_instances_stand_in_one_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instances, "_INSTANCES", {})
    instantiate("b.cu", ["k<float>", "k<int>"])
    instantiate("a.cu", ["plain"])
    instantiate("b.cu", ["k<float>", "k<half>"])
    assert kernel_table() == {"a.cu": ("plain",), "b.cu": ("k<float>", "k<int>", "k<half>")}
    assert instantiations("b.cu") == ("k<float>", "k<int>", "k<half>")
    assert instantiations("none.cu") == ()
