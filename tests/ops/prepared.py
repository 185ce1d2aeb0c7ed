"""Checks of prepared operators: calls over arrays that stay give what `compute` gives, run after run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuexec.ir.operator import Operator, PreparedCalls
from gpuexec.ir.spec import TensorSpec, is_host_object
from tests.ops.strided import as_strided, memory_of
from tests.ops.tolerance import to_bits

Array = np.ndarray[Any, Any]


def check_prepared(
    name: str,
    op: Operator,
    inputs: Sequence[Array | None],
    known: set[int],
    computed: Sequence[Array | None],
) -> bool:
    """Check the calls of an operator that is prepared for such inputs; return whether it is.

    They are prepared before the inputs have their content, and made twice, scratch being spoilt in between. Their bits
    are those of ``compute``: a first run computes what later ones call. Calls for arrays that move are asked for again
    when these lie elsewhere: nothing, the second and third input, as keys and values do, and then all.

    Args:
        name: Of the case.
        op: The operator.
        inputs: Dense, or windows with gaps.
        known: Positions of the inputs that never change.
        computed: What `compute` makes of them; None: not wanted.
    """
    if any(x is not None and is_host_object(x.dtype) for x in (*inputs, *computed)):
        return False
    given = [x if x is None or index in known else _blank(x) for index, x in enumerate(inputs)]
    out = [None if y is None else np.empty(y.shape, y.dtype) for y in computed]
    specs = [
        None if x is None else TensorSpec.of(x) if index in known else TensorSpec(x.shape, x.dtype)
        for index, x in enumerate(inputs)
    ]
    made = [None if y is None else TensorSpec(y.shape, y.dtype) for y in computed]
    scratch = [np.empty(nbytes, np.uint8) for nbytes in op.count_scratch(specs, made)]
    constant = [index in known for index in range(len(inputs))]
    with np.errstate(all="ignore"):
        calls = op.prepare(given, out, constant, scratch)
        if calls is None:
            return False
        for _ in range(2):
            _check_calls(name, calls, (given, inputs), (out, computed), scratch)
        find_calls = op.prepare_moving(given, out, constant, scratch)
        for moved in ((), (1, 2), range(len(given))) if find_calls is not None else ():
            for index in moved:
                x = given[index] if index < len(given) else None
                if x is not None and index not in known:
                    given[index] = _blank(x)
            if isinstance(moved, range):
                out[:] = [None if y is None else np.empty(y.shape, y.dtype) for y in computed]
            assert find_calls is not None
            found = find_calls()
            assert found is not None, f"{name}: no calls where arrays {[*moved]} have moved"
            _check_calls(name, found, (given, inputs), (out, computed), scratch)
    return True


def _check_calls(
    name: str,
    calls: PreparedCalls,
    inputs: tuple[Sequence[Array | None], Sequence[Array | None]],
    outputs: tuple[Sequence[Array | None], Sequence[Array | None]],
    scratch: Sequence[Array],
) -> None:
    """Check that calls give what is expected where arrays hold certain content.

    Args:
        name: Of the case.
        calls: The calls.
        inputs: Arrays that the calls read, and their content.
        outputs: Arrays that the calls write, and what is expected there.
        scratch: What the calls work in, which is spoilt.
    """
    for array, x in zip(*inputs, strict=True):
        if array is not None and x is not None and array is not x:
            np.copyto(array, x)
    for array in (*scratch, *[y for y in outputs[0] if y is not None]):
        array.reshape(-1).view(np.uint8)[...] = 0xFF
    for call in calls:
        call()
    for index, (y, expected) in enumerate(zip(*outputs, strict=True)):
        if y is not None and expected is not None:
            where = f"{name}: output {index} of prepared calls differs"
            np.testing.assert_array_equal(to_bits(y), to_bits(expected), err_msg=where)


def _blank(x: Array) -> Array:
    """Return an array of zeros that lies as another does."""
    memory, window = memory_of(x)
    if window is None:
        return np.zeros(x.shape, x.dtype)
    view = as_strided(memory[window.start :], x.shape, x.strides)
    view[...] = np.zeros((), x.dtype)
    return view
