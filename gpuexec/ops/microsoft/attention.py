"""Attention (with its projection) and MultiHeadAttention of com.microsoft.

Both become `AttentionOverCache` of ours: heads are views, masks of all forms become one sum (`MaskBias`), and a Concat
makes the present, which may then grow in place. A past that lies in a buffer with room gets its new rows put in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.cache import CachePlaces, PlaceRows
from gpuexec.ops.microsoft.expected import ProjectedInput, WholeBias
from gpuexec.ops.microsoft.mask import MaskBias
from gpuexec.ops.microsoft.projected import ProjectedHeads
from gpuexec.ops.nn.attention import AttentionOverCache
from gpuexec.ops.tensor.copy import Concat

FILTER = -10000.0  # mask_filter_value where none is given
ROWS = 2  # axis of [batch, heads, rows, size]
MASKED, SOFTMAX = 2, 3  # values of qk_matmul_output_mode


@dataclass(frozen=True, slots=True)
class Attended:
    """Queries, keys, values and masks of attention.

    Attributes:
        q: Queries ``[batch, rows, heads * size]``.
        keys: All keys, ``[batch, heads, rows, size]``.
        values: All values, likewise.
        new: The new keys among them, behind a past; None: there is no past, or ``lengths`` says where queries stand.
        lengths: Number of keys of each sequence, where buffers have room for more.
    """

    q: Value
    keys: Value
    values: Value
    new: Value | None = None
    lengths: Value | None = None


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scale of scores, causality, and the form of the masks."""

    heads: int
    scale: float | None
    filter: float | None = None
    is_causal: int = 0
    mode: int = SOFTMAX

    def draw(self, sketch: Sketch, given: Attended, mask: Value | None, bias: Value | None) -> tuple[Value, Value]:
        """Return attention ``[batch, rows, heads * size]`` and the scores."""
        added, has_room = bias, int(given.lengths is not None)
        if mask is not None:
            value = FILTER if self.filter is None else self.filter
            added = sketch.add(MaskBias(value, has_room), given.q, given.keys, mask, bias)
        elif bias is not None:
            added = sketch.add(WholeBias(has_room), bias, given.q, given.keys)
        op = AttentionOverCache(
            is_causal=self.is_causal,
            q_num_heads=self.heads,
            scale=self.scale or None,
            qk_matmul_output_mode=self.mode,
        )
        y, scores = sketch.add_all(op, 2, given.q, given.keys, given.values, added, given.new, given.lengths)
        return y, scores


