"""Steps of a quantized LSTM as prepared calls: both directions side by side, gates in one evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import numpy as np

from gpuexec.ir.operator import Array, PreparedCalls
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ops.lib.shared_products import prepare_matmul
from gpuexec.ops.microsoft.rational import SIGMOID, TANH, count_rational_scratch, prepare_rationals
from gpuexec.ops.nn.rnn_host import Calls
from gpuexec.ops.quant.dynamic_quantize import prepare_range
from gpuexec.ops.quant.integer import BYTES, FLOAT, find_exact, prepare_rounding

_GATES = 4


def count_step_scratch(state: tuple[int, int, int]) -> tuple[int, ...]:
    """Return the bytes that `prepare_steps` works in: weights, gates, sums, states, what a state is quantised in.

    Args:
        state: Directions, batch and hidden size.
    """
    directions, _, hidden = state
    size, exact = prod(state), find_exact(hidden).itemsize
    return (
        exact * directions * hidden * _GATES * hidden,
        FLOAT.itemsize * _GATES * size,
        exact * _GATES * size,
        3 * FLOAT.itemsize * size,
        (FLOAT.itemsize + exact + 2) * size,
        *count_rational_scratch(_GATES * size),
    )


def prepare_steps(
    inputs: Sequence[Array | None], out: Sequence[Array | None], reverses: Sequence[bool], scratch: Sequence[Array]
) -> PreparedCalls:
    """Return the calls of all steps, with sigmoid for gates and tanh for the candidate and the cell.

    Args:
        inputs: Gates ``[directions, steps, batch, 4 * hidden]`` and the inputs behind them, of which lengths and
            peepholes are absent.
        out: Y, and the last h and c.
        reverses: Of each direction, whether it goes from the last step to the first.
        scratch: What calls work in; see `count_step_scratch`.
    """
    given, r, r_scale, r_zero, bias, _, first_h, first_c = (*inputs, *(None,) * 4)[:8]
    assert given is not None and r is not None and r_scale is not None and r_zero is not None
    y, last_h, last_c = (*out, None, None)[:3]
    directions, steps, batch, columns = given.shape
    hidden, exact = r.shape[1], find_exact(r.shape[1])
    shape = directions, batch, hidden
    size = prod(shape)
    weights = view_bytes(scratch[0], r.shape, exact)
    gates = view_bytes(scratch[1], (directions, batch, columns), FLOAT)
    sums = view_bytes(scratch[2], gates.shape, exact)
    h, cell, squashed = view_bytes(scratch[3], (3, *shape), FLOAT)
    left = view_bytes(scratch[4], shape, exact)
    quotients = view_bytes(scratch[4][exact.itemsize * size :], shape, FLOAT)
    bytes_ = view_bytes(scratch[4][(exact.itemsize + FLOAT.itemsize) * size :], (2, *shape), BYTES[0])
    split = gates.reshape(directions, batch, _GATES, hidden)
    i, o, forget, candidate = (split[:, :, k] for k in range(_GATES))
    by = r_scale.reshape(directions, 1, -1), r_zero.reshape(directions, 1, -1)
    factor, both = np.empty((directions, batch, by[0].shape[2]), FLOAT), np.empty((directions, 1, columns), FLOAT)

    calls: Calls = [partial(np.subtract, r, by[1], out=weights, dtype=exact, casting="unsafe")]
    if bias is not None:
        calls.append(partial(np.add, bias[:, None, :columns], bias[:, None, columns:], out=both))
    for state, first in ((h, first_h), (cell, first_c)):
        calls.append(partial(state.fill, 0) if first is None else partial(np.copyto, state, first))
    quantize, scale = _prepare_state(h, left, quotients, bytes_[0], bytes_[1].view(np.bool_))
    multiply: Calls = [
        *quantize,
        prepare_matmul(left, weights, sums),
        partial(np.multiply, scale, by[0], out=factor),
        partial(np.multiply, sums if exact == FLOAT else gates, factor, out=gates),
    ]
    if exact != FLOAT:
        multiply.insert(-1, partial(np.copyto, gates, sums, casting="same_kind"))
    finish: Calls = [
        *([] if bias is None else [partial(np.add, gates, both, out=gates)]),
        *prepare_rationals(split, (SIGMOID, SIGMOID, SIGMOID, TANH), scratch[5:]),
        partial(np.multiply, forget, cell, out=cell),
        partial(np.multiply, i, candidate, out=squashed),
        partial(np.add, cell, squashed, out=cell),
        partial(np.copyto, squashed, cell),
        *prepare_rationals(squashed[:, :, None], (TANH,), scratch[5:]),
        partial(np.multiply, o, squashed, out=h),
    ]
    for step in range(steps):
        places = [steps - 1 - step if is_reverse else step for is_reverse in reverses]
        calls += multiply
        for d, at in enumerate(places):
            calls.append(partial(np.add, gates[d], given[d, at], out=gates[d]))
        calls += finish
        if y is not None:
            for d, at in enumerate(places):
                calls.append(partial(np.copyto, y[at, d], h[d]))
    for last, state in ((last_h, h), (last_c, cell)):
        if last is not None:
            calls.append(partial(np.copyto, last, state))
    return calls


def _prepare_state(h: Array, left: Array, quotients: Array, whole: Array, is_nan: Array) -> tuple[Calls, Array]:
    """Return the calls that quantise each row of a state by its range, less its zero point, and their scales.

    Args:
        h: The state.
        left: Where the differences go.
        quotients: Floats to work in.
        whole: Bytes to work in.
        is_nan: Bools to work in.
    """
    rows = (*h.shape[:-1], 1)
    scale, shift = (np.empty(rows, FLOAT) for _ in range(2))
    return [
        *prepare_range(h, scale, shift, axis=-1),
        partial(np.divide, h, scale, out=quotients),
        *prepare_rounding(quotients, shift, whole, is_nan),
        partial(np.subtract, whole, shift, out=left),
    ], scale
