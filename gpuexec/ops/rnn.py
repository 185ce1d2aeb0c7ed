"""Recurrent layers: LSTM, GRU, RNN.

They differ in the number of gates, in what a step does with them, and in the state: all else (directions, layouts,
sequence lengths, initial states) is in `_Layer`, once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.graphs import RawNode
from gpuexec.operator import Array, Emitter, Operator, Tolerance, operator, upgrade
from gpuexec.ops.layout import Slots
from gpuexec.ops.rnn_host import (
    Activation,
    Bound,
    Step,
    bind_activations,
    clip_input,
    make_gru_step,
    make_lstm_step,
    make_rnn_step,
    unroll,
)
from gpuexec.ops.rnn_launch import Layer, Operands, launch_layer
from gpuexec.spec import TensorSpec, accumulator, dtypes_of

DTYPES = dtypes_of("float")
_LENGTH = np.dtype(np.int32)
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@operator("LSTM")
@dataclass(frozen=True, slots=True)
class LSTM(Operator):
    """Long short-term memory; outputs are Y, the last h and the last c. Gates stand as i, o, f, c in all weights."""

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    input_forget: int = 0
    layout: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of Y, Y_h and Y_c.

        Raises:
            InputError: Shapes, types or attributes do not fit.
        """
        return _Layer(self, 4, 3, ("Sigmoid", "Tanh", "Tanh"), states=2).infer(inputs, peepholes=3)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Run the layer; half and bfloat16 in float, rounded once at the end."""
        layer = _Layer(self, 4, 3, ("Sigmoid", "Tanh", "Tanh"), states=2)

        def make_step(d: int, r: Array, recurrent_bias: Array, activations: Sequence[Activation]) -> Step:
            peepholes = inputs[7] if len(inputs) > 7 else None
            shaped = None if peepholes is None else peepholes[d].astype(r.dtype).reshape(3, -1)
            return make_lstm_step(r, shaped, activations, bool(self.input_forget))

        return layer.compute(inputs, make_step, split_bias=False)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Multiply the inputs of all steps, then launch all steps."""
        layer = _Layer(self, 4, 3, ("Sigmoid", "Tanh", "Tanh"), states=2)
        layer.lower(emit, inputs, outputs, input_forget=bool(self.input_forget))


