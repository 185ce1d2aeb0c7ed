"""Recurrent layers in NumPy: one product for the inputs of all steps, then a loop over the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.operator import Array
from gpuexec.ir.prepared_calls import view_bytes
from gpuexec.ops.lib.shared_products import matmul, prepare_matmul

# Terms (rows x columns x inner) up to which OpenBLAS multiplies in place, with AVX-512; columns of blocks for that.
_SMALL_PRODUCT = 1_000_000
_BLOCKS = (128, 64)
Activation = Callable[[Array], Array]
State = tuple[Array, ...]  # h, and for an LSTM c: [batch, hidden] each
Step = Callable[[Array, State], State]
Calls = list[Callable[[], object]]
# Input part of the gates, h before and h after to the calls of one step; what else it works on stays.
PreparedStep = Callable[[Array, Array, Array], Calls]


@dataclass(frozen=True, slots=True)
class Bound:
    """Activation with its parameters; ``kind`` is its index in the table of all."""

    kind: int
    alpha: float
    beta: float

    def __call__(self, x: Array) -> Array:
        """Apply it to each element."""
        return _FUNCTIONS[_NAMES[self.kind]].formula(x, self.alpha, self.beta)


@dataclass(frozen=True, slots=True)
class _Function:
    """Activation: its formula with alpha and beta, their defaults, and how many of them it takes."""

    formula: Callable[[Array, float, float], Array]
    alpha: float = 0.0
    beta: float = 0.0
    takes: int = 0


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)), x.dtype)


# In the order of FunctionKind of rnn.cu.
_FUNCTIONS = {
    "sigmoid": _Function(lambda x, a, b: _sigmoid(x)),
    "tanh": _Function(lambda x, a, b: np.tanh(x)),
    "relu": _Function(lambda x, a, b: np.maximum(x, 0)),
    "affine": _Function(lambda x, a, b: a * x + b, 1.0, 0.0, 2),
    "leakyrelu": _Function(lambda x, a, b: np.where(x < 0, a * x, x), 0.01, takes=1),
    "thresholdedrelu": _Function(lambda x, a, b: np.where(x >= a, x, 0), 1.0, takes=1),
    "scaledtanh": _Function(lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0, 2),
    "hardsigmoid": _Function(lambda x, a, b: np.clip(a * x + b, 0, 1), 0.2, 0.5, 2),
    "elu": _Function(lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 1.0, takes=1),
    "softsign": _Function(lambda x, a, b: x / (1 + np.abs(x))),
    "softplus": _Function(lambda x, a, b: np.logaddexp(x, x.dtype.type(0))),
}
_NAMES = tuple(_FUNCTIONS)


def bind_activations(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> list[Bound]:
    """Return the activations named, each with the next alpha and beta of the lists if it takes them.

    Raises:
        InputError: A name is unknown.
    """
    left_alphas, left_betas = list(alphas), list(betas)
    bound: list[Bound] = []
    for name in names:
        function = _FUNCTIONS.get(name.lower())
        if function is None:
            raise InputError(f"activations may name {', '.join(_FUNCTIONS)}, got {name!r}.")
        alpha = left_alphas.pop(0) if function.takes > 0 and left_alphas else function.alpha
        beta = left_betas.pop(0) if function.takes > 1 and left_betas else function.beta
        bound.append(Bound(_NAMES.index(name.lower()), alpha, beta))
    return bound


def clip_input(activation: Activation, clip: float) -> Activation:
    """Return the activation with its input held within ``[-clip, clip]``; of 0 and below nothing is clipped."""
    return (lambda x: activation(np.clip(x, -clip, clip))) if clip > 0 else activation


def unroll(inputs: Array, lengths: Array | None, is_reverse: bool, state: State, step: Step) -> tuple[Array, State]:
    """Run a layer over time in one direction.

    Args:
        inputs: Input part of the gates of each step, ``[steps, batch, gates]``.
        lengths: Valid steps of each sequence, or None: all. Beyond them the state stays and the output is 0; a reverse
            layer starts at the last valid step.
        is_reverse: Whether steps are taken from the last to the first.
        state: The state before the first step.
        step: The layer: gate inputs and state to the next state.

    Returns:
        The first part of the state after each step ``[steps, batch, hidden]``, at the places of the inputs; last state.
    """
    steps = inputs.shape[0]
    outputs = np.zeros((steps, *state[0].shape), inputs.dtype)
    for t in range(steps - 1, -1, -1) if is_reverse else range(steps):
        new = step(inputs[t], state)
        if lengths is None:
            state = new
            outputs[t] = state[0]
            continue
        # In reverse, steps past the end come first and change nothing: the first that counts is the last valid one.
        is_valid = (t < lengths)[:, None]
        state = tuple(np.where(is_valid, after, before) for after, before in zip(new, state))
        outputs[t] = np.where(is_valid, state[0], 0)
    return outputs, state


def make_lstm_step(
    recurrent: Array, peepholes: Array | None, activations: Sequence[Activation], input_forget: bool
) -> Step:
    """Return a step of an LSTM; gates are in the order i, o, f, c.

    ``recurrent`` is ``[hidden, 4 * hidden]``, ``peepholes`` ``[3, hidden]`` for i, o, f.
    """
    f, g, h = activations
    hidden = recurrent.shape[0]

    def step(inputs: Array, state: State) -> State:
        before, cell = state
        gates = matmul(before, recurrent)
        gates += inputs
        i, o, forget, candidate = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
        if peepholes is not None:
            i, forget = i + peepholes[0] * cell, forget + peepholes[2] * cell
        i = f(i)
        forget = 1 - i if input_forget else f(forget)
        cell = forget * cell + i * g(candidate)
        if peepholes is not None:
            o = o + peepholes[1] * cell
        return f(o) * h(cell), cell

    return step


def make_gru_step(recurrent: Array, bias: Array, activations: Sequence[Activation], linear_before_reset: bool) -> Step:
    """Return a step of a GRU; gates are in the order z, r, h. ``bias`` ``[hidden]`` is of the recurrent part of h."""
    f, g = activations
    hidden = recurrent.shape[0]
    gate_weights, candidate_weights = recurrent[:, : 2 * hidden], recurrent[:, 2 * hidden :]
    if recurrent.flags.c_contiguous:  # those that are transposed stay so
        gate_weights, candidate_weights = np.ascontiguousarray(gate_weights), np.ascontiguousarray(candidate_weights)

    def step(inputs: Array, state: State) -> State:
        (before,) = state
        gates = matmul(before, gate_weights)
        gates += inputs[:, : 2 * hidden]
        z, r = f(gates[:, :hidden]), f(gates[:, hidden:])
        if linear_before_reset:
            candidate = r * (matmul(before, candidate_weights) + bias)
        else:
            candidate = matmul(r * before, candidate_weights) + bias
        return ((1 - z) * g(candidate + inputs[:, 2 * hidden :]) + z * before,)

    return step


def make_rnn_step(recurrent: Array, activations: Sequence[Activation]) -> Step:
    """Return a step of a plain recurrent layer."""
    (f,) = activations

    def step(inputs: Array, state: State) -> State:
        return (f(matmul(state[0], recurrent) + inputs),)

    return step


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Memory of the steps of one direction with the default activations.

    Attributes:
        gates: ``[batch, gates * hidden]``.
        h: The state before the first step.
        others: ``[batch, hidden]`` each; the first is c of an LSTM.
    """

    gates: Array
    h: Array
    others: tuple[Array, Array]

    @staticmethod
    def count(gates: int, batch: int, hidden: int) -> int:
        """Return how many elements it takes."""
        return (gates + 3) * batch * hidden

    @staticmethod
    def of(scratch: Array, gates: int, batch: int, hidden: int, dtype: np.dtype[Any]) -> StepMemory:
        """Return it over bytes."""
        whole = view_bytes(scratch, (gates + 3, batch * hidden), dtype)
        h, first, second = (whole[gates + k].reshape(batch, hidden) for k in range(3))
        return StepMemory(whole[:gates].reshape(batch, gates * hidden), h, (first, second))


