"""Cases of attention of com.microsoft: masks, pasts, buffers with room, grouped heads, packed sequences, positions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from tests.ops.microsoft.composed import Array, Composed, expect
from tests.ops.microsoft.references import attend, relative_buckets
from tests.ops.microsoft.samples import HALF, NARROW, flags, ints, sample

HEADS = {"num_heads": 2}
BATCH, ROWS = 2, 5
ENDS, RANGES = ints(3, 5), ints(3, 5, 1, 0)
PAST = sample(2, BATCH, 2, 3, 4, seed=5)


def projected_cases() -> list[Composed]:
    x, weights, bias = sample(BATCH, ROWS, 6), sample(6, 24, seed=1), sample(24, seed=2)
    rows, squares = flags(BATCH, ROWS), flags(BATCH, ROWS, ROWS, seed=1)
    masks = {"none": None, "ends": ENDS, "ranges": RANGES, "rows": rows, "squares": squares}
    cases = [
        Composed(f"{name}-{causal}", "Attention", (x, weights, bias, mask), {**HEADS, "unidirectional": causal})
        for name, mask in masks.items()
        for causal in (0, 1)
    ]
    both, biases = (True, True), {"all": sample(BATCH, 2, ROWS, ROWS, seed=3), "shared": sample(1, 1, ROWS, ROWS)}
    cases += [
        Composed(f"bias-{name}", "Attention", (x, weights, bias, None, None, b), HEADS) for name, b in biases.items()
    ]
    longer = flags(BATCH, ROWS + 3, seed=2)
    sizes, scaled = {**HEADS, "qkv_hidden_sizes": [8, 8, 4]}, {**HEADS, "scale": 0.3}
    unbiased = Composed("", "Attention", (x, weights, np.zeros_like(bias)), scaled)
    return [
        *cases,
        Composed("mask and bias", "Attention", (x, weights, bias, rows, None, biases["all"]), HEADS),
        # onnxruntime 1.31 reads a bias that is absent.
        Composed("no bias", "Attention", (x, weights), scaled, expected=expect(unbiased)),
        Composed("present", "Attention", (x, weights, bias), HEADS, outputs=both),
        Composed("past", "Attention", (x, weights, bias, None, PAST), HEADS, outputs=both),
        Composed(
            "past-causal", "Attention", (x, weights, bias, longer, PAST), {**HEADS, "unidirectional": 1}, outputs=both
        ),
        Composed("past-ends", "Attention", (x, weights, bias, ints(4, 8), PAST), HEADS, outputs=both),
        Composed("sizes", "Attention", (x, weights[:, :20].copy(), bias[:20].copy()), sizes),
        Composed("half", "Attention", tuple(each.astype(HALF) for each in (x, weights, bias)), HEADS),
        Composed("filter", "Attention", (x, weights, bias, rows), {**HEADS, "mask_filter_value": -3.0}),
    ]


def multi_head_cases() -> list[Composed]:
    q, k, v = sample(BATCH, ROWS, 8), sample(BATCH, 7, 8, seed=1), sample(BATCH, 7, 8, seed=2)
    bias, name = sample(24, seed=3), "MultiHeadAttention"
    masks = {"ends": ENDS, "rows": flags(BATCH, 7), "squares": flags(BATCH, ROWS, 7)}
    cases = [Composed(f"heads-{key}", name, (q, k, v, None, mask), HEADS) for key, mask in masks.items()]
    crossed = (q, sample(BATCH, 2, 7, 4), sample(BATCH, 2, 7, 4, seed=1))
    own, past = (q, sample(BATCH, ROWS, 8, seed=4), sample(BATCH, ROWS, 8, seed=5)), tuple(PAST)
    three, causal = (True, True, True), {**HEADS, "unidirectional": 1}
    one = tuple(each[:, :1].copy() for each in own)
    room = (sample(BATCH, 2, 9, 4), sample(BATCH, 2, 9, 4, seed=1))
    wide = (q, k, sample(BATCH, 7, 12), sample(28))
    return [
        *cases,
        *(Composed(f"heads-{t}", name, tuple(x.astype(t) for x in (q, k, v, bias)), HEADS) for t in NARROW),
        Composed("heads-wide values", name, wide, HEADS),
        Composed("heads-attention_bias", name, (q, k, v, None, None, sample(1, 2, ROWS, 7)), HEADS),
        Composed(
            "heads-mask and bias", name, (q, k, v, None, masks["rows"], sample(BATCH, 1, ROWS, 7)), HEADS, terms=20000
        ),
        Composed("heads-crossed", name, crossed, {**HEADS, "scale": 0.7}),
        Composed("heads-crossed, bias of queries", name, (*crossed, bias), HEADS),
        Composed("heads-present", name, own, causal, outputs=three),
        Composed("heads-past", name, (*own, bias, None, None, *past), causal, outputs=three),
        Composed("heads-past mask", name, (*own, None, flags(BATCH, 8), None, *past), HEADS, outputs=three),
        Composed("heads-room", name, (*one, None, None, None, *room, ints(3)), HEADS, outputs=three),
        packed_case("heads-packed", (q, own[1], own[2]), bias, 3),
        packed_case("heads-packed pair", (q, k, v), None, 2),
        *decoder_cases(one, room),
    ]


def packed_case(name: str, parts: tuple[Array, Array, Array], bias: Array | None, count: int) -> Composed:
    """Return attention over parts packed in one tensor; onnxruntime has a kernel for the parts apart only."""
    apart = expect(Composed("", "MultiHeadAttention", (*parts, bias), HEADS))
    stacked = np.stack([each.reshape(*each.shape[:2], 2, 4) for each in parts[-count:]], axis=3)
    inputs = (stacked, None, None, bias) if count == 3 else (parts[0], stacked, None, bias)
    return Composed(name, "MultiHeadAttention", inputs, HEADS, expected=apart)


def decoder_cases(one: tuple[Array, ...], room: tuple[Array, Array]) -> list[Composed]:
    """Return attention of one new row."""
    name, three, shared = "DecoderMaskedMultiHeadAttention", (True,) * 3, {**HEADS, "past_present_share_buffer": 1}
    q, k, v = one
    crossed, mask = (q, *(each[:, :, :7].copy() for each in room)), flags(BATCH, 6)
    past = tuple(each[:, :, :5].copy() for each in room)
    grown = (q, k, v, None, None, None, *past)
    masked = (q, k, v, None, mask, None, *past)
    weights, x = sample(6, 24), sample(BATCH, 1, 6)
    both = np.stack(past)
    whole = (x, weights, sample(24), mask, both)
    return [
        Composed("decoder", name, one, HEADS),
        Composed("decoder-crossed", name, crossed, HEADS),
        Composed("decoder-room", name, (*one, None, None, *room, ints(5)), shared, outputs=three),
        Composed(
            "decoder-packed", name, (np.concatenate(one, 2),), HEADS, expected=expect(Composed("", name, one, HEADS))
        ),
        Composed(
            "decoder-past",
            name,
            (*one, None, None, *past),
            HEADS,
            outputs=three,
            expected=expect(Composed("", "MultiHeadAttention", grown, HEADS, outputs=three)),
        ),
        Composed(
            "decoder-mask",
            name,
            (*one, mask, None, *past),
            HEADS,
            outputs=three,
            expected=expect(Composed("", "MultiHeadAttention", masked, HEADS, outputs=three)),
        ),
        Composed(
            "decoder-self",
            "DecoderMaskedSelfAttention",
            (*whole, None, ints(5)),
            HEADS,
            outputs=(True, True),
            expected=expect(Composed("", "Attention", whole, HEADS, outputs=(True, True))),
        ),
    ]


def grouped(
    name: str,
    rows: int,
    past: int,
    last: tuple[int, ...],
    total: int,
    *,
    pairs: int = 0,
    is_packed: bool = False,
    more: tuple[Array | None, ...] = (),
    outputs: tuple[bool, ...] = (True, True, True),
    **attributes: Any,
) -> Composed:
    """Return a case of four heads of 16 over two heads of keys."""
    batch = len(last)
    q, k, v = (sample(batch, rows, heads * 16, seed=seed) for seed, heads in enumerate((4, 2, 2)))
    given: tuple[Array | None, ...] = (np.concatenate((q, k, v), 2), None, None) if is_packed else (q, k, v)
    held = tuple(sample(batch, 2, past, 16, seed=seed) if past else None for seed in (3, 4))
    tables = tuple(sample(64, pairs, seed=seed) if pairs else None for seed in (5, 6))
    inputs = (*given, *held, ints(*last), np.array(total, np.int32), *tables, *more)
    whole = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(pairs > 0), **attributes}
    return Composed(name, "GroupQueryAttention", inputs, whole, (6,), outputs)


def grouped_cases() -> list[Composed]:
    sinks = sample(4, scale=3)
    return [
        grouped("prompt", 5, 0, (4, 4), 5),
        grouped("prompt-packed", 5, 0, (4, 4), 5, is_packed=True, pairs=8),
        grouped("prompt-turned", 5, 0, (4, 4), 5, pairs=8, rotary_interleaved=1),
        grouped("prompt-room", 5, 12, (4, 4), 5, outputs=(True,)),
        grouped("prompt-both ways", 5, 0, (4, 4), 5, causal=0),
        grouped("prompt-bias", 5, 0, (4, 4), 5, more=(None, sample(1, 4, 5, 5))),
        grouped("prompt-positions", 5, 0, (4, 4), 5, pairs=8, more=(np.arange(3, 8)[None].repeat(2, 0),)),
        grouped("prompt-sinks", 5, 0, (4, 4), 5, more=(None, None, sinks)),
        grouped("prompt-smooth", 5, 0, (4, 4), 5, smooth_softmax=1),
        grouped("prompt-long sinks", 70, 0, (69,), 70, more=(None, None, sinks)),
        grouped("prompt-window", 9, 0, (8, 8), 9, local_window_size=3),
        grouped("prompt-weights", 5, 0, (4, 4), 5, qk_output=2, outputs=(True,) * 4),
        grouped("next", 1, 6, (6, 6), 7, softcap=0.5, scale=0.7),
        grouped("next-turned", 1, 6, (6, 6), 7, pairs=4 * 2),
        grouped("next-window", 1, 8, (8, 8), 9, local_window_size=3),
        grouped("next-sinks of many keys", 1, 600, (600, 600), 601, more=(None, None, sinks)),
        grouped("more", 3, 6, (8,), 9, pairs=8, more=(np.arange(6, 9)[None],)),
    ]


def rotary_cases() -> list[Composed]:
    tables = (sample(20, 2, seed=1), sample(20, 2, seed=2))
    positions = np.random.default_rng(0).integers(0, 20, (BATCH, ROWS))
    name = "RotaryEmbedding"
    return [
        Composed("turn-first", name, (sample(BATCH, ROWS, 8), np.array([3]), *tables)),
        Composed("turn-interleaved", name, (sample(BATCH, ROWS, 8), positions, *tables), {"interleaved": 1}),
        Composed("turn-heads", name, (sample(BATCH, 2, ROWS, 4), positions, *tables)),
        Composed(
            "turn-part",
            name,
            (sample(BATCH, ROWS, 16), positions, *tables),
            {"num_heads": 2, "rotary_embedding_dim": 4},
        ),
    ]


def packing_cases() -> list[Composed]:
    counts, x = ints(1, 4, 2), sample(3, 4, 8)
    is_token = np.arange(4) < counts[:, None]
    rows, places = x[is_token], np.argsort(~is_token, axis=None, kind="stable").astype(np.int32).reshape(3, 4)
    sums = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    k, v, bias = sample(7, 8, seed=1), sample(7, 8, seed=2), sample(24, seed=3)
    weights, narrow = sample(5, 24, seed=4), sample(7, 5)
    added = sample(1, 2, 4, 4)
    packed = np.stack([each.reshape(7, 2, 4) for each in (rows, k, v)], axis=2)

    def each(q: Array, k: Array, v: Array, bias: Array | None = None) -> Array:
        ranges = list(pairwise(sums))
        cut = [None if bias is None else bias[0, :, : end - start, : end - start] for start, end in ranges]
        parts = [attend(q[s:e], k[s:e], v[s:e], 2, None, b) for (s, e), b in zip(ranges, cut, strict=True)]
        return np.concatenate(parts).astype(np.float32)

    whole = each(rows + bias[:8], k + bias[8:16], v + bias[16:])
    projected = narrow @ weights + bias
    return [
        Composed("restore", "RestorePadding", (rows, places), expected=(x * is_token[..., None],)),
        Composed(
            "packed heads", "PackedMultiHeadAttention", (rows, k, v, bias, places, sums), HEADS, expected=(whole,)
        ),
        Composed(
            "packed all", "PackedMultiHeadAttention", (packed, None, None, bias, places, sums), HEADS, expected=(whole,)
        ),
        Composed(
            "packed bias",
            "PackedMultiHeadAttention",
            (rows, k, v, None, places, sums, added),
            HEADS,
            expected=(each(rows, k, v, added),),
        ),
        Composed(
            "packed projection",
            "PackedAttention",
            (narrow, weights, bias, places, sums),
            HEADS,
            expected=(each(projected[:, :8], projected[:, 8:16], projected[:, 16:]),),
        ),
    ]


def position_cases() -> list[Composed]:
    cases = []
    for is_bidirectional in (0, 1):
        table, lengths = sample(8, 3), (np.array([12]), np.array([14]))
        buckets = relative_buckets(12, 14, 8, 10, bool(is_bidirectional))
        expected = table.reshape(3, 8)[:, buckets][None]
        attributes = {"max_distance": 10, "is_bidirectional": is_bidirectional}
        cases.append(
            Composed(
                f"relative-{is_bidirectional}",
                "RelativePositionBias",
                (table, *lengths),
                attributes,
                (1, 2),
                expected=(expected,),
            )
        )
    x, added, positions = sample(2, 3, 8), sample(8, seed=1), sample(1, 2, 3, 3, seed=2)
    weight, bias, eco = sample(4, 8, seed=3), sample(8, seed=4), sample(1, 2, 1, 1, seed=5)
    heads = (x + added).reshape(2, 3, 2, 4).transpose(0, 2, 1, 3)
    gates = 1 / (1 + np.exp(-(heads @ weight + bias).reshape(2, 2, 3, 2, 4).sum(-1)))
    wanted = (gates[..., :1] * (gates[..., 1:] * eco - 1) + 2) * positions
    places = np.arange(6, dtype=np.int32).reshape(2, 3)
    given = (added, positions, weight, bias, eco)
    return [
        *cases,
        Composed("gated", "GatedRelativePositionBias", (x, *given), HEADS, expected=(wanted,)),
        Composed(
            "gated-packed", "GatedRelativePositionBias", (x.reshape(6, 8), *given, places), HEADS, expected=(wanted,)
        ),
    ]
