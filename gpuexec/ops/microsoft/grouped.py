"""GroupQueryAttention: shared key heads, rotary positions, a KV cache in a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Composite, Made, Sketch, composite
from gpuexec.ops.microsoft.activation import DOMAIN
from gpuexec.ops.microsoft.attention import MASKED, SOFTMAX
from gpuexec.ops.microsoft.cache import CachePlaces, PlaceRows
from gpuexec.ops.microsoft.expected import GroupedInput
from gpuexec.ops.microsoft.rotary import RotateHeads
from gpuexec.ops.nn.attention import AttentionOverCache

_REFUSED = {"k_quant_type": "NONE", "v_quant_type": "NONE", "sliding_window_cache": 0}


@composite("GroupQueryAttention", DOMAIN)
@dataclass(frozen=True, slots=True)
class GroupQueryAttention(Composite):
    """Attention of many query heads over fewer key heads, with a past or a buffer with room.

    ``seqlens_k`` holds the position of each sequence's last key, ``total_sequence_length`` the largest number of keys:
    where it equals the number of new rows they are the first. Present and past have as many rows, or as many as the
    total or the new rows where that is more. With norm weights each head of queries and keys is first divided by its
    root mean square.
    """

    inputs: ClassVar[int] = 17
    kv_num_heads: int
    num_heads: int
    causal: int = 1
    do_rotary: int = 0
    k_quant_type: str = "NONE"
    kv_cache_bit_width: int = 0
    local_window_size: int = -1
    qk_norm_epsilon: float = 9.999999974752427e-07
    qk_output: int = 0
    rotary_interleaved: int = 0
    scale: float | None = None
    sliding_window_cache: int = 0
    smooth_softmax: int = -1
    softcap: float = 0.0
    v_quant_type: str = "NONE"
    example = (
        "float32[2,5,64] float32[2,5,32] float32[2,5,32] - - int32[2] int32[]=5 - - - float32[1,4,5,5] "
        "kv_num_heads=2 num_heads=4"
    )

    def __post_init__(self) -> None:
        """Check for unsupported and contradictory attributes."""
        for name, only in _REFUSED.items():
            if getattr(self, name) != only:
                raise InputError(f"{self.name} expects {name} {only!r}, got {getattr(self, name)!r}.")
        if self.local_window_size != -1 and not self.causal:
            raise InputError(f"{self.name} expects local_window_size -1 with causal 0, got {self.local_window_size}.")
        if self.local_window_size != -1 and self.local_window_size < 1:
            raise InputError(f"{self.name} expects local_window_size -1 or from 1 on, got {self.local_window_size}.")
        if self.qk_output not in (0, 1, 2):
            raise InputError(f"{self.name} expects qk_output 0, 1 or 2, got {self.qk_output}.")

    def draw(self, sketch: Sketch, *inputs: Value | None) -> Made:
        """Split heads, rotate them, put them into the buffers, and attend."""
        query, key, value, past_key, past_value, last, total, cosines, sines, positions = inputs[:10]
        bias, sinks, _, _, q_norm, k_norm = inputs[10:16]
        self._check(inputs)
        expected = GroupedInput(self.num_heads, self.kv_num_heads)
        query = sketch.add(expected, query, key, value, past_key, past_value, last, bias, q_norm, k_norm)
        q, k, v = self._draw_parts(sketch, query, key, value)
        if q_norm is not None:
            q, k = (
                self._normalize(sketch, q, q_norm, self.num_heads),
                self._normalize(sketch, k, k_norm, self.kv_num_heads),
            )
        starts, lengths, places = sketch.add_all(CachePlaces(are_last=1, is_causal=self.causal), 3, last, query, total)
        if self.do_rotary:
            at = places if positions is None else positions
            q = sketch.add(RotateHeads(self.num_heads, self.rotary_interleaved), q, at, cosines, sines)
            k = sketch.add(RotateHeads(self.kv_num_heads, self.rotary_interleaved), k, at, cosines, sines)
        k, v = (sketch.add("gpuexec.SplitHeads", part, heads=self.kv_num_heads) for part in (k, v))
        keys, values = (
            sketch.add(PlaceRows(), old, new, starts, total) for old, new in ((past_key, k), (past_value, v))
        )
        op = AttentionOverCache(
            is_causal=self.causal,
            left_window_size=self.local_window_size - 1 if self.local_window_size > 0 else -1,
            q_num_heads=self.num_heads,
            scale=self.scale or None,
            softcap=self.softcap,
            qk_matmul_output_mode=MASKED if self.qk_output == 1 else SOFTMAX,
        )
        if sinks is None and self.smooth_softmax > 0:
            zero = sketch.add("gpuexec.NumberLike", query, value=0.0)
            sinks = sketch.add("Expand", zero, sketch.ints(self.num_heads))
        y, scores = sketch.add_all(op, 2, q, keys, values, bias, None, lengths, sinks)
        return y, keys, values, scores if self.qk_output else None

    def _check(self, inputs: tuple[Value | None, ...]) -> None:
        names = ("key", "value", "past_key", "past_value")
        key, value, past_key, past_value = inputs[1:5]
        if (key is None) != (value is None) or (past_key is None) != (past_value is None):
            raise InputError(f"{self.name} expects {' and '.join(names[:2])}, and {' and '.join(names[2:])}, together.")
        if inputs[5] is None or inputs[6] is None:
            raise InputError(f"{self.name} expects seqlens_k and total_sequence_length.")
        if self.do_rotary and (inputs[7] is None or inputs[8] is None):
            raise InputError(f"{self.name} expects cos_cache and sin_cache with do_rotary.")
        if inputs[12] is not None or inputs[13] is not None:
            raise InputError(f"{self.name} expects no k_scale and v_scale (caches of narrow types).")
        if inputs[16] is not None:
            raise InputError(f"{self.name} expects no query_seqlens (chunks that are padded on the right).")
        if (inputs[14] is None) != (inputs[15] is None):
            raise InputError(f"{self.name} expects q_norm_weight and k_norm_weight together.")

    def _draw_parts(
        self, sketch: Sketch, query: Value | None, key: Value | None, value: Value | None
    ) -> tuple[Value, Value, Value]:
        """Return queries, keys and values, each with three axes; without keys, the first input has all."""
        assert query is not None
        if key is not None and value is not None:
            return query, key, value
        heads = self.num_heads + 2 * self.kv_num_heads
        apart = sketch.reshape(query, 0, 0, heads, -1)
        parts, first = [], 0
        for count in (self.num_heads, self.kv_num_heads, self.kv_num_heads):
            parts.append(sketch.reshape(sketch.take(apart, 2, first, first + count), 0, 0, -1))
            first += count
        return parts[0], parts[1], parts[2]

    def _normalize(self, sketch: Sketch, x: Value, weight: Value | None, heads: int) -> Value:
        """Return each head of ``x`` divided by its root mean square, times the weight."""
        apart = sketch.reshape(x, 0, 0, heads, -1)
        return sketch.reshape(sketch.add("RMSNormalization", apart, weight, epsilon=self.qk_norm_epsilon), 0, 0, -1)
