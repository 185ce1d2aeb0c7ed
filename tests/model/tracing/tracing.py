"""Traced functions run beside the same functions in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.ops.control.interpret import compute_graph

Array = np.ndarray[Any, Any]
CPU, SIMULATOR = gx.BackendType.CPU, gx.BackendType.SIMULATOR


def trace(function: Callable[..., Any], *arrays: Array, free: bool = False, **options: Any) -> gx.Model:
    """Trace a function over arrays like these; with ``free`` every extent but 1 is a free dimension of its own size."""
    specs = [(array.dtype, tuple(f"d{n}" if free and n != 1 else n for n in array.shape)) for array in arrays]
    return gx.graph(function, specs, **options)


def compute(model: gx.Model, *arrays: Array) -> list[Array]:
    """Return what a model gives, node by node in NumPy."""
    return list(compute_graph(model.graph, arrays))


def check(
    function: Callable[..., Any], *arrays: Array, expected: Any = None, rtol: float = 1e-6, may_be_free: bool = True
) -> None:
    """Check a traced function against NumPy (or what is expected), with extents fixed and, if they may be, free."""
    results = function(*arrays) if expected is None else expected
    wanted = [np.asarray(each) for each in (results if isinstance(results, (tuple, list)) else [results])]
    for free in (False, True)[: 1 + may_be_free]:
        compare(compute(trace(function, *arrays, free=free), *arrays), wanted, rtol)


def check_devices(function: Callable[..., Any], *arrays: Array, expected: Any, rtol: float = 2e-6) -> None:
    """Check a traced function on the CPU and on the simulator, with free extents where they may be."""
    wanted = [np.asarray(each) for each in (expected if isinstance(expected, (tuple, list)) else [expected])]
    model = trace(function, *arrays)
    for backend in (CPU, SIMULATOR):
        with gx.Worker(model, backend=backend) as worker:
            compare(worker.run(list(arrays)), wanted, rtol)


def compare(got: Sequence[Any], wanted: Sequence[Array], rtol: float) -> None:
    """Check that arrays are alike: dtype, shape, content."""
    assert [(each.dtype, each.shape) for each in got] == [(each.dtype, each.shape) for each in wanted]
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(one.astype(other.dtype), other, rtol=rtol, atol=rtol)
