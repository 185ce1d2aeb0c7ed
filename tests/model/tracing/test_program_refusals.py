"""Errors of traced programs, with the source line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import SEQUENCE, TensorSpec
from tests.model.objects import MIXED
from tests.model.tracing.tracing import Array, check_devices, trace

fn = gx.fn
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SPECS = {"x": ("float32", ("n", 4)), "y": ("float32", (4,))}


def branch(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (branch, r"bool\(\).*gx.fn.where.*gx.fn.cond"),
        (lambda x: -x if 0 < x < 1 else x, "chained comparisons"),
        (lambda x: float(x.sum()), r"float\(\).*astype"),
        (lambda x: [i for i in range(x.sum())], "range.*while_loop"),  # noqa: C416
        (lambda x: np.asarray(x), "np.asarray"),
        (lambda x: 3 in x, r"\(x == item\).any\(\)"),
        (lambda x: x + np.ones(7, np.float32), r"Add .*do not broadcast"),
        (lambda x: x @ x, "4 columns don't match 3 rows"),
        (lambda x: x + "a", "expected numbers or bools, got 'a'"),
        (lambda x: x == None, "expected numbers or bools, got None"),  # noqa: E711
        (lambda x: -(x > 0), "negative.*bool"),
        (lambda x: x.reshape(5, -1), "Reshape"),
        (lambda x: x.sum(2), "axes is out of range for rank 2"),
        (lambda x: x[:0].max(0), "no elements along axes"),
        (lambda x: np.fft.fft(x), "np.fft has no form|has no form for symbolic arrays"),
        (lambda x: np.add(x, x, out=np.empty((3, 4))), "out has no meaning"),
        (lambda x: np.sum(x, where=x > 0), "unexpected keyword argument 'where'"),
        (lambda x: np.add.accumulate(x), "np.add.accumulate has no form"),
        (lambda x: np.modf(x), "np.modf has no form"),
        (lambda x: None, "must return an array"),
        (lambda x: {"x": x}, "x is the name of an input and of an output"),
        (lambda x: fn.einsum("ij,jk->il", x, x.T), "einsum 'ij,jk->il'"),
        (lambda x: fn.concatenate([x, x[0]]), "can't be joined"),
        (lambda x: fn.broadcast_to(x, (2, 4)), "can't be broadcast"),
        (lambda x: x.transpose(0, 0), "must name each axis once"),
    ],
)
def test_mistakes_are_refused_with_their_line(function: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message) as caught:
        trace(function, X)
    assert str(caught.value).startswith("test_program_refusals.py:")


def test_a_mistake_with_free_extents_says_what_was_tried() -> None:
    with pytest.raises(gx.InputError, match=r"Free dimensions are tried with n = 2640"):
        gx.graph(lambda x, y: x.T + y[:3], SPECS)


@pytest.mark.parametrize(
    "specs", [[("float99", (1,))], [("float32", (-1,))], ["float32"], {"x": 3}, 7, [("float32", 3)]]
)
def test_bad_specs_are_refused(specs: Any) -> None:
    with pytest.raises(gx.InputError):
        gx.graph(lambda x: x, specs)


def test_arrays_of_another_program_are_refused() -> None:
    kept: list[Any] = []
    trace(lambda x: kept.append(x) or x + 1, X)
    with pytest.raises(gx.InputError, match=r"another program was used; use gx.fn.forward"):
        trace(lambda x: x + kept[0], X)
    with pytest.raises(gx.InputError, match=r"inside a function that gx\.graph traces"):
        fn.zeros((2, 3))


def test_no_module_has_the_name_of_what_the_package_gives() -> None:
    modules = {path.stem for path in Path(gx.__file__).parent.iterdir() if path.suffix in ("", ".py")}
    assert "model" in modules and callable(gx.graph)
    assert modules & set(gx.__all__) == set()


def test_trace_in_trace() -> None:
    def function(x: Any) -> Any:
        inner = gx.graph(lambda y: y * 3, [("float32", (3, 4))])
        return fn.forward(inner, x)[0] + fn.ones((4,), np.float32)

    check_devices(function, X, expected=X * 3 + 1)


def ramp(n: int) -> Array:
    return np.arange(n, dtype=np.float32)


def test_symbolic_arrays_say_what_they_are() -> None:
    seen: list[str] = []
    gx.graph(lambda x, y: seen.append(repr(x)) or seen.append(repr(x.mean(0))) or x, SPECS)
    assert seen == ["SymbolicArray(%x, float32[n,4])", "SymbolicArray(%reducemean_1, float32[4])"]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([("string", (3,))], "input 'x' is string"),
        ([TensorSpec((), SEQUENCE)], "input 'x' is sequence"),
        (gx.load(MIXED), "input 's' is sequence"),
    ],
    ids=["string", "sequence", "model"],
)
def test_a_program_of_host_objects_is_refused(specs: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=f"array programs compute with numbers and bools; {message}"):
        gx.graph(lambda x, *others: x, specs)


def test_host_objects_within_a_program_are_refused() -> None:
    with pytest.raises(gx.InputError, match="what an array is converted to is string"):
        gx.graph(lambda x: x.astype(object), [("float32", (3,))])
    model = gx.load(MIXED)
    with pytest.raises(gx.InputError, match="'s' of 'g' is sequence"):
        gx.graph(lambda x: fn.forward(model, x, x, x), [("float32", (3,))])
