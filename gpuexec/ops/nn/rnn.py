"""Recurrent layers: LSTM, GRU, RNN.

They differ in the number of gates, in what a step does with them, and in the state: all else (directions, layouts,
sequence lengths, initial states) is in `Recurrent`, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.graphs import RawNode
from gpuexec.ir.operator import (
    Array,
    Emitter,
    Operator,
    Out,
    PreparedCalls,
    Slots,
    Tolerance,
    count_elements,
    operator,
    upgrade,
)
from gpuexec.ir.prepared_calls import has_scratch, view_bytes
from gpuexec.ir.spec import TensorSpec, accumulator, dtypes_of
from gpuexec.ops.lib.shared_products import matmul, prepare_matmul
from gpuexec.ops.nn.rnn_host import (
    Activation,
    Bound,
    Calls,
    LengthMasks,
    PreparedStep,
    Step,
    StepMemory,
    bind_activations,
    choose_block,
    clip_input,
    make_gru_step,
    make_lstm_step,
    make_rnn_step,
    prepare_gru_step,
    prepare_lstm_step,
    prepare_rnn_step,
    unroll,
)
from gpuexec.ops.nn.rnn_launch import RecurrentLayer, RecurrentOperands, launch_layer

DTYPES = dtypes_of("float")
_LENGTH = np.dtype(np.int32)
MOST_STEPS = 1 << 12  # that are prepared
# Rows that weights of the state multiply in a run from which on they are transposed before. One row of 128 units takes
# an LSTM 4.9 us by weights as they lie and 4.6 by transposed ones, 16 rows 47 and 24, and transposing 67 (Xeon,
# November 2026).
_MOST_UNTURNED = 8
# By attribute, which of the directions run backwards.
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class Recurrent(Operator):
    """Base of recurrent layers; a subclass gives the number of gates, and the step.

    Attributes:
        gates: For each hidden unit.
        defaults: Activations of one direction.
        states: Parts of the state.
        peepholes: Weights of a hidden unit that look at the cell.
        splits_bias: Whether the recurrent bias of the last gate is left to the step.
    """

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    layout: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    gates: ClassVar[int]
    defaults: ClassVar[tuple[str, ...]]
    states: ClassVar[int] = 1
    peepholes: ClassVar[int] = 0
    splits_bias: ClassVar[bool] = False
    keeps_dtype = True
    has_blits = False

    def make_step(self, r: Array, recurrent_bias: Array, peepholes: Array | None, bound: Sequence[Activation]) -> Step:
        """Return the step function of one direction, by its weights and activations."""
        raise TypeError(f"{type(self).__name__} lacks make_step")

    def layer(self) -> RecurrentLayer:
        """Return the parameters common to all layers."""
        functions, reverses = tuple(self._functions()), DIRECTIONS[self.direction]
        return RecurrentLayer(
            self.name, self.gates, reverses, functions, self.clip, self.hidden_size, bool(self.layout)
        )

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of Y and of each part of the last state.

        Raises:
            InputError: Shapes, types or attributes do not fit.
        """
        name = self.name
        x, w, r, bias, lengths, *rest = (*inputs, *(None,) * 8)[:8]
        if x is None or w is None or r is None or x.rank != 3 or w.rank != 3 or r.rank != 3:
            raise InputError(f"{name} expects X, W and R of rank 3, got {x}, {w} and {r}.")
        directions, hidden = len(self._functions()) // len(self.defaults), r.shape[2]
        if self.hidden_size and self.hidden_size != hidden:
            raise InputError(f"{name} expects hidden_size to be the last extent of R {r}, got {self.hidden_size}.")
        steps, batch = x.shape[1::-1] if self.layout else x.shape[:2]
        state = (batch, directions, hidden) if self.layout else (directions, batch, hidden)
        expected: list[tuple[str, TensorSpec | None, tuple[int, ...]]] = [
            ("W", w, (directions, self.gates * hidden, x.shape[2])),
            ("R", r, (directions, self.gates * hidden, hidden)),
            ("B", bias, (directions, 2 * self.gates * hidden)),
            *((role, spec, state) for role, spec in zip(("initial_h", "initial_c")[: self.states], rest)),
            *((("P", rest[2], (directions, self.peepholes * hidden)),) if self.peepholes else ()),
        ]
        for role, spec, shape in expected:
            if spec is not None and (spec.shape != shape or spec.dtype != x.dtype):
                raise InputError(f"{name} expects {role} to be {TensorSpec(shape, x.dtype)}, got {spec}.")
        if lengths is not None and (lengths.shape != (batch,) or lengths.dtype != _LENGTH):
            raise InputError(f"{name} expects sequence_lens to be {TensorSpec((batch,), _LENGTH)}, got {lengths}.")
        if x.dtype not in DTYPES:
            raise InputError(f"{name} expects a type among {', '.join(t.name for t in DTYPES)}, got {x}.")
        y = (batch, steps, directions, hidden) if self.layout else (steps, directions, batch, hidden)
        return (TensorSpec(y, x.dtype), *(TensorSpec(state, x.dtype) for _ in range(self.states)))

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int:
        """Count both products of each step: by the weights of the input, and by those of the state."""
        x = inputs[0]
        steps = 0 if x is None else prod(x.shape[:2])
        return 2 * steps * (count_elements(inputs, 1) + count_elements(inputs, 2))

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Run the layer; half and bfloat16 in float, rounded once at the end."""
        made = self._call_prepared(inputs)
        if made is not None:
            return made
        x, w, r, bias, lengths, *rest = (*inputs, *(None,) * 8)[:8]
        assert x is not None and w is not None and r is not None
        dtype, acc, hidden = x.dtype, accumulator(x.dtype), r.shape[2]
        x = x.astype(acc, copy=False).transpose(1, 0, 2) if self.layout else x.astype(acc, copy=False)
        steps, batch, width = x.shape
        results, finals = [], []
        functions, count = self._clipped(), len(self.defaults)
        with np.errstate(all="ignore"):
            for d, is_reverse in enumerate(DIRECTIONS[self.direction]):
                weights, recurrent = w[d].astype(acc, copy=False).T, r[d].astype(acc, copy=False).T
                if steps * batch >= _MOST_UNTURNED:
                    recurrent = np.ascontiguousarray(recurrent)
                both = np.zeros((2, self.gates * hidden), acc) if bias is None else bias[d].astype(acc).reshape(2, -1)
                recurrent_bias = both[1, -hidden:].copy() if hidden else both[1]
                if self.splits_bias and hidden:
                    both[1, -hidden:] = 0
                gates = matmul(x.reshape(steps * batch, width), weights).reshape(steps, batch, self.gates * hidden)
                gates += both[0] + both[1]
                own = functions[d * count : (d + 1) * count]
                peepholes = None
                if self.peepholes and rest[2] is not None:
                    peepholes = rest[2][d].astype(acc).reshape(self.peepholes, -1)
                step = self.make_step(recurrent, recurrent_bias, peepholes, own)
                y, final = unroll(gates, lengths, is_reverse, self._initial(rest, d, (batch, hidden), acc), step)
                results.append(y)
                finals.append(final)
            where = 2 if self.layout else 1
            y = np.stack(results, axis=1)  # [steps, directions, batch, hidden]
            y = y.transpose(2, 0, 1, 3) if self.layout else y
            lasts = [np.stack([final[k] for final in finals], axis=where - 1) for k in range(self.states)]
            return tuple(array.astype(dtype, copy=False) for array in (y, *lasts))

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count the gates of all steps, the weights of the state, what a step works in, and the input laid dense.

        With lengths, also the states before and after a step, and which sequences it is of.
        """
        x, r, lengths = inputs[0], inputs[2], inputs[4] if len(inputs) > 4 else None
        if x is None or r is None or accumulator(x.dtype) != x.dtype:
            return ()
        return self._count_scratch(x, r.shape[2], has_lengths=lengths is not None)

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Run all steps as one list of calls: of sequences of floats, with the default activations."""
        x, w, r, bias, lengths, *rest = (*inputs, *(None,) * 8)[:8]
        if x is None or w is None or r is None or not self._is_prepared(rest):
            return None
        (steps, batch, width), hidden, dtype = x.shape, r.shape[2], x.dtype
        if accumulator(dtype) != dtype or not x.size or not hidden or steps > MOST_STEPS:
            return None
        if bias is not None and not constant[3]:
            return None
        if not has_scratch(scratch, self._count_scratch(x, hidden, has_lengths=lengths is not None)):
            return None
        y, *finals = (*out, *(None,) * self.states)[: 1 + self.states]
        if y is not None and not y.flags.c_contiguous:
            return None
        gates = view_bytes(scratch[0], (steps, batch, self.gates * hidden), dtype)
        calls: Calls = []
        rows = x.reshape(steps * batch, width)
        if not np.may_share_memory(rows, x):
            dense = view_bytes(scratch[3], x.shape, dtype)
            calls.append(partial(np.copyto, dense, x))
            rows = dense.reshape(steps * batch, width)
        masks = None if lengths is None else LengthMasks.of(scratch[4:], steps, batch, hidden, dtype)
        if masks is not None and lengths is not None:
            calls += masks.prepare(lengths)
            calls += [] if y is None else [partial(y.fill, 0)]
        for d, is_reverse in enumerate(DIRECTIONS[self.direction]):
            memory = StepMemory.of(scratch[2], self.gates, batch, hidden, dtype)
            both = np.zeros((2, self.gates * hidden), dtype) if bias is None else bias[d].reshape(2, -1).copy()
            recurrent_bias = both[1, -hidden:].copy()
            if self.splits_bias:
                both[1, -hidden:] = 0
            product = gates.reshape(steps * batch, -1)
            calls.append(prepare_matmul(rows, w[d].T, product))
            calls.append(partial(np.add, gates, both[0] + both[1], out=gates))
            turned = scratch[1] if steps * batch >= _MOST_UNTURNED else None
            recurrent = self._prepare_weights(r[d], batch, calls, turned)
            for state, given in zip((memory.h, memory.others[0])[: self.states], rest, strict=False):
                calls.append(partial(state.fill, 0) if given is None else partial(np.copyto, state, given[d]))
            prepare_step, h = self.prepare_step(recurrent, recurrent_bias, memory), memory.h
            others = memory.others[: self.states - 1]
            for t in range(steps - 1, -1, -1) if is_reverse else range(steps):
                if masks is not None:
                    step = prepare_step(gates[t], h, masks.after)
                    calls += masks.prepare_step(t, step, h, others, None if y is None else y[t, d])
                    continue
                after = memory.h if y is None else y[t, d]
                calls += prepare_step(gates[t], h, after)
                h = after
            for final, state in zip(finals, (h, memory.others[0]), strict=False):
                if final is not None:
                    calls.append(partial(np.copyto, final[d], state))
        return calls

    def _call_prepared(self, inputs: Sequence[Array | None]) -> tuple[Array, ...] | None:
        """Return what prepared calls give, where there are some: a first run has the bits of later ones."""
        specs = [None if x is None else TensorSpec(x.shape, x.dtype) for x in inputs]
        made = [np.empty(spec.shape, spec.dtype) for spec in self.infer(*specs)]
        scratch = [np.empty(nbytes, np.uint8) for nbytes in self.count_scratch(specs, ())]
        with np.errstate(all="ignore"):
            calls = self.prepare(inputs, made, (True,) * len(inputs), scratch)
            if calls is None:
                return None
            for call in calls:
                call()
        return tuple(made)

    def prepare_step(self, recurrent: Sequence[Array], bias: Array, memory: StepMemory) -> PreparedStep:
        """Return what makes the calls of a step with the default activations.

        Args:
            recurrent: Weights of the state ``[hidden, gates * hidden]``, in as many parts as are multiplied apart, each
                whole or as blocks of columns.
            bias: Of the state, for the last gate.
            memory: What steps work in.
        """
        raise TypeError(f"{type(self).__name__} lacks prepare_step")

    def _is_prepared(self, rest: Sequence[Array | None]) -> bool:
        """Return whether attributes and peepholes are as prepared steps have them."""
        usual = list(bind_directions(self.name, self.direction, self.defaults, (), (), ()))
        return not (self.layout or self.clip > 0 or (self.peepholes and rest[2] is not None)) and (
            self._functions() == usual
        )

    def _count_scratch(self, x: TensorSpec | Array, hidden: int, *, has_lengths: bool) -> tuple[int, ...]:
        (steps, batch, _), itemsize, gates = x.shape, x.dtype.itemsize, self.gates * hidden
        memory = StepMemory.count(self.gates, batch, hidden)
        counts = itemsize * steps * batch * gates, itemsize * gates * hidden, itemsize * memory, x.nbytes
        return (*counts, *LengthMasks.count(steps, batch, hidden, itemsize)) if has_lengths else counts

    def _prepare_weights(self, r: Array, batch: int, calls: Calls, turned: Array | None) -> list[Array]:
        """Return the weights of the state transposed, in memory of their own where there is some to turn them in.

        Those of the last gate are apart where its bias is.
        """
        hidden, dtype = r.shape[1], r.dtype
        ends = [(self.gates - 1) * hidden, r.shape[0]] if self.splits_bias else [r.shape[0]]
        found, first = [], 0
        for end in ends:
            part = r[first:end].T
            if turned is not None:
                if block := choose_block(batch, *part.shape):
                    part = r[first:end].reshape(-1, block, hidden).swapaxes(1, 2)
                own = view_bytes(turned[first * hidden * dtype.itemsize :], part.shape, dtype)
                calls.append(partial(np.copyto, own, part))
                part = own
            found.append(part)
            first = end
        return found

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Multiply the inputs of all steps, then launch all steps."""
        x, w, r, bias, lengths, h, *rest = (*inputs, *(None,) * 8)[:8]
        assert x is not None and w is not None and r is not None
        launch_layer(emit, self.layer(), RecurrentOperands(x, w, r, bias, lengths, h, rest[0], rest[1]), outputs)

    def _functions(self) -> list[Bound]:
        """Return the activations of all directions in one list, unclipped."""
        own = (self.activations, self.activation_alpha, self.activation_beta)
        return bind_directions(self.name, self.direction, self.defaults, *own)

    def _clipped(self) -> list[Activation]:
        # The third function of an LSTM, of the cell, is no gate: its input is not clipped, as in onnxruntime.
        return [
            clip_input(function, self.clip if i % len(self.defaults) < 2 else 0)
            for i, function in enumerate(self._functions())
        ]

    def _initial(
        self, rest: Sequence[Array | None], d: int, shape: tuple[int, int], acc: np.dtype[Any]
    ) -> tuple[Array, ...]:
        parts = []
        for given in rest[: self.states]:
            chosen = None if given is None else given[:, d] if self.layout else given[d]
            parts.append(np.zeros(shape, acc) if chosen is None else chosen.astype(acc))
        return tuple(parts)


