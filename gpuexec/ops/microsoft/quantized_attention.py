"""QAttention and QEmbedLayerNormalization: operators with quantised weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.attention import Scoring, draw_parts, extend_both
from gpuexec.ops.microsoft.embedding import EmbedLayerNormalization
from gpuexec.ops.microsoft.expected import ProjectedInput


@composite("QAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class QAttention(Composite):
    """The projection as a product of bytes, then attention over its parts as in Attention, perhaps with a past."""

    inputs: ClassVar[int] = 9
    num_heads: int
    do_rotary: int = 0
    mask_filter_value: float | None = None
    past_present_share_buffer: int = 0
    scale: float | None = None
    unidirectional: int = 0
    example = "uint8[2,4,8] int8[8,18] float32[18] float32[] float32[] int32[2] uint8[] int8[] num_heads=2"

    def __post_init__(self) -> None:
        """Check for unsupported attributes."""
        for role in ("do_rotary", "past_present_share_buffer"):
            if getattr(self, role):
                raise InputError(f"{self.name} expects {role} 0, got {getattr(self, role)}.")

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Project, split heads, extend the past, and attend."""
        x, weight, bias, x_scale, weight_scale, mask, x_zero, weight_zero, past = inputs
        x = sketch.add(ProjectedInput(self.num_heads), x, weight, bias)
        name = f"{DOMAIN}.MatMulIntegerToFloat"
        projected = sketch.add(name, x, weight, x_scale, weight_scale, x_zero, weight_zero, bias)
        q, k, v = draw_parts(sketch, projected, ())
        k, v = (sketch.add("gpuexec.SplitHeads", part, heads=self.num_heads) for part in (k, v))
        given, present = extend_both(sketch, (q, k, v), past, None, is_wanted=sketch.wants(1))
        scoring = Scoring(self.num_heads, self.scale, self.mask_filter_value, self.unidirectional)
        y, _ = scoring.draw(sketch, given, mask, None)
        return y, present


@composite("QEmbedLayerNormalization", DOMAIN)
@dataclass(frozen=True, slots=True)
class QEmbedLayerNormalization(Composite):
    """EmbedLayerNormalization whose tables and factors are bytes, each with one scale and zero point."""

    inputs: ClassVar[int] = 18
    epsilon: float = 9.999999960041972e-13
    example = (
        "int32[2,4] int32[2,4] uint8[9,6] uint8[5,6] uint8[2,6] uint8[6] uint8[6] int32[2,4] float32[] float32[] "
        "float32[] float32[] float32[] uint8[] uint8[] uint8[] uint8[] uint8[]"
    )

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Widen, gather, add, normalise."""
        words, segments, *quantised = inputs[:7]
        mask, scales, zeros = inputs[7], inputs[8:13], inputs[13:]
        tables = [
            None if table is None else sketch.add("DequantizeLinear", table, scale, zero)
            for table, scale, zero in zip(quantised, scales, zeros, strict=True)
        ]
        op = EmbedLayerNormalization(self.epsilon)
        return sketch.add_all(op, 2, words, segments, *tables, mask)