@dataclass(frozen=True, slots=True)
class LengthMasks:
    """Which sequences each step is of, and memory for the states of a step that changes those alone.

    Attributes:
        valid: Bools ``[steps, batch, 1]``.
        over: Their opposites.
        after: Where a step leaves the new h, ``[batch, hidden]``.
        before: What c was before it.
    """

    valid: Array
    over: Array
    after: Array
    before: Array

    @staticmethod
    def count(steps: int, batch: int, hidden: int, itemsize: int) -> tuple[int, int]:
        """Return the bytes of states and of bools."""
        return 2 * batch * hidden * itemsize, 2 * steps * batch

    @staticmethod
    def of(scratch: Sequence[Array], steps: int, batch: int, hidden: int, dtype: np.dtype[Any]) -> LengthMasks:
        """Return them over arrays of bytes."""
        valid, over = view_bytes(scratch[1], (2, steps, batch, 1), np.dtype(np.bool_))
        after, before = view_bytes(scratch[0], (2, batch, hidden), dtype)
        return LengthMasks(valid, over, after, before)

    def prepare(self, lengths: Array) -> Calls:
        """Return the calls that find the sequences of each step."""
        steps = np.arange(len(self.valid), dtype=lengths.dtype)[:, None, None]
        return [
            partial(np.less, steps, lengths[:, None], out=self.valid),
            partial(np.logical_not, self.valid, out=self.over),
        ]

    def prepare_step(self, t: int, step: Calls, h: Array, others: Sequence[Array], y: Array | None) -> Calls:
        """Return the calls of a step that leaves a new h in ``after``; h, c and an output of zeros take what is valid.

        Args:
            t: Its number.
            step: Its calls.
            h: The state before it.
            others: c, for an LSTM.
            y: Its output; None: not wanted.
        """
        valid, over = self.valid[t], self.over[t]
        calls: Calls = [partial(np.copyto, self.before, c) for c in others]
        calls += step
        calls.append(partial(np.copyto, h, self.after, where=valid))
        calls += [partial(np.copyto, c, self.before, where=over) for c in others]
        if y is not None:
            calls.append(partial(np.copyto, y, h, where=valid))
        return calls


