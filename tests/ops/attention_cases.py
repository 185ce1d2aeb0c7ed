"""Attention cases: sizes, attributes, masks, caches, and non-finite numbers."""

from __future__ import annotations

import dataclasses

import numpy as np

from gpuexec.ir.spec import BFLOAT16
from gpuexec.ops.nn.attention_operands import FLOATS, MASK_TYPES
from tests.ops.attention_oracle import INF, attention, by_rows, in_double, sample
from tests.ops.harness import Case

ALL, SCORES = (True,) * 4, (True, False, False, True)
NAN = np.nan
HALVES = (np.dtype(np.float16), BFLOAT16)


def sizes_cases() -> list[Case]:
    """Shapes: tiles that are partly filled, heads that share keys, and each way to divide the work."""
    rows = {
        "plain": (2, 3, 3, 4, 6, 8, 8),
        "shared-keys": (2, 4, 2, 3, 5, 8, 8),
        "one-head-of-keys": (1, 5, 1, 3, 7, 4, 6),
        "one-key": (1, 1, 1, 1, 1, 1, 1),
        "one-tile": (1, 1, 1, 64, 64, 32, 128),
        "beyond-one-tile": (1, 1, 1, 65, 65, 33, 129),
        "tile-across-heads": (1, 3, 1, 40, 20, 8, 8),
        "deep": (1, 2, 1, 3, 9, 300, 10),
        "wide": (1, 1, 1, 17, 9, 10, 300),
        "head-of-256": (1, 2, 2, 2, 40, 256, 256),
        "decoding": (1, 8, 2, 1, 600, 16, 20),
        "decoding-one-chunk": (2, 4, 4, 1, 256, 8, 8),
        "few-rows-beyond-one-chunk": (1, 1, 1, 16, 257, 8, 8),
        "many-rows-in-chunks": (1, 2, 1, 20, 300, 8, 130),
        "most-rows-in-chunks": (1, 1, 1, 64, 257, 4, 4),
        "too-many-rows-for-chunks": (1, 1, 1, 65, 300, 4, 4),
    }
    return [
        *(attention(id, sizes) for id, sizes in rows.items()),
        *(attention(f"{id}-double", sizes, np.float64) for id, sizes in rows.items() if id[0] in "bdmw"),
        *(in_double(attention(f"{id}-half", rows[id], np.float16)) for id in ("plain", "decoding", "beyond-one-tile")),
        in_double(attention("decoding-bfloat16", rows["decoding"], BFLOAT16)),
        attention("flat", rows["shared-keys"], flat=True),
        attention("flat-decoding", rows["decoding"], flat=True, outputs=SCORES),
    ]


def attribute_cases() -> list[Case]:
    sizes, tall = (2, 4, 2, 3, 5, 8, 6), (1, 2, 1, 70, 75, 4, 4)
    modes = [
        attention(
            f"mode{mode}-softcap{cap}", sizes, outputs=SCORES, qk_matmul_output_mode=mode, is_causal=1, softcap=cap
        )
        for mode in range(4)
        for cap in (0.0, 0.7)
    ]
    precisions = [
        in_double(attention(f"precision{code}-{t.name}", sizes, t, outputs=SCORES, softmax_precision=code))
        for code in (1, 10, 11, 16)
        for t in FLOATS
    ]
    windows = [
        attention(f"window-{left}-{right}-{causal}", tall, opset=25, left_window_size=left, right_window_size=right,
                  is_causal=causal)
        for left, right, causal in ((2, -1, 0), (-1, 3, 0), (0, 0, 0), (1, 2, 0), (4, 2, 1), (200, 200, 0))
    ]  # fmt: skip
    return [
        *(by_rows(case) for case in modes),
        *precisions,
        *windows,
        attention("causal", tall, is_causal=1),
        attention("causal-few-keys", (1, 2, 1, 9, 4, 4, 4), is_causal=1),
        attention("scaled", sizes, scale=0.3),
        attention("softcap", sizes, softcap=0.5),
        attention("heads-of-four-axes", sizes, opset=23, q_num_heads=4, kv_num_heads=2),
        by_rows(attention("score-beyond-half", (1, 1, 1, 2, 3, 64, 4), np.float16, outputs=SCORES, scale=1.0)),
        by_rows(attention("softmax-of-all-keys", sizes, outputs=SCORES, qk_matmul_output_mode=3)),
    ]


def mask_cases() -> list[Case]:
    sizes = (2, 4, 2, 3, 6, 8, 8)
    random = np.random.default_rng(5)
    shapes = {"1d": (6,), "2d": (3, 6), "3d": (4, 1, 6), "4d": (2, 1, 3, 6), "per-head": (2, 4, 3, 6), "short": (3, 4)}
    masks = {f"bool-{id}": random.random(shape) > 0.3 for id, shape in shapes.items()}
    masks |= {f"float-{id}": sample(shape) for id, shape in shapes.items()}
    masks["infinite"] = np.where(masks["bool-2d"], sample((3, 6)), np.float32(-INF))
    masks["none-left"] = np.array([[True] * 6, [False] * 6, [False, True] * 3])
    masks["none-left-float"] = np.where(masks["none-left"], np.float32(0.5), np.float32(-INF))
    masks["short-by-all"] = np.zeros((3, 0), np.bool_)
    types = {f"type-{t.name}": (3 * sample((3, 6))).astype(t) for t in MASK_TYPES}
    signed = {id: mask for id, mask in types.items() if mask.dtype.kind not in "u"}
    signed |= {id: (mask % 5).astype(mask.dtype) for id, mask in types.items() if mask.dtype.kind == "u"}
    # A mask of one axis and no causality is what the reference takes; of none left it makes what we make.
    return [
        *(attention(id, sizes, mask=mask) for id, mask in masks.items() if id != "short-by-all"),
        by_rows(attention("rounded", sizes, np.float16, mask=np.float32([[2049, 2048, 2047, 0, 2048, 2049]]))),
        by_rows(attention("short-by-all", sizes, mask=masks["short-by-all"])),
        *(by_rows(attention(id, sizes, mask=mask)) for id, mask in signed.items()),
        *(by_rows(attention(f"{id}-scores", sizes, mask=masks[id], outputs=SCORES, qk_matmul_output_mode=mode,
                            is_causal=1)) for id in ("bool-short", "infinite", "none-left") for mode in (2, 3)),
        *(in_double(attention(f"{t.name}-mask", sizes, t, mask=sample((3, 6), t))) for t in HALVES),
        attention("half-decoding-mask", (1, 4, 2, 1, 600, 8, 8), mask=random.random((1, 600)) > 0.5),
    ]  # fmt: skip


