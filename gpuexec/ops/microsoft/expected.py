"""Checks across the inputs of com.microsoft attention operators.

Each is a view of one input, unchanged, that checks the others: so invalid shapes that no part would
refuse are refused where shapes are known, which is not before planning.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.errors import InputError
from gpuexec.ir.geometry import Shape
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec, dtype_row
from gpuexec.ops.lib.checks import check_dtype


class _Shown(Operator):
    """Base of operators that give their first input as it is, once ``check`` lets the others pass."""

    __slots__ = ()
    tolerance = Tolerance.EXACT
    flops_per_output = 0
    keeps_dtype = True
    has_blits = True

    def check(self, *inputs: TensorSpec | None) -> None:
        """Raise InputError if the inputs don't go together."""
        raise TypeError(f"{type(self).__name__} lacks check")

    def infer(self, *inputs: TensorSpec | None) -> tuple[TensorSpec, ...]:
        """Return the first input's spec.

        Raises:
            InputError: The inputs don't go together.
        """
        self.check(*inputs)
        (x, *_) = inputs
        assert x is not None
        return (x.with_shape(x.shape),)

    def compute(self, *inputs: Array | None, out: Out = None) -> tuple[Array | None, ...]:
        """Return the first input."""
        return (inputs[0],)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Alias the first input's bytes."""
        x, y = inputs[0], outputs[0]
        assert x is not None and y is not None
        emit.alias(y, x)


@operator("OfType", "gpuexec")
@dataclass(frozen=True, slots=True)
class OfType(_Shown):
    """Check of an input's element types, by name, where parts would take others too."""

    role: str
    types: tuple[str, ...]
    example = "int8[2] role='x' types=('int8',)"

    def check(self, *inputs: TensorSpec | None) -> None:
        """Compare the type."""
        check_dtype(self.name, inputs[0], tuple([dtype_row(each).numpy for each in self.types]), self.role)