def choose_block(batch: int, hidden: int, columns: int) -> int:
    """Return the columns of a block of weights that BLAS multiplies a state with; 0: all are multiplied at once.

    For each product BLAS lays its right operand out anew, which for few rows takes longer than to multiply them, unless
    the product is small. A row alone it reads in place.
    """
    if batch == 1 or batch * hidden * columns <= _SMALL_PRODUCT:
        return 0
    blocks = (block for block in _BLOCKS if batch * hidden * block <= _SMALL_PRODUCT and columns % block == 0)
    return next(blocks, 0)


def _prepare_product(state: Array, weights: Array, y: Array) -> Callable[[], object]:
    """Return the call that writes a state times weights, whole or as blocks ``[blocks, hidden, columns]``, to ``y``."""
    if weights.ndim == 2:
        return prepare_matmul(state, weights, y)
    by_block = y.reshape(len(y), len(weights), -1).swapaxes(0, 1)
    return partial(np.matmul, state, weights, out=by_block)


def prepare_lstm_step(recurrent: Sequence[Array], memory: StepMemory) -> PreparedStep:
    """Return what makes the calls of a step as of `make_lstm_step`, with one sigmoid of three gates."""
    (weights,), gates, (c, t) = recurrent, memory.gates, memory.others
    hidden = c.shape[1]
    i, o, forget, candidate = (gates[:, k * hidden : (k + 1) * hidden] for k in range(4))
    inner: Calls = [
        *_prepare_sigmoid(gates[:, : 3 * hidden]),
        partial(np.tanh, candidate, out=candidate),
        partial(np.multiply, forget, c, out=c),
        partial(np.multiply, i, candidate, out=candidate),
        partial(np.add, c, candidate, out=c),
        partial(np.tanh, c, out=t),
    ]

    def prepare_step(inputs: Array, before: Array, after: Array) -> Calls:
        product = _prepare_product(before, weights, gates)
        return [product, partial(np.add, gates, inputs, out=gates), *inner, partial(np.multiply, o, t, out=after)]

    return prepare_step


def prepare_gru_step(
    recurrent: Sequence[Array], bias: Array, linear_before_reset: bool, memory: StepMemory
) -> PreparedStep:
    """Return what makes the calls of a step as of `make_gru_step`, with one sigmoid of two gates."""
    (gate_weights, candidate_weights), (candidate, kept) = recurrent, memory.others
    batch, hidden = candidate.shape
    two = memory.gates.reshape(-1)[: 2 * batch * hidden].reshape(batch, 2 * hidden)
    rest = memory.gates.reshape(-1)[2 * batch * hidden :].reshape(batch, hidden)
    z, r = two[:, :hidden], two[:, hidden:]
    sigmoid = _prepare_sigmoid(two)
    add_bias = partial(np.add, candidate, bias, out=candidate)
    inner: Calls = [
        partial(np.tanh, candidate, out=candidate),
        partial(np.subtract, z.dtype.type(1), z, out=rest),
        partial(np.multiply, rest, candidate, out=candidate),
    ]

    def prepare_step(inputs: Array, before: Array, after: Array) -> Calls:
        if linear_before_reset:
            product = _prepare_product(before, candidate_weights, candidate)
            reset: Calls = [product, add_bias, partial(np.multiply, r, candidate, out=candidate)]
        else:
            product = _prepare_product(kept, candidate_weights, candidate)
            reset = [partial(np.multiply, r, before, out=kept), product, add_bias]
        return [
            _prepare_product(before, gate_weights, two),
            partial(np.add, two, inputs[:, : 2 * hidden], out=two),
            *sigmoid,
            *reset,
            partial(np.add, candidate, inputs[:, 2 * hidden :], out=candidate),
            *inner,
            partial(np.multiply, z, before, out=kept),
            partial(np.add, candidate, kept, out=after),
        ]

    return prepare_step


def prepare_rnn_step(recurrent: Sequence[Array], memory: StepMemory) -> PreparedStep:
    """Return what makes the calls of a step as of `make_rnn_step`."""
    (weights,), gates = recurrent, memory.gates

    def prepare_step(inputs: Array, before: Array, after: Array) -> Calls:
        product = _prepare_product(before, weights, gates)
        return [product, partial(np.add, gates, inputs, out=gates), partial(np.tanh, gates, out=after)]

    return prepare_step


def _prepare_sigmoid(x: Array) -> Calls:
    """Return calls that replace elements by their sigmoid."""
    return [
        partial(np.negative, x, out=x),
        partial(np.exp, x, out=x),
        partial(np.add, x, x.dtype.type(1), out=x),
        partial(np.reciprocal, x, out=x),
    ]
