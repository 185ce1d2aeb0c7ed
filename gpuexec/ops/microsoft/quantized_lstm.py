"""DynamicQuantizeLSTM: an LSTM with 8-bit weights and dynamically quantised inputs and states.

The product of the inputs is one of bytes for all steps. The state of each row is quantised anew before each step, by
its own range, so that no row depends on its neighbours; one launch takes all steps. Sigmoid and tanh are rational
functions: what is rounded to bytes must not depend on a library's last bit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.graphs import Value
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import join_bytes, pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, PreparedCalls, Slots, Tolerance, operator
from gpuexec.ir.prepared_calls import has_scratch
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.lib.shared_products import matmul
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.quantized_lstm_host import count_step_scratch, prepare_steps
from gpuexec.ops.microsoft.rational import rational_sigmoid, rational_tanh
from gpuexec.ops.nn.rnn import DIRECTIONS, LSTM, MOST_STEPS, bind_directions
from gpuexec.ops.nn.rnn_host import Activation, Bound, State, Step, bind_activations, clip_input, unroll
from gpuexec.ops.quant.dynamic_quantize import quantize_by_range
from gpuexec.ops.quant.integer import FLOAT, INT32, Quantized, check_bytes, dense, offset_of, subtract_zero

_SOURCE = "quantized_lstm.cu"
_THREADS = 256
_GATES = 4
# By kind, as bind_activations numbers them.
_RATIONAL: dict[int, Activation] = {
    bind_activations([name], (), ())[0].kind: function
    for name, function in (("Sigmoid", rational_sigmoid), ("Tanh", rational_tanh))
}
instantiate(_SOURCE, ["quantized_lstm"])


@operator("QuantizedLstmSteps", "gpuexec")
@dataclass(frozen=True, slots=True)
class QuantizedLstmSteps(Operator):
    """Steps of an LSTM; outputs are Y, the last h and the last c. Gates are in the order i, o, f, c.

    Inputs are what inputs add to the gates ``[directions, steps, batch, 4 * hidden]``, the recurrent weights
    ``[directions, hidden, 4 * hidden]`` as bytes, their scale and zero point (for each direction, or each of its
    columns), and B, sequence_lens, initial_h, initial_c and P as of LSTM.
    """

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    input_forget: int = 0
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    uses_all_cores: ClassVar[bool] = True
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self,
        gates: TensorSpec,
        r: TensorSpec,
        scale: TensorSpec,
        zero: TensorSpec,
        bias: TensorSpec | None = None,
        lengths: TensorSpec | None = None,
        initial_h: TensorSpec | None = None,
        initial_c: TensorSpec | None = None,
        p: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of Y, Y_h and Y_c.

        Raises:
            InputError: Shapes, types or attributes do not fit.
        """
        self._functions()
        gates, r = check_dtype(self.name, gates, (FLOAT,), "gates"), check_bytes(self.name, r, "R")
        directions, hidden = len(DIRECTIONS[self.direction]), r.shape[1] if r.rank == 3 else 0
        columns = _GATES * hidden
        if r.shape != (directions, hidden, columns) or self.hidden_size not in (0, hidden):
            raise InputError(
                f"{self.name} expects R to be [{directions}, hidden, 4 * hidden] for hidden_size={self.hidden_size} "
                f"(0: any), got {r}."
            )
        if gates.rank != _GATES or (gates.shape[0], gates.shape[3]) != (directions, columns):
            raise InputError(f"{self.name} expects gates [{directions}, steps, batch, {columns}], got {gates}.")
        _, steps, batch, _ = gates.shape
        state = (directions, batch, hidden)
        by = ((directions,), (directions, 1), (directions, columns))
        expected: tuple[tuple[str, TensorSpec | None, np.dtype[Any], tuple[tuple[int, ...], ...]], ...] = (
            ("R_scale", check_dtype(self.name, scale, (FLOAT,), "R_scale"), FLOAT, by),
            ("R_zero_point", check_dtype(self.name, zero, (r.dtype,), "R_zero_point"), r.dtype, by),
            ("B", bias, FLOAT, ((directions, 2 * columns),)),
            ("sequence_lens", lengths, INT32, ((batch,),)),
            ("initial_h", initial_h, FLOAT, (state,)),
            ("initial_c", initial_c, FLOAT, (state,)),
            ("P", p, FLOAT, ((directions, 3 * hidden),)),
        )
        for role, spec, dtype, shapes in expected:
            if spec is not None and (spec.dtype != dtype or spec.shape not in shapes):
                wanted = " or ".join(str(TensorSpec(shape, dtype)) for shape in shapes)
                raise InputError(f"{self.name} expects {role} to be {wanted}, got {spec}.")
        if scale.size != zero.size:
            raise InputError(f"{self.name} expects as many zero points of R as scales {scale}, got {zero}.")
        return TensorSpec((steps, *state), FLOAT), TensorSpec(state, FLOAT), TensorSpec(state, FLOAT)

    def compute(
        self,
        gates: Array,
        r: Array,
        scale: Array,
        zero: Array,
        bias: Array | None = None,
        lengths: Array | None = None,
        initial_h: Array | None = None,
        initial_c: Array | None = None,
        p: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Compute step by step."""
        directions, _, batch, columns = gates.shape
        hidden = r.shape[1]
        functions = [
            clip_input(_RATIONAL.get(function.kind, function), self.clip if i % 3 < 2 else 0.0)
            for i, function in enumerate(self._functions())
        ]
        scale, zero = scale.reshape(directions, -1), zero.reshape(directions, -1)
        results, finals = [], []
        with np.errstate(all="ignore"):
            for d, is_reverse in enumerate(DIRECTIONS[self.direction]):
                weight = Quantized(r[d], scale[d], zero[d] if zero.shape[1] > 1 else zero[d].reshape(()))
                both = np.zeros((2, columns), FLOAT) if bias is None else bias[d].reshape(2, -1)
                peepholes = None if p is None else p[d].reshape(3, -1)

                step = _make_step(weight, both[0] + both[1], peepholes, functions[3 * d : 3 * d + 3], self.input_forget)
                state = tuple(
                    np.zeros((batch, hidden), FLOAT) if each is None else each[d] for each in (initial_h, initial_c)
                )
                y, final = unroll(gates[d], lengths, is_reverse, state, step)
                results.append(y)
                finals.append(final)
        lasts = [np.stack([final[k] for final in finals]) for k in range(2)]
        return np.stack(results, axis=1), *lasts

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Count what prepared steps work in."""
        gates, r = inputs[:2]
        return () if gates is None or r is None else count_step_scratch((gates.shape[0], gates.shape[2], r.shape[1]))

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Run all steps as one list of calls: of whole sequences, with the default activations."""
        gates, r, _, _, _, lengths, _, _, peepholes = (*inputs, *(None,) * 5)[:9]
        usual = bind_directions(self.name, self.direction, LSTM.defaults, (), (), ())
        if gates is None or r is None or lengths is not None or peepholes is not None or self._functions() != usual:
            return None
        if self.clip > 0 or self.input_forget or not gates.size or gates.shape[1] > MOST_STEPS:
            return None
        if not has_scratch(scratch, count_step_scratch((gates.shape[0], gates.shape[2], r.shape[1]))):
            return None
        return prepare_steps(inputs, out, DIRECTIONS[self.direction], scratch)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch all steps, a block for each row of a direction."""
        gates, r, *rest = (dense(emit, slot) for slot in (*inputs, *(None,) * 5)[:9])
        assert gates is not None and r is not None and rest[0] is not None
        directions, steps, batch, columns = gates.shape
        hidden = columns // _GATES
        y, *lasts = (*outputs, None, None)[:3]
        state = [slot if slot is not None else emit.temp((directions, batch, hidden), FLOAT) for slot in lasts]
        scratch = emit.temp((directions, batch, hidden), np.uint8)
        reverses = DIRECTIONS[self.direction]
        reversed_bits = sum(1 << d for d, is_reverse in enumerate(reverses) if is_reverse)
        numbers = (steps, batch, hidden, directions, reversed_bits, self.input_forget)
        quants = rest[0].spec.size // max(1, directions)
        functions = (*self._functions(), *(Bound(0, 0.0, 0.0),) * 3)[:6]
        packed = pack_struct("<8qd", *numbers, quants, offset_of(r.dtype), self.clip)
        packed += join_bytes(pack_struct("<qdd", each.kind, each.alpha, each.beta) for each in functions)
        arguments: list[Argument] = [gates, r, *rest, scratch, y, *state, packed]
        writes = [index for index in (9, 10, 11, 12) if arguments[index] is not None]
        emit.launch(Kernel(_SOURCE, "quantized_lstm"), (directions * batch, 1, 1), (_THREADS, 1, 1), arguments, writes)

    def _functions(self) -> list[Bound]:
        own = (self.activations, self.activation_alpha, self.activation_beta)
        return bind_directions(self.name, self.direction, LSTM.defaults, *own)


@composite("DynamicQuantizeLSTM", DOMAIN)
@dataclass(frozen=True, slots=True)
class DynamicQuantizeLSTM(Composite):
    """LSTM over bytes: weights ``[directions, in, 4 * hidden]``, inputs and states quantised dynamically."""

    inputs: ClassVar[int] = 12
    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float = 0.0
    direction: str = "forward"
    hidden_size: int = 0
    input_forget: int = 0
    example = (
        "float32[7,1,5] int8[1,5,24] int8[1,6,24] float32[1,48] int32[1] - - - float32[1] int8[1] float32[1] int8[1] "
        "hidden_size=6"
    )

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Multiply the inputs of all steps, then compute the steps."""
        x, w, r, bias, lengths, first_h, first_c, peepholes, *quants = inputs
        assert w is not None
        w_scale, w_zero, r_scale, r_zero = quants
        values, scale, zero = sketch.add_all("DynamicQuantizeLinear", 3, x)
        # [1, steps, batch, in] times [directions, 1, in, 4 * hidden]: scales are of a direction, or of its columns.
        left = sketch.add("Unsqueeze", values, sketch.ints(0))
        right = sketch.add("Unsqueeze", w, sketch.ints(1))
        by = [None if each is None else sketch.reshape(each, 0, 1, 1, -1) for each in (w_scale, w_zero)]
        name = f"{DOMAIN}.MatMulIntegerToFloat"
        gates = sketch.add(name, left, right, scale, by[0], zero, by[1])
        steps = QuantizedLstmSteps(**{each.name: getattr(self, each.name) for each in fields(self)})
        return sketch.add_all(steps, 3, gates, r, r_scale, r_zero, bias, lengths, first_h, first_c, peepholes)


def _make_step(
    weight: Quantized, bias: Array, peepholes: Array | None, activations: Sequence[Activation], input_forget: int
) -> Step:
    """Return a step: from the gates' input part, h and c to the next h and c."""
    f, g, h = activations
    hidden, multiply = weight.values.shape[0], _bind_weight(weight)

    def step(inputs: Array, state: State) -> State:
        before, cell = state
        gates = multiply(before) + inputs + bias
        i, o, forget, candidate = (gates[:, k * hidden : (k + 1) * hidden] for k in range(_GATES))
        if peepholes is not None:
            i, forget = i + peepholes[0] * cell, forget + peepholes[2] * cell
        i = f(i)
        forget = 1 - i if input_forget else f(forget)
        cell = forget * cell + i * g(candidate)
        o = o if peepholes is None else o + peepholes[1] * cell
        return f(o) * h(cell), cell

    return step


def _bind_weight(weight: Quantized) -> Callable[[Array], Array]:
    """Return what multiplies a state, each row quantised by its range, with weights of bytes.

    These are widened once for all steps, to floats whose sums of so many products are exact, as those of integers are.
    """
    inner = weight.values.shape[0]
    wide = subtract_zero(weight.values, weight.zero, inner)

    def multiply(h: Array) -> Array:
        made = quantize_by_range(h, axis=1)
        sums = matmul(subtract_zero(made.values, made.zero, inner), wide)
        return np.asarray(sums.astype(FLOAT) * (made.scale * weight.scale))

    return multiply


# Instructions of a thread: for a weight of each gate of a unit, to finish a unit, and of a step; barriers of a step.
_EACH_WEIGHT, _EACH_UNIT, _EACH_STEP, _STEP_BARRIERS, _WEIGHTS_TOGETHER = 22, 450, 200, 11, 4


@work_of(_SOURCE, "quantized_lstm")
def _count_quantized_lstm(launch: Launch) -> Work:
    weights, packed = launch.arguments[1], launch.arguments[-1]
    assert isinstance(weights, Slot) and isinstance(packed, bytes)
    steps, batch, hidden, directions = struct.unpack_from("<4q", packed)
    rows, own = directions * batch, ceil_div(hidden, _THREADS)  # units of a thread
    sums = rows * steps * _GATES * hidden * hidden
    others = [slot for slot in (*launch.reads_from(), *launch.writes_to()) if slot is not weights]
    of_step = own * (hidden * _EACH_WEIGHT + _EACH_UNIT) + _EACH_STEP
    return Work(
        flops=2 * sums + 20 * rows * steps * hidden,  # products of bytes are integers, no multiply-adds
        instructions=rows * steps * (_THREADS // 32) * of_step,
        l2_nbytes=rows * steps * count_slot_bytes(weights) // max(1, directions) + sum(map(count_slot_bytes, others)),
        rounds=steps * (3 + own * ceil_div(hidden, _WEIGHTS_TOGETHER)),
        barriers=steps * _STEP_BARRIERS,
        registers=64,
    )
