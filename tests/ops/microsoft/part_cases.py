"""Cases of the internal operators that com.microsoft's are composed of."""

from __future__ import annotations

import numpy as np

from tests.ops.harness import Array, Case
from tests.ops.microsoft.samples import NARROW, flags, ints, ours, sample

ROOM = {"has_room": 1}


def mask_cases() -> list[Case]:
    cases = []
    batch, heads, rows, keys = 2, 3, 4, 5
    numbers = np.arange(keys)
    squares, rest = flags(batch, rows, keys), sample(batch, heads, rows, keys, seed=1)
    for dtype in NARROW:
        q, k = sample(batch, rows, 6, dtype=dtype), sample(batch, heads, keys, 2, dtype=dtype)
        bias = rest.astype(dtype)
        wide = bias.astype(np.float32)
        lengths = ints(2, 5)
        is_in = numbers < lengths.reshape(2, 1, 1, 1)
        masks: dict[str, tuple[Array | None, Array]] = {
            "ends": (lengths, is_in),
            "many ends": (np.concatenate((lengths, ints(0, 1, 2, 3, 4, 5))), is_in),
            "ranges": (
                ints(5, 4, 1, 0),
                (numbers >= ints(1, 0).reshape(2, 1, 1, 1)) & (numbers < ints(5, 4).reshape(2, 1, 1, 1)),
            ),
            "rows": (squares[:, 0].copy(), squares[:, 0].reshape(2, 1, 1, keys) > 0),
            "squares": (squares, squares[:, None] > 0),
            "fewer": (squares[:, 0, :3].copy(), squares[:, 0, :3].reshape(2, 1, 1, 3) > 0),
        }
        for name, (mask, found) in masks.items():
            added = np.where(found, np.float32(0), np.float32(-9.5))
            fields = {"filter": -9.5, "has_room": int(name == "fewer")}
            cases.append(ours(f"{name}-{dtype}", "MaskBias", (q, k, mask), (added.astype(dtype),), attributes=fields))
            cut = added.shape[3]
            total = (wide[..., :cut] + added).astype(dtype)
            cases.append(ours(f"{name}-bias-{dtype}", "MaskBias", (q, k, mask, bias), (total,), attributes=fields))
        cases.append(
            ours(f"bias-{dtype}", "MaskBias", (q, k, None, bias[:1, :1]), (bias[:1, :1],), attributes={"filter": -1.0})
        )
    whole = flags(batch, 1, 8, 8, seed=2)
    q, k = sample(batch, rows, 6), sample(batch, heads, keys, 2)
    found = np.where(whole[:, :, 1:5, :keys] > 0, np.float32(0), np.float32(-1))
    cases.append(ours("whole", "MaskBias", (q, k, whole), (found,), attributes={"filter": -1.0}))
    empty = (sample(0, rows, 6), sample(0, heads, keys, 2), np.zeros((0, keys), np.int32))
    return [*cases, ours("empty", "MaskBias", empty, (sample(0, 1, 1, keys),), attributes={"filter": -1.0})]


def head_cases() -> list[Case]:
    cases = []
    for dtype in NARROW:
        x, bias = sample(2, 5, 12, dtype=dtype), sample(12 + 12 + 8, dtype=dtype, seed=1)
        apart = x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        for part, first in ((0, 0), (1, 12), (2, 20)):
            added = bias[first : first + 12].reshape(3, 1, 4)
            total = (apart.astype(np.float32) + added.astype(np.float32)).astype(dtype)
            fields = {"heads": 3, "part": part}
            cases.append(ours(f"part{part}-{dtype}", "ProjectedHeads", (x, bias), (total,), attributes=fields))
            joined = total.transpose(0, 2, 1, 3).reshape(2, 5, 12)
            fields = {**fields, "joined": 1}
            cases.append(ours(f"joined{part}-{dtype}", "ProjectedHeads", (x, bias), (joined,), attributes=fields))
    x = sample(2, 5, 12)
    apart, packed = x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3), sample(2, 5, 3, 2, 4)
    shown = packed[:, :, :, 1].transpose(0, 2, 1, 3)
    fields = {"heads": 3, "part": 2, "packed": 1, "parts": 2}
    return [
        *cases,
        ours("plain", "ProjectedHeads", (x,), (apart,), attributes={"heads": 3, "part": 0}),
        ours("plain-joined", "ProjectedHeads", (x,), (x,), attributes={"heads": 3, "part": 0, "joined": 1}),
        ours("four axes", "ProjectedHeads", (apart.copy(), sample(36)), (apart,), attributes={"heads": 3, "part": 1}),
        ours("packed", "ProjectedHeads", (packed,), (shown,), attributes=fields),
        ours(
            "packed-joined",
            "ProjectedHeads",
            (packed,),
            (packed[:, :, :, 1].reshape(2, 5, 12),),
            attributes={**fields, "joined": 1},
        ),
        ours(
            "turned",
            "ProjectedHeads",
            (x.swapaxes(0, 1),),
            (apart.transpose(2, 1, 0, 3),),
            attributes={"heads": 3, "part": 0},
        ),
    ]