@operator("LSTM")
@dataclass(frozen=True, slots=True)
class LSTM(Recurrent):
    """Long short-term memory; outputs are Y, the last h and the last c. Gates are in the order i, o, f, c."""

    input_forget: int = 0
    gates = 4
    defaults = ("Sigmoid", "Tanh", "Tanh")
    states = 2
    peepholes = 3
    example = "float32[5,3,4] float32[1,24,4] float32[1,24,6] float32[1,48] int32[3] hidden_size=6"

    def make_step(self, r: Array, recurrent_bias: Array, peepholes: Array | None, bound: Sequence[Activation]) -> Step:
        """Return the step of a memory cell."""
        return make_lstm_step(r, peepholes, bound, bool(self.input_forget))

    def prepare_step(self, recurrent: Sequence[Array], bias: Array, memory: StepMemory) -> PreparedStep:
        """Return what makes the calls of a step, which has no coupled gates."""
        return prepare_lstm_step(recurrent, memory)

    def _is_prepared(self, rest: Sequence[Array | None]) -> bool:
        return not self.input_forget and Recurrent._is_prepared(self, rest)

    def layer(self) -> RecurrentLayer:
        """Return the parameters of the launch."""
        return replace(Recurrent.layer(self), input_forget=bool(self.input_forget))


