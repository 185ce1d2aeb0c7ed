"""Attribute type checks against declared fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuexec.errors import InputError
from gpuexec.ir.operator import check_attributes


@dataclasses.dataclass
class Fields:
    count: int = 0
    scale: float | None = None
    name: str = ""
    pads: tuple[int, ...] = ()
    graph: Any = None


@pytest.mark.parametrize(
    "attributes",
    [{"count": 3}, {"scale": 1}, {"scale": None}, {"name": "a"}, {"pads": (1, 2)}, {"pads": ()}, {"graph": object()}],
)
def test_attributes_of_the_declared_types_are_taken(attributes: dict[str, Any]) -> None:
    check_attributes("Op", dataclasses.fields(Fields), attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"count": 1.5}, "Op expects count to be int, got 1.5"),
        ({"count": None}, "Op expects count to be int, got None"),
        ({"scale": "a"}, r"Op expects scale to be float \| None, got 'a'"),
        ({"name": 1}, "Op expects name to be str, got 1"),
        ({"pads": 1}, r"Op expects pads to be tuple\[int, ...\], got 1"),
        ({"pads": (1, 2.5)}, r"Op expects pads to be tuple\[int, ...\], got \(1, 2.5\)"),
    ],
)
def test_attributes_of_another_type_are_refused(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_attributes("Op", dataclasses.fields(Fields), attributes)