def place_cases() -> list[Case]:
    x = sample(2, 3, 4)

    def places(
        name: str, counts: Array, total: Array | None, starts: list[int], lengths: list[int], **fields: int
    ) -> Case:
        first = np.array(starts, np.int64)
        made = (first, np.array(lengths, np.int64), first[:, None] + np.arange(3))
        return ours(name, "CachePlaces", (counts, x, total), made, attributes=fields)

    cases = [
        places("before", ints(4, 7), None, [4, 7], [7, 10]),
        places("one for all", np.array([2]), None, [2, 2], [5, 5]),
        places("a number", np.array(2, np.int32), None, [2, 2], [5, 5]),
        places("last", ints(6, 3), np.array(7, np.int32), [4, 1], [7, 4], are_last=1),
        places("first", ints(2, 1), np.array([3], np.int32), [0, 0], [3, 3], are_last=1),
        places("first, both ways", ints(2, 1), np.array(3, np.int32), [0, 0], [3, 2], are_last=1, is_causal=0),
        places("below", ints(0, 5), np.array(6, np.int32), [0, 3], [1, 6], are_last=1),
        ours(
            "no rows",
            "CachePlaces",
            (ints(4, 7), x[:, :0]),
            (np.array([4, 7]), np.array([4, 7]), np.zeros((2, 0), np.int64)),
        ),
    ]
    for dtype in NARROW:
        old, new = sample(2, 3, 6, 4, dtype=dtype), sample(2, 3, 2, 4, dtype=dtype, seed=1)
        starts = np.array([1, 4])
        kept, grown = old.copy(), np.zeros((2, 3, 8, 4), dtype)
        grown[:, :, :6] = old
        for batch, start in enumerate(starts):
            kept[batch, :, start : start + 2] = grown[batch, :, start : start + 2] = new[batch]
        fresh = np.zeros((2, 3, 6, 4), dtype)
        fresh[0, :, 1:3], fresh[1, :, 4:6] = new[0], new[1]
        both = np.stack((old, old))
        placed = np.stack((kept, kept))
        cases += [
            ours(f"kept-{dtype}", "PlaceRows", (old, new, starts), (kept,)),
            ours(f"grown-{dtype}", "PlaceRows", (old, new, starts, np.array(8)), (grown,), const=(3,)),
            ours(f"no past-{dtype}", "PlaceRows", (None, new, starts, np.array(6)), (fresh,), const=(3,)),
            ours(f"two-{dtype}", "PlaceRows", (both, np.stack((new, new)), starts), (placed,)),
        ]
    old, new = sample(1, 2, 3, 4), sample(1, 2, 2, 4, seed=1)
    cut, before = old.copy(), old.copy()
    cut[:, :, 2:], before[:, :, :1] = new[:, :, :1], new[:, :, 1:]
    return [
        *cases,
        ours("no room", "PlaceRows", (old, new, np.array([2])), (cut,)),
        ours("from before", "PlaceRows", (old, new, np.array([-1])), (before,)),
        ours("nothing", "PlaceRows", (old[:, :, :0], new[:, :, :0], np.array([0])), (old[:, :, :0],)),
    ]


def rotation_cases() -> list[Case]:
    cases = []
    for dtype in NARROW:
        x, cosines, sines = (
            sample(2, 3, 8, dtype=dtype),
            sample(9, 2, dtype=dtype, seed=1),
            sample(9, 2, dtype=dtype, seed=2),
        )
        positions = np.array([[0, 3, 8], [1, 1, 2]])
        for name, at in (
            ("each", positions),
            ("shared", positions[:1]),
            ("first", np.array([4])),
            ("number", np.array(4)),
        ):
            rows = 4 + np.arange(3) if at.ndim < 2 else at
            rows = np.broadcast_to(rows, (2, 3))
            cases.append(
                ours(f"{name}-{dtype}", "RotateHeads", (x, at, cosines, sines), (_turn(x, rows, cosines, sines, 2),))
            )
            part = _turn(x, rows, cosines, sines, 1)
            cases.append(
                ours(f"{name}-part-{dtype}", "RotateHeads", (x, at, cosines, sines), (part,), attributes={"heads": 1})
            )
    return cases