@operator("GRU")
@dataclass(frozen=True, slots=True)
class GRU(Recurrent):
    """Gated recurrent unit; outputs are Y and the last h. Gates are in the order z, r, h."""

    linear_before_reset: int = 0
    gates = 3
    defaults = ("Sigmoid", "Tanh")
    splits_bias = True
    example = "float32[5,3,4] float32[1,18,4] float32[1,18,6] float32[1,36] int32[3] hidden_size=6"

    def make_step(self, r: Array, recurrent_bias: Array, peepholes: Array | None, bound: Sequence[Activation]) -> Step:
        """Return the step of a gated unit."""
        return make_gru_step(r, recurrent_bias, bound, bool(self.linear_before_reset))

    def prepare_step(self, recurrent: Sequence[Array], bias: Array, memory: StepMemory) -> PreparedStep:
        """Return what makes the calls of a step."""
        return prepare_gru_step(recurrent, bias, bool(self.linear_before_reset), memory)

    def layer(self) -> RecurrentLayer:
        """Return the parameters of the launch."""
        return replace(Recurrent.layer(self), is_linear=bool(self.linear_before_reset))


@operator("RNN")
@dataclass(frozen=True, slots=True)
class RNN(Recurrent):
    """Plain recurrent layer, ``h = f(x W' + h R' + b)``; outputs are Y and the last h."""

    gates = 1
    defaults = ("Tanh",)
    example = "float32[5,3,4] float32[1,6,4] float32[1,6,6] float32[1,12] int32[3] hidden_size=6"

    def make_step(self, r: Array, recurrent_bias: Array, peepholes: Array | None, bound: Sequence[Activation]) -> Step:
        """Return the step of a plain unit."""
        return make_rnn_step(r, bound)

    def prepare_step(self, recurrent: Sequence[Array], bias: Array, memory: StepMemory) -> PreparedStep:
        """Return what makes the calls of a step."""
        return prepare_rnn_step(recurrent, memory)