@operator("GRU")
@dataclass(frozen=True, slots=True)
class GRU(Operator):
    """Gated recurrent unit; outputs are Y and the last h. Gates stand as z, r, h in all weights."""

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    layout: int = 0
    linear_before_reset: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of Y and Y_h.

        Raises:
            InputError: Shapes, types or attributes do not fit.
        """
        return _Layer(self, 3, 2, ("Sigmoid", "Tanh"), states=1).infer(inputs)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Run the layer; half and bfloat16 in float, rounded once at the end."""

        def make_step(d: int, r: Array, recurrent_bias: Array, activations: Sequence[Activation]) -> Step:
            return make_gru_step(r, recurrent_bias, activations, bool(self.linear_before_reset))

        return _Layer(self, 3, 2, ("Sigmoid", "Tanh"), states=1).compute(inputs, make_step, split_bias=True)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Multiply the inputs of all steps, then launch all steps."""
        layer = _Layer(self, 3, 2, ("Sigmoid", "Tanh"), states=1)
        layer.lower(emit, inputs, outputs, is_linear=bool(self.linear_before_reset))


@operator("RNN")
@dataclass(frozen=True, slots=True)
class RNN(Operator):
    """Plain recurrent layer, ``h = f(x W' + h R' + b)``; outputs are Y and the last h."""

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    layout: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the specs of Y and Y_h.

        Raises:
            InputError: Shapes, types or attributes do not fit.
        """
        return _Layer(self, 1, 1, ("Tanh",), states=1).infer(inputs)

    def compute(self, *inputs: Array | None, out: Sequence[Array | None] | None = None) -> tuple[Array | None, ...]:
        """Run the layer; half and bfloat16 in float, rounded once at the end."""

        def make_step(d: int, r: Array, recurrent_bias: Array, activations: Sequence[Activation]) -> Step:
            return make_rnn_step(r, activations)

        return _Layer(self, 1, 1, ("Tanh",), states=1).compute(inputs, make_step, split_bias=False)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Multiply the inputs of all steps, then launch all steps."""
        _Layer(self, 1, 1, ("Tanh",), states=1).lower(emit, inputs, outputs)


@upgrade("GRU", below=3)
def _correct_direction(node: RawNode) -> RawNode:
    """The first version has a default that is no direction: a letter short of forward."""
    return node.with_attributes(direction=node.attributes.get("direction", "forward"))


@upgrade("LSTM", below=7)
@upgrade("GRU", below=7)
@upgrade("RNN", below=7)
def _drop_output_sequence(node: RawNode) -> RawNode:
    """Until opset 6 an attribute repeated whether the first output is wanted."""
    return node.without("output_sequence")


@dataclass(frozen=True, slots=True)
class _Layer:
    """What recurrent operators share: gates per hidden unit, activations of a direction, parts of the state."""

    op: LSTM | GRU | RNN
    gates: int
    per_direction: int
    defaults: tuple[str, ...]
    states: int

    def infer(self, inputs: Sequence[TensorSpec | None], peepholes: int = 0) -> tuple[TensorSpec, ...]:
        """Check all inputs; return the specs of Y and of each part of the last state."""
        op, name = self.op, self.op.name
        x, w, r, bias, lengths, *rest = (*inputs, *(None,) * 8)[:8]
        if x is None or w is None or r is None or x.rank != 3 or w.rank != 3 or r.rank != 3:
            raise InputError(f"{name} expects X, W and R of rank 3, got {x}, {w} and {r}.")
        if op.direction not in _DIRECTIONS:
            raise InputError(f"{name} expects direction among {', '.join(_DIRECTIONS)}, got {op.direction!r}.")
        directions, hidden = len(_DIRECTIONS[op.direction]), r.shape[2]
        self.functions()
        if op.hidden_size and op.hidden_size != hidden:
            raise InputError(f"{name} expects hidden_size to be the last extent of R {r}, got {op.hidden_size}.")
        steps, batch = x.shape[1::-1] if op.layout else x.shape[:2]
        state = (batch, directions, hidden) if op.layout else (directions, batch, hidden)
        expected: list[tuple[str, TensorSpec | None, tuple[int, ...]]] = [
            ("W", w, (directions, self.gates * hidden, x.shape[2])),
            ("R", r, (directions, self.gates * hidden, hidden)),
            ("B", bias, (directions, 2 * self.gates * hidden)),
            *((role, spec, state) for role, spec in zip(("initial_h", "initial_c")[: self.states], rest)),
            *((("P", rest[2], (directions, peepholes * hidden)),) if peepholes else ()),
        ]
        for role, spec, shape in expected:
            if spec is not None and (spec.shape != shape or spec.dtype != x.dtype):
                raise InputError(f"{name} expects {role} to be {TensorSpec(shape, x.dtype)}, got {spec}.")
        if lengths is not None and (lengths.shape != (batch,) or lengths.dtype != _LENGTH):
            raise InputError(f"{name} expects sequence_lens to be {TensorSpec((batch,), _LENGTH)}, got {lengths}.")
        if x.dtype not in DTYPES:
            raise InputError(f"{name} expects a type among {', '.join(t.name for t in DTYPES)}, got {x}.")
        y = (batch, steps, directions, hidden) if op.layout else (steps, directions, batch, hidden)
        return (TensorSpec(y, x.dtype), *(TensorSpec(state, x.dtype) for _ in range(self.states)))

    def functions(self) -> list[Bound]:
        """Return the activations of all directions in one list, unclipped."""
        directions = len(_DIRECTIONS[self.op.direction])
        names = self.op.activations or self.defaults * directions
        if len(names) != self.per_direction * directions:
            raise InputError(
                f"{self.op.name} expects {self.per_direction} activations per direction ({directions}), "
                f"got {list(names)}."
            )
        return bind_activations(names, self.op.activation_alpha, self.op.activation_beta)

    def activations(self) -> list[Activation]:
        """Return the activations of all directions in one list."""
        # The third function of an LSTM, of the cell, is no gate: onnxruntime does not clip what it is given, nor do we.
        return [
            clip_input(function, self.op.clip if i % self.per_direction < 2 else 0)
            for i, function in enumerate(self.functions())
        ]

    def lower(
        self, emit: Emitter, inputs: Slots, outputs: Slots, *, is_linear: bool = False, input_forget: bool = False
    ) -> None:
        """Launch the layer. ``is_linear`` is a GRU's linear_before_reset."""
        op = self.op
        x, w, r, bias, lengths, h, *rest = (*inputs, *(None,) * 8)[:8]
        assert x is not None and w is not None and r is not None
        layer = Layer(
            op.name, self.gates, _DIRECTIONS[op.direction], tuple(self.functions()), op.clip, op.hidden_size,
            bool(op.layout), is_linear, input_forget,
        )  # fmt: skip
        launch_layer(emit, layer, Operands(x, w, r, bias, lengths, h, rest[0], rest[1]), outputs)

    def compute(
        self,
        inputs: Sequence[Array | None],
        make_step: Callable[[int, Array, Array, Sequence[Activation]], Step],
        *,
        split_bias: bool,
    ) -> tuple[Array, ...]:
        """Run all directions. ``split_bias`` leaves the recurrent bias of the last gate to the step."""
        x, w, r, bias, lengths, *rest = (*inputs, *(None,) * 8)[:8]
        assert x is not None and w is not None and r is not None
        dtype, acc, hidden = x.dtype, accumulator(x.dtype), r.shape[2]
        x = x.astype(acc, copy=False).transpose(1, 0, 2) if self.op.layout else x.astype(acc, copy=False)
        steps, batch, width = x.shape
        results, finals = [], []
        bound = self.activations()
        with np.errstate(all="ignore"):
            for d, is_reverse in enumerate(_DIRECTIONS[self.op.direction]):
                weights, recurrent = w[d].astype(acc, copy=False).T, np.ascontiguousarray(r[d].T, acc)
                both = np.zeros((2, self.gates * hidden), acc) if bias is None else bias[d].astype(acc).reshape(2, -1)
                recurrent_bias = both[1, -hidden:].copy() if hidden else both[1]
                if split_bias and hidden:
                    both[1, -hidden:] = 0
                gates = (x.reshape(steps * batch, width) @ weights).reshape(steps, batch, self.gates * hidden)
                gates += both[0] + both[1]
                step = make_step(
                    d, recurrent, recurrent_bias, bound[d * self.per_direction : (d + 1) * self.per_direction]
                )
                y, final = unroll(gates, lengths, is_reverse, self._initial(rest, d, (batch, hidden), acc), step)
                results.append(y)
                finals.append(final)
            where = 2 if self.op.layout else 1
            y = np.stack(results, axis=1)  # [steps, directions, batch, hidden]
            y = y.transpose(2, 0, 1, 3) if self.op.layout else y
            lasts = [np.stack([final[k] for final in finals], axis=where - 1) for k in range(self.states)]
            return tuple(array.astype(dtype, copy=False) for array in (y, *lasts))

    def _initial(
        self, rest: Sequence[Array | None], d: int, shape: tuple[int, int], acc: np.dtype[Any]
    ) -> tuple[Array, ...]:
        parts = []
        for given in rest[: self.states]:
            chosen = None if given is None else given[:, d] if self.op.layout else given[d]
            parts.append(np.zeros(shape, acc) if chosen is None else chosen.astype(acc))
        return tuple(parts)