def _turn(x: Array, positions: Array, cosines: Array, sines: Array, heads: int) -> Array:
    apart = x.astype(np.float32).reshape(*x.shape[:2], heads, -1)
    c, s = (table.astype(np.float32)[positions][:, :, None] for table in (cosines, sines))
    pairs = c.shape[-1]
    first, second = apart[..., :pairs].copy(), apart[..., pairs : 2 * pairs].copy()
    apart[..., :pairs], apart[..., pairs : 2 * pairs] = c * first - s * second, s * first + c * second
    return apart.reshape(x.shape).astype(x.dtype)


def packing_cases() -> list[Case]:
    x = sample(3, 4, 2)
    places = ints([0, 4, 5, 6], [7, 8, 9, 1], [2, 3, 10, 11])
    sums, longest, total = ints(0, 1, 5, 7), ints(4), np.array([7])
    beyond = (ints([4, 5, 6, 7], [0, 1, 2, 3]), ints(0, 0, 4), ints(4), np.array([4]))
    nothing = (np.zeros((0, 4), np.int32), ints(0), ints(0), np.array([0]))
    cases = [
        ours("order", "OrderTokens", (x, ints(1, 4, 2)), (places, sums, longest, total)),
        ours("beyond", "OrderTokens", (x[:2], ints(-3, 9)), beyond),
        ours("no sequences", "OrderTokens", (x[:0], ints()), nothing),
        ours(
            "no rows",
            "OrderTokens",
            (x[:, :0], ints(1, 0, 2)),
            (places[:, :0], ints(0, 0, 0, 0), ints(0), np.array([0])),
        ),
    ]
    for dtype in NARROW:
        rows = sample(7, 2, dtype=dtype)
        restored = np.zeros((12, 2), dtype)
        restored[places.reshape(-1)[:7]] = rows
        cases.append(ours(f"restore-{dtype}", "RestoreRows", (rows, places), (restored.reshape(3, 4, 2),)))
    return cases


def view_cases() -> list[Case]:
    x, table = sample(2, 3, 4, 5), sample(6, 4)
    row = sample(2, 5)
    number = {"value": 0.1}
    return [
        ours("first", "ChannelsFirst", (x,), (np.moveaxis(x, -1, 1),)),
        ours("last", "ChannelsLast", (x,), (np.moveaxis(x, 1, -1),)),
        ours("no space", "ChannelsFirst", (table,), (table,)),
        ours("spread", "SpreadOverSpace", (row,), (row.reshape(2, 1, 1, 5),)),
        ours("spread already", "SpreadOverSpace", (x,), (x,)),
        ours("first rows", "FirstRows", (table, ints([1, 2, 3])), (table[None, :3],)),
        *(
            ours(f"number-{t}", "NumberLike", (sample(2, dtype=t),), (np.array(0.1).astype(t),), attributes=number)
            for t in NARROW
        ),
        ours(
            "buckets",
            "RelativeBuckets",
            (sample(4, 2), np.array(3), np.array([4])),
            (ints([0, 0, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0]),),
            attributes={"max_distance": 4},
            const=(1, 2),
        ),
    ]


def shown_cases() -> list[Case]:
    """Return cases of views that look at what else there is."""
    x, q, k = sample(2, 5, 6), sample(2, 1, 8), sample(2, 1, 4)
    rows, past = sample(4, 6), sample(2, 1, 3, 4)
    weights, bias = sample(6, 24, seed=1), sample(24, seed=2)
    norms = (sample(4), sample(4))
    grouped = {"heads": 2, "of_keys": 1}
    added = sample(1, 2, 1, 3)
    queries, keys = sample(2, 1, 8), sample(2, 2, 3, 4)
    return [
        ours("three equal parts", "ProjectedInput", (x, weights, bias), (x,), attributes={"heads": 2}),
        ours("sizes", "ProjectedInput", (x, weights), (x,), attributes={"heads": 2, "sizes": (6, 6, 12)}),
        ours("without padding", "ProjectedInput", (rows, weights, bias), (rows,), attributes={"heads": 2, "rank": 2}),
        ours("first", "GroupedInput", (q, k, k, None, None, ints(0, 0)), (q,), attributes=grouped),
        ours("next", "GroupedInput", (q, k, k, past, past, ints(3, 3), None, *norms), (q,), attributes=grouped),
        ours("packed", "GroupedInput", (sample(2, 1, 16),), (sample(2, 1, 16),), attributes=grouped),
        ours("gated", "GatedInput", (x, sample(6), sample(1, 2, 5, 5)), (x,), attributes={"heads": 2}),
        ours("one row", "OneRow", (q,), (q,)),
        ours("whole bias", "WholeBias", (added, queries, keys), (added,)),
        ours("bias with room", "WholeBias", (added[..., :2], queries, keys), (added[..., :2],), attributes=ROOM),
    ]


PART_CASES = [
    *mask_cases(),
    *head_cases(),
    *place_cases(),
    *rotation_cases(),
    *packing_cases(),
    *view_cases(),
    *shown_cases(),
]