def cache_cases() -> list[Case]:
    sizes, decoding = (2, 4, 2, 3, 3, 8, 6), (1, 4, 2, 1, 1, 8, 8)
    types = [attention(f"past-{t.name}", sizes, t, past=5, outputs=ALL) for t in FLOATS]
    lengths = [
        attention(f"lengths-{causal}", (3, 2, 1, 4, 7, 8, 8), lengths=(7, 4, 2), is_causal=causal) for causal in (0, 1)
    ]
    return [
        *(in_double(case) for case in types),
        attention("past-causal", sizes, past=5, outputs=ALL, is_causal=1),
        attention("past-flat", sizes, past=5, outputs=ALL, is_causal=1, flat=True),
        attention("past-opset23", sizes, past=2, outputs=ALL, opset=23),
        attention("past-window", sizes, past=5, outputs=ALL[:3], opset=25, left_window_size=3, is_causal=1),
        attention("past-decoding", decoding, past=700, outputs=ALL[:3], is_causal=1),
        attention("past-mask", sizes, past=4, outputs=ALL[:3], mask=np.tri(3, 7, 3, dtype=np.bool_)),
        attention("past-alone", sizes, past=4),
        attention("past-other-queries", (1, 2, 2, 5, 2, 4, 4), past=3, outputs=ALL[:3], is_causal=1),
        attention("present-without-past", sizes, outputs=ALL),
        attention("present-without-past-flat", sizes, outputs=ALL, flat=True),
        *lengths,
        attention("lengths-window", (2, 2, 2, 4, 9, 8, 8), lengths=(9, 5), opset=25, left_window_size=2),
        attention("lengths-mask", (2, 2, 2, 4, 9, 8, 8), lengths=(5, 6), mask=sample((2, 1, 4, 6))),
        by_rows(attention("lengths-out-of-range", (3, 2, 2, 2, 5, 4, 4), lengths=(-3, 9, 0), outputs=SCORES,
                          qk_matmul_output_mode=3)),
        by_rows(attention("lengths-extreme", (3, 2, 2, 2, 5, 4, 4), lengths=(2**63 - 1, -(2**63), 4), opset=25,
                          right_window_size=3)),
        by_rows(attention("lengths-decoding", (3, 2, 1, 1, 600, 4, 4), lengths=(1, 256, 300), is_causal=1)),
    ]  # fmt: skip


def special_cases() -> list[Case]:
    sizes = (1, 2, 1, 3, 6, 4, 4)
    empties = {
        "batches": (0, 2, 1, 3, 6, 4, 4),
        "heads": (1, 0, 0, 3, 6, 4, 4),
        "queries": (1, 2, 1, 0, 6, 4, 4),
        "keys": (1, 2, 1, 3, 0, 4, 4),
        "depth": (1, 2, 1, 3, 6, 0, 4),
        "values": (1, 2, 1, 3, 6, 4, 0),
    }
    cases = []
    triangle = np.tri(3, 6, dtype=np.bool_)
    masked = np.where(triangle, np.float32(0), np.float32(-INF))
    for place in (1, 2):
        for value in (NAN, INF, -INF):
            for mask in (triangle, masked.copy()):  # row 0 does not see what rows 1 and 2 see
                case = attention(f"{value}-in-{'QKV'[place]}-{mask.dtype}", sizes, mask=mask)
                x = np.array(case.inputs[place])
                x[0, 0, 1, 2] = value
                cases.append(dataclasses.replace(case, inputs=(*case.inputs[:place], x, *case.inputs[place + 1 :])))
    masked[1, 1] = INF
    masked[2, 0] = NAN
    tiny = attention("weight-of-nothing", sizes)
    q, k, v = (np.array(x) for x in tiny.inputs[:3])
    q[...], k[...] = 30, 0
    k[0, 0, 0], v[0, 0, 1:] = 30, INF
    return [
        *(by_rows(attention(f"no-{id}", row, outputs=SCORES)) for id, row in empties.items()),
        attention("no-keys-but-past", (1, 2, 1, 3, 0, 4, 4), past=2, outputs=ALL[:3]),
        *(by_rows(case) for case in cases),
        by_rows(attention("special-mask", sizes, mask=masked)),
        by_rows(attention("special-mask-weights", sizes, mask=masked, outputs=SCORES, qk_matmul_output_mode=3)),
        by_rows(dataclasses.replace(tiny, inputs=(q, k, v))),
    ]
