"""LinearAttention: attention by a running state matrix of keys and values per head."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.instances import instantiate
from gpuexec.ir.kernel_values import pack_struct
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import BFLOAT16, TensorSpec, dtype_row
from gpuexec.ir.work import Work, count_slot_bytes, work_of
from gpuexec.ops.lib.checks import check_dtype
from gpuexec.ops.lib.team import BLOCK_THREADS

# StateKind of linear_attention.cu, in its order, after that for no state.
FLOATS: tuple[np.dtype[Any], ...] = (np.dtype(np.float32), np.dtype(np.float16), BFLOAT16)
# Whether the state decays, and whether a key's present value is subtracted before an update (delta rule).
RULES = {"linear": (False, False), "gated": (True, False), "delta": (False, True), "gated_delta": (True, True)}
_SOURCE = "linear_attention.cu"
_COLUMNS = 16  # kColumns
_REGISTER_ROWS = 256  # kOwnRows * kLanes
instantiate(_SOURCE, [f"linear_attention<{dtype_row(t).cuda}>" for t in FLOATS])


@operator("LinearAttention")
@dataclass(frozen=True, slots=True)
class LinearAttention(Operator):
    """Attention by a state per head: at each step it decays, adds the outer product of key and value, and is queried.

    Rows of the state go with elements of keys, columns with those of values. ``update_rule``: gated ones multiply row i
    by ``exp(decay[i])`` first; delta ones write ``beta * (value - state' key)`` in place of the value. Outputs are
    ``scale * state' query`` (scale 0: one over the root of a key's size) and the last state. Heads of keys may each
    serve several heads of queries, side by side. ``chunk_size`` changes no result.
    """

    q_num_heads: int
    kv_num_heads: int
    chunk_size: int = 64
    scale: float = 0.0
    update_rule: str = "gated_delta"
    tolerance: ClassVar[Tolerance] = Tolerance.REDUCTION
    example = "float32[2,4,32] float32[2,4,32] float32[2,4,32] q_num_heads=4 kv_num_heads=4 update_rule='linear'"
    flops_per_output = None
    keeps_dtype = True
    has_blits = False

    def infer(
        self,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        past: TensorSpec | None = None,
        decay: TensorSpec | None = None,
        beta: TensorSpec | None = None,
    ) -> tuple[TensorSpec, ...]:
        """Return the specs of the output and the last state, which has the type of the past one, else the query's.

        Raises:
            InputError: Types differ, shapes or heads don't fit, the rule is unknown, or not given what it takes.
        """
        query = check_dtype(self.name, query, FLOATS, "query")
        key, value = (check_dtype(self.name, x, (query.dtype,), role) for x, role in ((key, "key"), (value, "value")))
        self._check_attributes(decay, beta)
        heads = self.kv_num_heads
        for role, spec, count in (("query", query, self.q_num_heads), ("key", key, heads), ("value", value, heads)):
            if spec.rank != 3 or spec.shape[2] % count or spec.shape[:2] != query.shape[:2]:
                raise InputError(
                    f"{self.name} expects {role} [batch, steps, heads * size] with {count} heads, as many batches and "
                    f"steps as the query {query}, got {spec}."
                )
        batch, steps, _ = query.shape
        rows, columns = query.shape[2] // self.q_num_heads, value.shape[2] // heads
        if key.shape[2] != heads * rows:
            raise InputError(f"{self.name} expects keys of the size of queries, {rows}, in {heads} heads, got {key}.")
        widths = {"decay": (heads, heads * rows), "beta": (heads, 1)}
        for role, given in (("decay", decay), ("beta", beta)):
            fitting = [(batch, steps, width) for width in widths[role]]
            if given is not None and check_dtype(self.name, given, (query.dtype,), role).shape not in fitting:
                raise InputError(f"{self.name} expects {role} {list(fitting[0])} or {list(fitting[1])}, got {given}.")
        state = TensorSpec((batch, heads, rows, columns), query.dtype)
        if past is not None:
            if check_dtype(self.name, past, FLOATS, "past_state").shape != state.shape:
                raise InputError(f"{self.name} expects past_state {list(state.shape)}, got {past}.")
            state = TensorSpec(state.shape, past.dtype)
        return query.with_shape((batch, steps, self.q_num_heads * columns)), state

    def _check_attributes(self, decay: TensorSpec | None, beta: TensorSpec | None) -> None:
        if self.update_rule not in RULES:
            raise InputError(f"{self.name} expects update_rule {', '.join(RULES)}, got {self.update_rule!r}.")
        if self.q_num_heads < 1 or self.kv_num_heads < 1 or self.q_num_heads % self.kv_num_heads:
            raise InputError(
                f"{self.name} expects q_num_heads to be a multiple of kv_num_heads, both 1 or more, "
                f"got {self.q_num_heads} and {self.kv_num_heads}."
            )
        for role, spec, takes in zip(("decay", "beta"), (decay, beta), RULES[self.update_rule], strict=True):
            if (spec is not None) != takes:
                word = "with" if takes else "without"
                raise InputError(f"{self.name} expects update_rule {self.update_rule!r} {word} {role}, got {spec}.")

    def compute(
        self,
        query: Array,
        key: Array,
        value: Array,
        past: Array | None = None,
        decay: Array | None = None,
        beta: Array | None = None,
        *,
        out: Out = None,
    ) -> tuple[Array | None, ...]:
        """Compute step by step with NumPy, in float; results are rounded once."""
        heads, group = self.kv_num_heads, self.q_num_heads // self.kv_num_heads
        batch, steps, width = query.shape
        q = _split(query, batch, steps, heads, group, width // self.q_num_heads)
        k = _split(key, batch, steps, heads, width // self.q_num_heads)
        v = _split(value, batch, steps, heads, value.shape[2] // heads)
        rows, columns = k.shape[3], v.shape[3]
        y = np.zeros((batch, steps, heads, group, columns), np.float32)
        state = np.zeros((batch, heads, rows, columns), np.float32) if past is None else past.astype(np.float32)
        with np.errstate(all="ignore"):
            kept = None if decay is None else np.exp(_split(decay, batch, steps, heads, decay.shape[2] // heads))
            rate = None if beta is None else _split(beta, batch, steps, beta.shape[2], 1)
            for t in range(steps):
                if kept is not None:
                    state = state * kept[:, t, :, :, np.newaxis]
                new = v[:, t]
                if rate is not None:
                    new = rate[:, t] * (new - (k[:, t, :, np.newaxis] @ state)[:, :, 0])
                state = state + k[:, t, :, :, np.newaxis] * new[:, :, np.newaxis]
                y[:, t] = np.float32(self._scale(rows)) * (q[:, t] @ state)
            y = y.reshape(batch, steps, self.q_num_heads * columns)
            return y.astype(query.dtype, copy=False), state.astype(query.dtype if past is None else past.dtype)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch all steps at once."""
        query, key, value, past, decay, beta = (*inputs, *(None,) * 6)[:6]
        y, present = (*outputs, None)[:2]
        assert query is not None and key is not None and value is not None
        batch, steps, width = query.shape
        heads, rows, columns = self.kv_num_heads, width // self.q_num_heads, value.shape[2] // self.kv_num_heads
        given = [None if x is None else _dense_rows(emit, x) for x in (query, key, value, decay, beta)]
        tiles = max(1, ceil_div(columns, _COLUMNS))
        scratch = emit.temp((batch, heads, rows if rows > _REGISTER_ROWS else 0, columns), np.float32)
        strides = [stride for x in given for stride in (x.strides[:2] if x is not None else (0, 0))]
        decay_width = 0 if decay is None else decay.shape[2] // heads
        beta_head = 0 if beta is None or beta.shape[2] == 1 else 1
        kinds = [0 if state is None else 1 + FLOATS.index(state.dtype) for state in (past, present)]
        numbers = (steps, heads, self.q_num_heads // heads, rows, columns, tiles, *strides, decay_width, beta_head)
        packed = pack_struct("<20qd", *numbers, *kinds, self._scale(rows))
        past = None if past is None else emit.contiguous(past)
        arguments: list[Argument] = [*given[:3], past, *given[3:], y, present, scratch, packed]
        writes = [index for index in (6, 7, 8) if arguments[index] is not None]
        kernel = Kernel(_SOURCE, f"linear_attention<{dtype_row(query.dtype).cuda}>")
        emit.launch(kernel, (max(1, batch * heads * tiles), 1, 1), (BLOCK_THREADS, 1, 1), arguments, writes)

    def _scale(self, rows: int) -> float:
        return self.scale or (1 / sqrt(rows) if rows else 1.0)


def _split(x: Array, *shape: int) -> Array:
    return x.astype(np.float32).reshape(shape)


def _dense_rows(emit: Emitter, slot: Slot) -> Slot:
    """Return a slot whose last axis lies dense: others may have any strides, as parts of a packed product have."""
    return slot if slot.strides[2] == 1 else emit.contiguous(slot)


# Instructions of a thread: around, for a step, and for each row of its own that it visits. Lanes of a column; columns
# of a warp.
_AROUND, _EACH_STEP, _EACH_ROW, _LANES, _WARP_COLUMNS = 500, 150, 6, 16, 2


@work_of(_SOURCE, "linear_attention")
def _count_linear_attention(launch: Launch) -> Work:
    query, key, value, past, decay, beta, y, present, _, packed = launch.arguments
    assert isinstance(query, Slot) and isinstance(key, Slot) and isinstance(value, Slot) and isinstance(packed, bytes)
    steps, heads, group, rows, columns, tiles = struct.unpack_from("<6q", packed)
    batch, answered = query.shape[0], group if isinstance(y, Slot) else 0
    products = 1 + (beta is not None) + answered  # each of all of a state's elements
    visits, own = products + (decay is not None), ceil_div(rows, _LANES)
    states, warps = batch * heads * rows * columns, batch * heads * ceil_div(columns, _WARP_COLUMNS)
    in_scratch = 2 * 4 * states * steps * visits if rows > _REGISTER_ROWS else 0
    of_step = sum(count_slot_bytes(each) for each in (query, key, decay) if isinstance(each, Slot))
    others = [each for each in (value, past, beta, y, present) if isinstance(each, Slot)]
    return Work(
        flops=steps * states * (2 * products + (decay is not None)),
        instructions=warps * (_AROUND + steps * (_EACH_STEP * (1 + answered) + visits * own * _EACH_ROW)),
        multiply_adds=warps * steps * own * products,
        needed_multiply_adds=steps * states * products,
        l2_nbytes=tiles * of_step + sum(map(count_slot_bytes, others)) + in_scratch,
        rounds=1 + steps * (1 + (beta is not None) + answered),
        registers=109,
        operand_nbytes={8: in_scratch and 4 * states},
    )
