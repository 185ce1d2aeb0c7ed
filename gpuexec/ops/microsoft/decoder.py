"""DecoderMaskedMultiHeadAttention and DecoderMaskedSelfAttention: attention of one new row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.attention import Attention, Scoring, check_past, draw_heads, extend
from gpuexec.ops.microsoft.expected import OneRow


@composite("DecoderMaskedMultiHeadAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class DecoderMaskedMultiHeadAttention(Composite):
    """MultiHeadAttention of one new row, self or cross attention.

    A past in a buffer with room has its rows in order here, as MultiHeadAttention's has; beams are not followed.
    """

    inputs: ClassVar[int] = 11
    num_heads: int
    mask_filter_value: float | None = None
    output_qk: int = 0
    past_present_share_buffer: int = 0
    scale: float | None = None
    example = (
        "float32[2,1,8] float32[2,1,8] float32[2,1,8] - - float32[2,2,9,4] float32[2,2,9,4] int32[1] num_heads=2 "
        "past_present_share_buffer=1"
    )

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Draw the parts of the general attention operator."""
        query, key, value, mask, attention_bias, past_key, past_value, past_length, _, beams, bias = inputs
        if beams is not None:
            raise InputError(f"{self.name} expects no cache_indirection (beams are not followed).")
        shared = past_length if self.past_present_share_buffer else None
        check_past(self.name, past_key, past_value, shared)
        if self.past_present_share_buffer and past_key is not None and shared is None:
            raise InputError(f"{self.name} expects past_sequence_length with a past and past_present_share_buffer.")
        query = sketch.add(OneRow(), query)
        if key is None:  # queries, keys and values side by side
            query, key, value = sketch.add_all("Split", 3, query, axis=-1, num_outputs=3)
        parts = draw_heads(sketch, self.num_heads, (query, key, value), bias)
        given = extend(sketch, parts, (past_key, past_value), shared)
        scoring = Scoring(self.num_heads, self.scale, self.mask_filter_value)
        y, scores = scoring.draw(sketch, given, mask, attention_bias)
        return y, given.keys, given.values, scores


@composite("DecoderMaskedSelfAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class DecoderMaskedSelfAttention(Composite):
    """Attention of one new row, with the projection before it; beams are not followed."""

    inputs: ClassVar[int] = 9
    num_heads: int
    do_rotary: int = 0
    mask_filter_value: float | None = None
    past_present_share_buffer: int = 0
    scale: float | None = None
    example = "float32[2,1,6] float32[6,24] float32[24] int32[2,6] float32[2,2,2,5,4] - int32[1] num_heads=2"

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Draw the parts of the general attention operator."""
        x, weights, bias, mask, past, attention_bias, past_length, _, beams = inputs
        if beams is not None:
            raise InputError(f"{self.name} expects no cache_indirection (beams are not followed).")
        whole = Attention(
            self.num_heads,
            do_rotary=self.do_rotary,
            mask_filter_value=self.mask_filter_value,
            past_present_share_buffer=self.past_present_share_buffer,
            scale=self.scale,
        )
        x = sketch.add(OneRow(), x)
        y, present = sketch.add_all(whole, 2, x, weights, bias, mask, past, attention_bias, past_length)
        return y, present