@composite("MultiHeadAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class MultiHeadAttention(Composite):
    """Attention over projected queries, keys and values, plus their bias, perhaps with a past.

    Keys and values may be packed with the queries or with each other, and may have four axes (a past of a decoder's
    cross attention). With ``past_sequence_length`` the past lies in a buffer with room.
    """

    inputs: ClassVar[int] = 10
    num_heads: int
    mask_filter_value: float | None = None
    scale: float | None = None
    unidirectional: int = 0
    example = "float32[2,5,8] float32[2,7,8] float32[2,7,8] - - float32[1,2,5,7] num_heads=2"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Split heads, extend the past, and attend."""
        query, key, value, bias, mask, attention_bias, past_key, past_value, past_length, beams = inputs
        if beams is not None:
            raise InputError(f"{self.name} expects no cache_indirection (beams are not followed).")
        scoring = Scoring(self.num_heads, self.scale, self.mask_filter_value, self.unidirectional)
        q, k, v = draw_heads(sketch, self.num_heads, (query, key, value), bias)
        check_past(self.name, past_key, past_value, past_length)
        given = extend(sketch, (q, k, v), (past_key, past_value), past_length)
        y, scores = scoring.draw(sketch, given, mask, attention_bias)
        return y, given.keys, given.values, scores


def check_past(name: str, key: Value | None, value: Value | None, length: Value | None) -> None:
    """Check that a past is whole, and there if its length is.

    Raises:
        InputError: It is not.
    """
    if (key is None) != (value is None):
        raise InputError(f"{name} expects past_key and past_value together.")
    if key is None and length is not None:
        raise InputError(f"{name} expects past_key and past_value with past_sequence_length.")


def draw_heads(
    sketch: Sketch, heads: int, given: tuple[Value | None, Value | None, Value | None], bias: Value | None
) -> tuple[Value, Value, Value]:
    """Return queries with three axes, and keys and values with four.

    Without keys all three are packed in the first input; without values, keys and values in the second.
    """
    query, key, value = given
    if key is None and value is not None:
        raise InputError("values without keys: expected both, packed keys and values, or neither.")
    packed, of_query, of_keys = ((0, 1, 2), 3, 3) if key is None else ((0, 0, 1), 1, 1 if value is not None else 2)
    key, value = (query, query) if key is None else (key, key if value is None else value)
    k = sketch.add(ProjectedHeads(heads, 1, packed[1], of_keys), key, bias)
    v = sketch.add(ProjectedHeads(heads, 2, packed[2], of_keys), value, bias)
    others = () if bias is None else (k, v)  # with the queries they give the width of the bias
    q = sketch.add(ProjectedHeads(heads, 0, packed[0], of_query, joined=1), query, bias, *others)
    return q, k, v


def extend(
    sketch: Sketch,
    given: tuple[Value, Value, Value],
    past: tuple[Value | None, Value | None],
    past_length: Value | None,
) -> Attended:
    """Return keys and values extended by new ones behind a past, or in a buffer with room."""
    q, k, v = given
    past_key, past_value = past
    if past_key is None or past_value is None:
        return Attended(q, k, v)
    if past_length is None:
        keys, values = sketch.add(Concat(ROWS), past_key, k), sketch.add(Concat(ROWS), past_value, v)
        return Attended(q, keys, values, new=k)
    starts, lengths = sketch.add_all(CachePlaces(), 2, past_length, q)
    keys, values = (sketch.add(PlaceRows(), old, new, starts) for old, new in ((past_key, k), (past_value, v)))
    return Attended(q, keys, values, lengths=lengths)


@composite("Attention", DOMAIN)
@dataclass(frozen=True, slots=True)
class Attention(Composite):
    """``x @ weights + bias``, cut into queries, keys and values, and attention over them, perhaps with a past.

    Past and present are one tensor each, ``[2, batch, heads, rows, size]``.
    """

    inputs: ClassVar[int] = 7
    num_heads: int
    do_rotary: int = 0
    mask_filter_value: float | None = None
    past_present_share_buffer: int = 0
    qkv_hidden_sizes: tuple[int, ...] = ()
    rotary_embedding_dim: int = 0
    scale: float | None = None
    unidirectional: int = 0
    example = "float32[2,5,6] float32[6,24] float32[24] - - float32[2,2,5,5] num_heads=2"

    def __post_init__(self) -> None:
        """Check for unsupported attributes."""
        if self.do_rotary:
            raise InputError(
                f"{self.name} expects do_rotary 0, got {self.do_rotary}; RotaryEmbedding can stand before it."
            )
        if self.qkv_hidden_sizes and len(self.qkv_hidden_sizes) != 3:
            raise InputError(f"{self.name} expects three qkv_hidden_sizes, got {list(self.qkv_hidden_sizes)}.")

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Project, split heads, extend the past, and attend."""
        x, weights, bias, mask, past, attention_bias, past_length = inputs
        if self.past_present_share_buffer and (past is None or past_length is None):
            raise InputError(f"{self.name} expects past and past_sequence_length with past_present_share_buffer.")
        x = sketch.add(ProjectedInput(self.num_heads, self.qkv_hidden_sizes), x, weights, bias)
        projected = sketch.add("MatMul", x, weights)
        projected = projected if bias is None else sketch.add("Add", projected, bias)
        q, k, v = draw_parts(sketch, projected, self.qkv_hidden_sizes)
        k, v = (sketch.add("gpuexec.SplitHeads", part, heads=self.num_heads) for part in (k, v))
        if not self.past_present_share_buffer:
            past_length = None
        is_one = len(set(self.qkv_hidden_sizes[1:])) < 2  # else keys and values don't fit into one tensor
        is_wanted = sketch.wants(1) and is_one
        given, present = extend_both(sketch, (q, k, v), past, past_length, is_wanted=is_wanted)
        scoring = Scoring(self.num_heads, self.scale, self.mask_filter_value, self.unidirectional)
        y, _ = scoring.draw(sketch, given, mask, attention_bias)
        return y, present


def draw_parts(sketch: Sketch, projected: Value, sizes: tuple[int, ...]) -> tuple[Value, Value, Value]:
    """Return packed queries, keys and values as views: equal parts, or parts of given sizes."""
    if sizes:
        q, k, v = sketch.add_all("Split", 3, projected, sketch.ints(*sizes), axis=-1)
    else:
        q, k, v = sketch.add_all("Split", 3, projected, axis=-1, num_outputs=3)
    return q, k, v


def extend_both(
    sketch: Sketch, given: tuple[Value, Value, Value], past: Value | None, past_length: Value | None, *, is_wanted: bool
) -> tuple[Attended, Value | None]:
    """Extend a past that holds keys and values in one tensor, as `extend` does; return that too, if it is wanted."""
    q, k, v = given
    if past is None and not is_wanted:
        return Attended(q, k, v), None
    both = sketch.add(Concat(0), *(sketch.add("Unsqueeze", each, sketch.ints(0)) for each in (k, v)))
    if past is None:
        return Attended(q, k, v), both
    lengths = None
    if past_length is None:
        present = sketch.add(Concat(1 + ROWS), past, both)
    else:
        starts, lengths = sketch.add_all(CachePlaces(), 2, past_length, q)
        present = sketch.add(PlaceRows(), past, both, starts)
    keys, values = (sketch.pick(present, 0, index) for index in (0, 1))
    return Attended(q, keys, values, new=k if past_length is None else None, lengths=lengths), present