@operator("ProjectedInput", "gpuexec")
@dataclass(frozen=True, slots=True)
class ProjectedInput(_Shown):
    """Checked inputs of a projection: an input, weights ``[columns, queries + keys + values]``, a bias as long.

    Three parts of equal width, or of the widths ``sizes``, of which queries and keys have the same; heads divide each.
    """

    heads: int
    sizes: tuple[int, ...] = ()
    rank: int = 3

    def check(self, *inputs: TensorSpec | None) -> None:
        """Compare the widths."""
        x, weights, bias = (*inputs, None)[:3]
        if x is None or x.rank != self.rank:
            raise InputError(f"input 0 must have {self.rank} axes, the last of them for hidden units, got {x}.")
        if weights is None or weights.rank != 2 or weights.shape[0] != x.shape[-1]:
            raise InputError(f"weights must be [{x.shape[-1]}, queries + keys + values] for input {x}, got {weights}.")
        width = weights.shape[1]
        if not self.sizes and width % 3:
            raise InputError(f"weights must have columns for three parts of equal width, got {weights}.")
        if bias is not None and bias.shape != (width,):
            raise InputError(f"bias must hold a number for each of {width} columns of the weights, got {bias}.")
        sizes = self.sizes or (width // 3,) * 3
        if sum(sizes) != width or sizes[0] != sizes[1] or min(sizes) < 0:
            raise InputError(
                f"qkv_hidden_sizes must add up to {width}, the columns of the weights, and be equal for queries and "
                f"keys, got {list(sizes)}."
            )
        if self.heads < 1 or any(size % self.heads for size in sizes):
            raise InputError(f"num_heads must divide the widths {list(sizes)} of the three parts, got {self.heads}.")


@operator("GroupedInput", "gpuexec")
@dataclass(frozen=True, slots=True)
class GroupedInput(_Shown):
    """Check of the inputs of grouped attention against the shape of queries: keys, values, pasts, norm weights, counts.

    Inputs: query, key, value, past_key, past_value, seqlens_k, attention_bias, q_norm_weight, k_norm_weight.
    """

    heads: int
    of_keys: int

    def check(self, *inputs: TensorSpec | None) -> None:
        """Compare the shapes."""
        query, key, value, past_key, past_value, last, bias, *norms = (*inputs, *(None,) * 8)[:9]
        if query is None or query.rank != 3:
            raise InputError(f"query must be [batch, rows, hidden units], got {query}.")
        if self.of_keys < 1 or self.heads < 1 or self.heads % self.of_keys:
            raise InputError(
                f"num_heads must be a multiple of kv_num_heads, both from 1 on, got {self.heads} and {self.of_keys}."
            )
        (batch, rows, width), heads = query.shape, self.heads + (2 * self.of_keys if key is None else 0)
        if width % heads:
            raise InputError(f"the last axis of query must be {heads} heads of equal size, got {query}.")
        size = width // heads
        expect("key", key, (batch, rows, self.of_keys * size))
        expect("value", value, (batch, rows, self.of_keys * size))
        if past_key is not None and past_key.rank == 4:
            expect("past_key", past_key, (batch, self.of_keys, past_key.shape[2], size))
            expect("past_value", past_value, past_key.shape)
        else:
            expect("past_key", past_key, (batch, self.of_keys, -1, size))
        if last is not None and last.size != batch:
            raise InputError(f"seqlens_k must hold a number for each of {batch} sequences, got {last}.")
        if bias is not None and bias.rank != 4:
            raise InputError(f"attention_bias must be [batch, heads, rows, keys], got {bias}.")
        for role, norm in zip(("q_norm_weight", "k_norm_weight"), norms, strict=True):
            expect(role, norm, (size,))


@operator("GatedInput", "gpuexec")
@dataclass(frozen=True, slots=True)
class GatedInput(_Shown):
    """Queries ``[batch, rows, heads * size]`` that gate biases by position, with their own bias and those of positions.

    Inputs: query, query_bias, rel_pos ``[1, heads, rows, rows]``.
    """

    heads: int

    def check(self, *inputs: TensorSpec | None) -> None:
        """Compare the shapes."""
        query, bias, positions = inputs
        if query is None or query.rank != 3 or self.heads < 1 or query.shape[2] % self.heads:
            raise InputError(f"query must be [batch, rows, {self.heads} heads * size], got {query}.")
        expect("query_bias", bias, query.shape[2:])
        expect("rel_pos", positions, (1, self.heads, query.shape[1], query.shape[1]))


@operator("OneRow", "gpuexec")
@dataclass(frozen=True, slots=True)
class OneRow(_Shown):
    """Checked input of a decoding step: one new row of each sequence, ``[batch, 1, hidden units]``."""

    def check(self, *inputs: TensorSpec | None) -> None:
        """Count the rows."""
        x = inputs[0]
        if x is None or x.rank != 3 or x.shape[1] != 1:
            raise InputError(f"input 0 must be one new row of each sequence, [batch, 1, hidden units], got {x}.")


@operator("WholeBias", "gpuexec")
@dataclass(frozen=True, slots=True)
class WholeBias(_Shown):
    """A bias of attention, ``[batch, heads, rows, keys]`` or 1 in place of each of the first three, for the keys."""

    has_room: int = 0

    def check(self, *inputs: TensorSpec | None) -> None:
        """Compare with queries ``[batch, rows, ...]`` and keys ``[batch, heads, keys, size]``."""
        bias, query, keys = inputs
        if bias is None or bias.rank != 4:
            raise InputError(f"attention_bias must be [batch, heads, rows, keys], got {bias}.")
        if query is None or query.rank < 2 or keys is None or keys.rank != 4:
            raise InputError(f"a bias is for queries [batch, rows, ...] and keys of four axes, got {query} and {keys}.")
        check_bias(bias.shape, query.shape, keys.shape, bool(self.has_room))


def check_bias(bias: Shape, query: Shape, keys: Shape, has_room: bool) -> None:
    """Check that a bias of four axes is for these queries and keys; where keys have room, it may be for fewer.

    Raises:
        InputError: It is not.
    """
    whole = (query[0], keys[1], query[1])
    fits = all(have in (1, want) for have, want in zip(bias, whole, strict=False))
    if not fits or bias[3] > keys[2] or (bias[3] != keys[2] and not has_room):
        at_most = "at most " if has_room else ""
        raise InputError(
            f"attention_bias must broadcast to {list(whole)} and {at_most}{keys[2]} keys, got {list(bias)}."
        )


def expect(role: str, spec: TensorSpec | None, shape: Shape) -> None:
    """Check the shape of an optional input; -1 stands for any extent.

    Raises:
        InputError: It is another.
    """
    if spec is None:
        return
    if spec.rank != len(shape) or any(want not in (-1, have) for have, want in zip(spec.shape, shape, strict=True)):
        text = ", ".join("rows" if want < 0 else str(want) for want in shape)
        raise InputError(f"{role} must be [{text}], got {spec}.")
