"""Exceptions: one tree, picklable, with their place."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from gpuexec import errors
from gpuexec.errors import ErrorCode, GpuexecError, InputError, NeedsHostValue, StaleError, StateError, locate


def all_errors() -> list[type[GpuexecError]]:
    found, left = [], [GpuexecError]
    while left:
        kind = left.pop()
        found.append(kind)
        left += kind.__subclasses__()
    return [kind for kind in found if kind.__module__ == "gpuexec.errors"]


def test_tree_at_the_top_of_the_file_names_every_error() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^    (?:[│├└─ ]*)(\w+)", errors.__doc__, re.MULTILINE)
    assert sorted(drawn) == sorted(kind.__name__ for kind in all_errors())


@pytest.mark.parametrize("kind", all_errors())
def test_errors_survive_pickling_with_all_they_know(kind: type[GpuexecError]) -> None:
    if kind is NeedsHostValue:
        error: GpuexecError = NeedsHostValue("wrong", index=2, role="axes", node="n", value="v")
    else:
        error = kind("wrong", node="n", value="v")
    for back in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(back) is kind
        assert (str(back), back.node, back.value, back.code) == ("wrong", "n", "v", kind.code)
        assert vars(back) == vars(error)


def test_located_errors_keep_their_type_and_first_node() -> None:
    error = locate(InputError("bad axis"), "Conv 'stem'", "stem")
    assert str(error) == "Conv 'stem': bad axis" and error.node == "stem"
    assert locate(error, "graph", "other").node == "stem"


def test_errors_are_what_python_programs_expect_too() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(StateError, RuntimeError)
    assert issubclass(errors.OutOfMemoryError, MemoryError)
    assert StaleError("x").code is ErrorCode.INVALID_STATE
    assert errors.UnsupportedError("x").code == 0x14