@upgrade("GRU", below=3)
def _correct_direction(node: RawNode) -> RawNode:
    """Correct the misspelt default direction of the first version, a letter short of forward."""
    return node.with_attributes(direction=node.attributes.get("direction", "forward"))


@upgrade("LSTM", below=7)
@upgrade("GRU", below=7)
@upgrade("RNN", below=7)
def _drop_output_sequence(node: RawNode) -> RawNode:
    """Remove the attribute that until opset 6 said whether the first output is wanted."""
    return node.without("output_sequence")


def bind_directions(
    name: str,
    direction: str,
    defaults: Sequence[str],
    activations: Sequence[str],
    alphas: Sequence[float],
    betas: Sequence[float],
) -> list[Bound]:
    """Return the activations of all directions in one list; ``defaults`` are those of one direction.

    Raises:
        InputError: The direction is unknown, or there are not as many activations as it needs.
    """
    if direction not in DIRECTIONS:
        raise InputError(f"{name} expects direction among {', '.join(DIRECTIONS)}, got {direction!r}.")
    directions = len(DIRECTIONS[direction])
    names = activations or tuple(defaults) * directions
    if len(names) != len(defaults) * directions:
        raise InputError(f"{name} expects {len(defaults)} activations per direction ({directions}), got {list(names)}.")
    return bind_activations(names, alphas, betas)
