"""Attention on tensor cores: the kernel over extents around its tiles, what it takes, and its work as counted."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import SimulatorFunction, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.ir.command import Argument, Kernel, Launch, Slot
from gpuexec.ir.geometry import contiguous_strides
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.instances import instantiations
from gpuexec.ir.operator import build
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import BFLOAT16, TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, find_form
from gpuexec.ops.nn import attention_mma
from gpuexec.ops.nn.attention import Attention
from gpuexec.ops.nn.attention_host import AttentionRule
from gpuexec.ops.nn.attention_mma import HEAD_TILES, HeadTile
from gpuexec.ops.nn.attention_operands import AttentionOperands, EmptyRows
from gpuexec.planner.launch_work import CommandGrid
from gpuexec.planner.time_model import TIME_MODEL, bound_launch
from tests.devices.opening import make_simulator
from tests.model.small_models import make_model
from tests.ops.attention_oracle import attention, by_rows, in_double, sample
from tests.ops.counted_launch import CountedCase, compare, count_wavefronts
from tests.ops.direct import DirectEmitter
from tests.ops.draws import draws
from tests.ops.harness import Case, build_operator, run_case
from tests.ops.tolerance import allow, to_bits

Array = np.ndarray[Any, Any]
HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
NAN, INF = np.nan, np.inf
SOURCE = "attention_mma.cu"
# Terms of a sum of weights that are rounded, as many as make half a unit in their last place of float's.
ROUNDED_TERMS = {HALF: 1 << 12, BFLOAT16: 1 << 15}
_LOADED: dict[Mode, Mapping[str, SimulatorFunction]] = {}


def load(mode: Mode) -> Mapping[str, SimulatorFunction]:
    # The whole file, as other tests have it compiled, but for counting.
    counted = [f"attend_mma<half, {tile.name}, kPlain>" for tile in HEAD_TILES] + ["attend_mma<half, Heads64, kMasked>"]
    if mode not in _LOADED:
        _LOADED[mode] = load_file(SOURCE, counted if mode == "count" else instantiations(SOURCE), mode=mode)
    return _LOADED[mode]


class KernelEmitter(DirectEmitter):
    """Runs the kernel of tensor cores in a mode; keeps its launch and what was counted."""

    def __init__(
        self,
        mode: Mode = "plain",
        seed: int = 0,
        architecture: str = "sm_90",
        choices: Sequence[int] | None = None,
    ) -> None:
        super().__init__(choices)
        self.target = Target.named(architecture)
        self.mode: Mode = mode
        self.seed = seed
        self.counts: list[LaunchCounts] = []
        self.made: list[Launch] = []

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        if kernel.source != SOURCE:
            super().launch(kernel, grid, block, arguments, writes, shared_bytes, cooperative)
            return
        self.launches.append((kernel, arguments))
        self.made.append(Launch(kernel, grid, block, tuple(arguments), tuple(writes), shared_bytes))
        values = [self.arrays[a.buffer][a.offset_bytes :] if isinstance(a, Slot) else a for a in arguments]
        load(self.mode)[kernel.expression].launch_arrays(
            grid, block, *values, shared_bytes=shared_bytes, schedule=Schedule("random", self.seed), counts=self.counts
        )


def attend(emit: KernelEmitter, op: Any, inputs: Sequence[Array | None], dtype: Any = None) -> Array:
    """Return what the kernels make of inputs."""
    slots = tuple(None if x is None else emit.slot(x) for x in inputs)
    spec = op.infer(*(None if slot is None else slot.spec for slot in slots))[0]
    y = emit.fresh(spec.shape, dtype or spec.dtype)
    op.lower(emit, slots, (y,))
    return emit.read(y).copy()


def check(case: Case, emit: KernelEmitter) -> None:
    """Check that a case runs on tensor cores and gives what a loop over rows does, but for the weights' rounding."""
    op, inputs = build_operator(case)
    got = attend(emit, op, inputs)
    assert emit.made, f"{case.id}: launched {[str(kernel) for kernel, _ in emit.launches]}"
    assert case.expected is not None
    assert_near(case.id, op, inputs, got, case.expected[0], case.terms)


def assert_near(label: str, op: Any, inputs: Sequence[Array | None], got: Array, expected: Array, terms: int) -> None:
    """Compare by the operator's tolerance, and half a unit in the last place of each weight beside it."""
    wide = [x if x is None or x.dtype.kind in "bi" else x.astype(np.float64) for x in inputs]
    values = wide[2]
    assert values is not None and inputs[0] is not None
    wide[2] = np.abs(np.where(np.isfinite(values), values, 0))
    unit = (2.0**-7 if inputs[0].dtype == BFLOAT16 else 2.0**-10) / 2
    finite = np.isfinite(expected.astype(np.float64))
    np.testing.assert_array_equal(to_bits(got)[~finite], to_bits(expected)[~finite], err_msg=label)
    allowed = allow(op, inputs, 0, expected, terms) + unit * op.compute(*wide)[0]
    excess = np.abs(got[finite].astype(np.float64) - expected[finite].astype(np.float64)) - allowed[finite]
    assert excess.max(initial=0) <= 0, f"{label}: {excess.max()} beyond {allowed[finite].flat[np.argmax(excess)]}"


def pick_case(pick: random.Random, tile: HeadTile, *, is_small: bool) -> Case:
    """Return attention with some of all that there is, of extents around those of a tile."""
    low = next((other.depth + 1 for other in reversed(HEAD_TILES) if other.depth < tile.depth), 8)
    depth = pick.choice([tile.depth, tile.depth, -(-low // 8) * 8])
    values = pick.choice([depth, depth, 8, 24])
    of_keys = pick.choice([1, 1, 2])
    queries = (
        pick.choice([17, tile.queries - 1, tile.queries, tile.queries + 1]) if not is_small else pick.choice([17, 33])
    )
    keys = pick.choice([37, 2 * tile.keys, 2 * tile.keys + 1, 101]) if not is_small else pick.choice([37, 65])
    sizes = (pick.choice([1, 2]), of_keys * pick.choice([1, 2]), of_keys, queries, keys, depth, values)
    dtype = pick.choice([HALF, BFLOAT16])
    rng = np.random.default_rng(pick.getrandbits(32))
    mask: Any = None
    if pick.random() < 0.5:
        columns = pick.choice([keys, keys, keys - 3])
        shape = (pick.choice([1, sizes[0]]), pick.choice([1, sizes[1]]), pick.choice([1, queries]), columns)
        mask = rng.normal(size=shape).astype(pick.choice([dtype, FLOAT]))
        mask = np.where(rng.random(shape) < 0.2, -INF, mask).astype(mask.dtype)
        mask = rng.random(shape) < 0.7 if pick.random() < 0.5 else mask
    lengths = tuple(pick.randint(0, keys) for _ in range(sizes[0])) if pick.random() < 0.3 else None
    chosen = {
        "is_causal": pick.choice([0, 0, 1]),
        "softcap": pick.choice([0.0, 0.0, 0.7]),
        "left_window_size": pick.choice([-1, -1, 0, 20]),
        "right_window_size": pick.choice([-1, -1, 0, 33]),
    }
    return attention("random", sizes, dtype, mask=mask, lengths=lengths, opset=25, **chosen)


@pytest.mark.parametrize("mode", ["plain", "check"])
@pytest.mark.parametrize("tile", HEAD_TILES, ids=lambda tile: tile.name)
def test_random_attention(tile: HeadTile, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_mma, "_choose_tile", lambda *_: tile)
    pick = random.Random(f"{tile.name} {mode}")
    for seed in draws(7 if mode == "plain" else 2):
        case = by_rows(pick_case(pick, tile, is_small=mode == "check"))
        check(dataclasses.replace(case, id=f"{tile.name} {seed} {case.attributes}"), KernelEmitter(mode, seed))


@pytest.mark.parametrize("kind", ["plain", "masked", "capped"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16], ids=str)
@pytest.mark.parametrize("tile", HEAD_TILES, ids=lambda tile: tile.name)
def test_operators_by_tile(checks: str, tile: HeadTile, dtype: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a size class takes it whose upper end is larger."""
    monkeypatch.setattr(attention_mma, "_choose_tile", lambda *_: tile)
    mask = sample((18, 40), dtype) if kind == "masked" else None
    attributes = {"softcap": 2.0} if kind == "capped" else {"is_causal": int(kind == "plain")}
    case = in_double(attention(tile.name, (1, 2, 1, 18, 40, 48, 40), dtype, mask=mask, **attributes))
    run_case(dataclasses.replace(case, terms=ROUNDED_TERMS[dtype]), checks)


WILD = {
    "mask": ({}, {"mask": np.tri(40, 70, 15, dtype=np.bool_)}),
    "infinite bias": ({}, {"mask": np.where(np.tri(40, 70, 15), np.float32(0), np.float32(-INF))}),
    "causal": ({"is_causal": 1}, {}),
    "window": ({"left_window_size": 3, "right_window_size": 9}, {}),
    "lengths": ({}, {"lengths": (45, 70)}),
}


@pytest.mark.parametrize("place", [1, 2], ids=["keys", "values"])
@pytest.mark.parametrize("kind", WILD)
@pytest.mark.parametrize("head", [64, 80], ids=str)
def test_keys_that_take_no_part_spread_nothing(kind: str, place: int, head: int) -> None:
    """NaN and infinities of keys that some queries see and others don't, in tiles that most see as a whole, too."""
    attributes, given = WILD[kind]
    case = attention(kind, (2, 2, 1, 40, 70, head, head), HALF, opset=25, **given, **attributes)
    x = np.array(case.inputs[place])
    for row, value in ((0, INF), (1, INF), (20, NAN), (44, -INF), (46, NAN), (66, INF), (69, NAN)):
        x[row % 2, 0, row, row % head] = value
    case = dataclasses.replace(case, inputs=(*case.inputs[:place], x, *case.inputs[place + 1 :]))
    check(by_rows(case), KernelEmitter(seed=place))


def test_masks_of_the_lowest_number_leave_rows_as_they_are() -> None:
    """Exporters mask with it: a row of nothing else weighs all of its keys alike, as in float."""
    lowest = float(np.finfo(np.float32).min)
    bias = np.where(np.arange(70) < 50, np.float32(0), np.float32(lowest)) * np.ones((40, 1), np.float32)
    bias[3] = lowest
    q, k, v = (sample((1, 1, rows, 64), HALF, seed) for seed, rows in enumerate((40, 70, 70)))
    name, attributes = "gpuexec.ScaledDotProductAttention", {"score_steps": ("Add",), "precision": "fp16"}
    op, inputs = build(name, attributes), (q, k.swapaxes(2, 3), v, bias)
    emit = KernelEmitter()
    got = attend(emit, op, inputs)
    assert emit.made
    (expected,) = op.compute(*inputs)
    np.testing.assert_allclose(got[0, 0, 3], v[0, 0].mean(axis=0, dtype=np.float32), rtol=0, atol=2e-3)
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-3)


def launch_alone(emit: KernelEmitter, parts: Sequence[Array], y: Slot, empty: EmptyRows = EmptyRows.NAN) -> None:
    """Launch attention of q, k and v on tensor cores."""
    q, k, v = (emit.slot(part) if part.size else emit.fresh(part.shape, part.dtype) for part in parts)
    operands, rule = AttentionOperands(q, k, v, None, None), AttentionRule(0.125, 0.0, -1, -1, 0)
    assert attention_mma.launch_on_tensor_cores(emit, operands, rule, y, fill=-INF, empty=empty, rounds_mask=False)


@pytest.mark.parametrize("empty", EmptyRows, ids=lambda empty: empty.name)
def test_no_keys_give_zeros(empty: EmptyRows) -> None:
    """As a product with nothing does, whatever rows give whose keys are all taken out: of a small size of its class."""
    emit = KernelEmitter("check", choices=[1])
    y = emit.fresh((1, 2, 40, 64), HALF)
    launch_alone(emit, [sample((1, 2, rows, 64), HALF) for rows in (40, 0, 0)], y, empty)
    np.testing.assert_array_equal(emit.read(y), np.zeros((1, 2, 40, 64)))


@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=str)
def test_outputs_of_any_alignment_are_stored_one_by_one(dtype: Any) -> None:
    """In rows of an odd pitch, the numbers beside which are left as they are."""
    parts = [sample((1, 2, rows, 64), HALF, seed) for seed, rows in enumerate((40, 70, 70))]
    emit = KernelEmitter("check")
    dense, wide = emit.fresh((1, 2, 40, 64), dtype), emit.slot(np.full((1, 2, 40, 67), 7, dtype))
    launch_alone(emit, parts, dense)
    launch_alone(emit, parts, Slot(wide.buffer, wide.offset_bytes, dense.spec, wide.strides))
    got = emit.read(wide)
    np.testing.assert_array_equal(got[..., :64], emit.read(dense))
    assert (got[..., 64:] == 7).all()


NUMBER = np.array(-1e4, np.float32)
STEPS = {
    "plain": ((), ()),
    "bias of keys": (("Add",), (sample((2, 1, 1, 70)),)),
    "bias of heads": (("Add",), (sample((4, 40, 70)),)),
    "bias of queries": (("Add",), (sample((40, 1)),)),
    "two steps": (("Mul", "Add"), (sample((40, 70)), sample((70,)))),
    "mask": (("Where",), (np.tri(40, 70, 3, dtype=np.bool_), NUMBER)),
    "empty rows": (("Where",), (np.tri(40, 70, -3, dtype=np.bool_), np.array(-INF, np.float32))),
}


def make_precise(kind: str, dtype: Any, is_narrow: int) -> Case:
    """Return attention of a precision, worked out in double."""
    steps, operands = STEPS[kind]
    q, k, v = (sample((2, 4, rows, 48), dtype, seed) for seed, rows in enumerate((40, 70, 70)))
    precision = {HALF: "fp16", BFLOAT16: "bf16"}[dtype]
    attributes = {
        "scale": 0.14, "score_steps": steps, "precision": precision, "is_narrow": is_narrow, "perm": (0, 2, 1, 3),
        "is_guarded": int(kind == "empty rows"),
    }  # fmt: skip
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * 0.14
    for step, given in zip(steps, operands, strict=False):
        scores = scores + given if step == "Add" else scores * given if step == "Mul" else scores
        scores = np.where(given, scores, operands[1]) if step == "Where" else scores
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(axis=3, keepdims=True))
        weights = np.nan_to_num(weights / weights.sum(axis=3, keepdims=True))
    y = (weights @ v.astype(np.float64)).transpose(0, 2, 1, 3).astype(dtype if is_narrow else FLOAT)
    const = tuple(3 + index for index, each in enumerate(operands) if each.size == 1)
    inputs = (q, k.swapaxes(2, 3), v, *operands)
    name, terms = "gpuexec.ScaledDotProductAttention", ROUNDED_TERMS[dtype]
    id = f"{kind}-{dtype}-{'narrow' if is_narrow else 'float'}"
    return Case(id, name, inputs, attributes, const=const, expected=(y,), terms=terms)


PRECISE = [make_precise(kind, dtype, is_narrow) for kind in STEPS for dtype in (HALF, BFLOAT16) for is_narrow in (0, 1)]


@pytest.mark.parametrize("case", PRECISE, ids=lambda case: case.id)
def test_attention_of_a_precision(checks: str, case: Case) -> None:
    """Fused on tensor cores where there is one step at most, else apart."""
    run_case(case, checks)


def lower(op: Any, sizes: Sequence[int], architecture: str = "sm_90", dtype: Any = HALF) -> list[str]:
    """Return the kernels of attention of sizes [batch, heads, queries, keys, head]."""
    batch, heads, queries, keys, head = sizes
    emit = PlanningEmitter(architecture)
    q, k, v = (emit.fresh((batch, heads, rows, head), dtype) for rows in (queries, keys, keys))
    op.lower(emit, (q, k, v), (emit.fresh((batch, heads, queries, head), dtype),))
    return [kernel.expression for kernel, _ in emit.launches]


class PlanningEmitter(DirectEmitter):
    """Notes launches, and runs none."""

    def __init__(self, architecture: str) -> None:
        super().__init__()
        self.target = Target.named(architecture)
        self.grids: list[tuple[int, int, int]] = []
        self.works: list[Work] = []

    def fresh(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return a slot without memory."""
        return Slot(0, 0, TensorSpec(shape, np.dtype(dtype)), contiguous_strides(shape))

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        self.launches.append((kernel, arguments))
        self.grids.append((grid[0], block[0], shared_bytes))
        form = find_form(kernel)
        assert form is not None
        self.works.append(form(Launch(kernel, grid, block, tuple(arguments), tuple(writes), shared_bytes)))


@pytest.mark.parametrize(
    ("sizes", "dtype", "architecture", "expected"),
    [
        ((1, 12, 128, 128, 64), HALF, "sm_90", "attend_mma<half, FewHeads64, kPlain>"),
        ((8, 16, 2048, 2048, 64), BFLOAT16, "sm_80", "attend_mma<bf16, Heads64, kPlain>"),
        ((1, 8, 300, 300, 40), HALF, "sm_89", "attend_mma<half, FewHeads64, kPlain>"),
        ((1, 8, 300, 300, 72), HALF, "sm_90", "attend_mma<half, Heads80, kPlain>"),
        ((1, 8, 300, 300, 88), HALF, "sm_120", "attend_mma<half, Heads96, kPlain>"),
        ((1, 8, 300, 300, 128), HALF, "sm_86", "attend_mma<half, Heads128, kPlain>"),
        ((1, 8, 300, 300, 136), HALF, "sm_90", "attend_mma<half, Heads192, kPlain>"),
        ((1, 8, 300, 300, 256), HALF, "sm_90", "attend_mma<half, Heads256, kPlain>"),
        ((1, 8, 300, 300, 264), HALF, "sm_90", "attend<half>"),  # a larger head
        ((1, 8, 300, 300, 60), HALF, "sm_90", "attend<half>"),  # heads that don't lie on 16 bytes
        ((1, 8, 16, 300, 64), HALF, "sm_90", "attend<half>"),  # few queries
        ((1, 8, 300, 32, 64), HALF, "sm_90", "attend<half>"),  # few keys
        ((1, 8, 300, 300, 64), FLOAT, "sm_90", "attend<float>"),
        ((1, 8, 300, 300, 64), HALF, "sm_75", "attend<half>"),
    ],
)
def test_types_shapes_and_architecture_choose(sizes: Any, dtype: Any, architecture: str, expected: str) -> None:
    assert lower(Attention(), sizes, architecture, dtype)[0] == expected


@pytest.mark.parametrize("tile", HEAD_TILES, ids=lambda tile: tile.name)
def test_work_is_as_counted_and_aligned_heads_take_the_least_sectors_and_wavefronts(
    tile: HeadTile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_mma, "_choose_tile", lambda *_: tile)
    is_causal = int(tile.depth != 80)
    shapes = {"q": (1, 2, 128, tile.depth), "k": (1, 1, 128, tile.depth), "v": (1, 1, 128, tile.depth)}
    case = CountedCase("Attention", "attend_mma", shapes, attributes={"is_causal": is_causal}, dtype=np.float16)
    found = compare(case, [Kernel(SOURCE, f"attend_mma<half, {each.name}, kPlain>") for each in HEAD_TILES])
    kinds = set()
    for line in found.counts.lines:
        if line.counts.nbytes and line.width >= 8:
            kinds.add((line.space, line.access, line.width))
            assert line.counts.ratio == 1.0, line
    assert kinds >= {("global", "read", 16), ("global", "write", 8), ("shared", "write", 16)}
    assert found.work.matrix_products == found.counts.total_operations("mma").issued
    assert found.work.wavefronts == count_wavefronts(found.counts, 1)
    assert found.work.l2_nbytes == found.counts.l2_read_nbytes + found.counts.l2_written_nbytes
    assert is_causal or found.work.flops == found.flops


@pytest.mark.parametrize("is_causal", [0, 1], ids=["all keys", "causal"])
@pytest.mark.parametrize("head", [64, 80, 96, 128, 192, 256])
def test_few_products_are_of_nothing(head: int, is_causal: int) -> None:
    """At ends of size classes; a causal warp passes over tiles that none of its queries sees."""
    for queries in (2048, 128 if is_causal else 64):
        emit = PlanningEmitter("sm_80")
        q, k, v = (emit.fresh((8, 16, rows, head), HALF) for rows in (queries, 2048, 2048))
        op = build("gpuexec.AttentionOverCache", {"is_causal": is_causal})
        new = emit.fresh((8, 16, queries, head), HALF)  # the last of the keys
        assert op.lower is not None
        op.lower(emit, (q, k, v, None, new), (emit.fresh((8, 16, queries, head), HALF),))
        (work,) = emit.works
        assert work.matrix_products <= 1.1 * work.needed_multiply_adds


@pytest.mark.parametrize(
    ("architecture", "peak", "least"), [("sm_80", 312e12, 0.5), ("sm_89", 165e12, 0.5), ("sm_90", 989e12, 0.3)]
)
def test_prefill_is_predicted_at_a_good_share_of_the_tensor_cores(architecture: str, peak: float, least: float) -> None:
    """2048 keys and heads of 128 numbers, beside the dense rate of data sheets; an H100 gives mma.sync 63 % of that."""
    sizes = (4, 32, 2048, 2048, 128)
    emit = PlanningEmitter(architecture)
    q, k, v, y = (emit.fresh((*sizes[:2], rows, sizes[-1]), HALF) for rows in (sizes[2], sizes[3], sizes[3], sizes[2]))
    build("Attention", {}).lower(emit, (q, k, v), (y,))  # type: ignore[misc]
    (work,), ((blocks, threads, shared_nbytes),) = emit.works, emit.grids
    gpu = find_gpu(Target.named(architecture).architecture)
    bounds = bound_launch(work, CommandGrid(blocks, threads, shared_nbytes), 4 * y.spec.nbytes, 0.0, gpu)
    share = 2 * work.needed_multiply_adds / (TIME_MODEL.predict_us(bounds) * 1e-6) / peak
    assert least <= share < 0.9


def layer(precision: str, target: str, **options: Any) -> tuple[Array, list[str]]:
    """Return what a layer of attention between products makes of 5 sizes, and the kernels of its first plan."""
    rng = np.random.default_rng(3)
    weights = {name: (rng.standard_normal((128, 128)) / 11).astype(np.float32) for name in ("wq", "wk", "wv", "wo")}
    nodes = [helper.make_node("MatMul", ["x", f"w{each}"], [f"{each}_flat"]) for each in "qkv"]
    nodes += [helper.make_node("Reshape", [f"{each}_flat", "split"], [f"{each}_rows"]) for each in "qkv"]
    for each, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("Transpose", [f"{each}_rows"], [each], perm=perm))
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["products"]),
        helper.make_node("Mul", ["products", "eighth"], ["scores"]),
        helper.make_node("Add", ["scores", "mask"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "join"], ["joined"]),
        helper.make_node("MatMul", ["joined", "wo"], ["y"]),
    ]
    constants = {"split": np.array([0, 0, 2, 64]), "join": np.array([0, 0, 128]), "eighth": np.float32(0.125)}
    model = make_model(
        nodes, {"x": [1, "n", 128], "mask": [1, 1, 1, "n"]}, {"y": [1, "n", 128]}, **weights,
        **{name: np.asarray(each) for name, each in constants.items()},
    )  # fmt: skip
    device = make_simulator(target=target)
    made: list[Array] = []
    plans: list[Plan] = []
    with gx.Worker(
        model, backend=Backend(device, gx.BackendType.SIMULATOR, "tested"), precision=precision, **options
    ) as worker:
        for rows in (100, 70, 128, 40, 8):
            x = sample((1, rows, 128), seed=rows)
            mask = np.where(np.arange(rows) < 0.8 * rows, np.float32(0), np.float32(-1e9)).reshape(1, 1, 1, rows)
            made.append(worker.run({"x": x, "mask": mask})[0].reshape(-1))
            plans = plans or list(worker.plans)
        kernels = [each.kernel.expression for each in plans[0].segment.commands if isinstance(each, Launch)]
    device.close()
    return np.concatenate(made), kernels


def test_attention_of_exporters_runs_on_tensor_cores_in_a_precision() -> None:
    """At all sizes of a class; what sm_75 runs apart differs by roundings."""
    exact, _ = layer("strict", "sm_90")
    fused, kernels = layer("fp16", "sm_80")
    apart, old = layer("fp16", "sm_75")
    assert sum(each.startswith("attend_mma<half") for each in kernels) == 1 and "softmax<float>" not in kernels
    assert not any("attend" in each for each in old)
    assert len(kernels) <= 6, "the operands' casts join the products', and the result's is the attention's own"
    for found in (fused, apart):
        np.testing.assert_allclose(found, exact, rtol=0, atol=2**-9 * float(np.abs(exact).max()))
    assert (fused != exact).any()


@pytest.mark.parametrize("form", ["Attention", "in groups", "given"])
def test_attention_of_onnx_is_rounded_in_a_precision(form: str) -> None:
    """On tensor cores where keys and values are made in the run; those that are given stay float."""
    rng = np.random.default_rng(4)
    weights = {name: (rng.standard_normal((32, 64)) / 6).astype(np.float32) for name in ("wk", "wv")}
    nodes = [helper.make_node("MatMul", ["x", name], [f"{name[1:]}_flat"]) for name in weights]
    nodes += [helper.make_node("Reshape", [f"{each}_flat", "split"], [f"{each}_rows"]) for each in "kv"]
    nodes += [helper.make_node("Transpose", [f"{each}_rows"], [each], perm=[0, 2, 1, 3]) for each in "kv"]
    keys = ["k", "v"]
    if form == "in groups":
        for each in "kv":
            nodes.append(helper.make_node("Unsqueeze", [each, "two"], [f"{each}_apart"]))
            nodes.append(helper.make_node("Expand", [f"{each}_apart", "stretch"], [f"{each}_all"]))
            nodes.append(helper.make_node("Reshape", [f"{each}_all", "heads"], [f"{each}_joined"]))
        keys = ["k_joined", "v_joined"]
    elif form == "given":
        nodes, keys = [], ["k", "v"]
    nodes.append(helper.make_node("Attention", ["q", *keys, "mask"], ["y"], is_causal=1))
    given = {"q": (1, 4, 40, 32), "x": (1, 70, 32), "mask": (40, 70)}
    given = {**given, "k": (1, 2, 70, 32), "v": (1, 2, 70, 32)} if form == "given" else given
    given.pop("x" if form == "given" else "", None)
    constants = {
        "split": np.array([0, 0, 2, 32]), "two": np.array([2]), "stretch": np.array([1, 1, 2, 1, 1]),
        "heads": np.array([0, 4, -1, 32]), **weights,
    }  # fmt: skip
    constants = {} if form == "given" else constants
    model = make_model(nodes, {name: list(shape) for name, shape in given.items()}, {"y": [1, 4, 40, 32]}, **constants)
    feeds = {name: sample(shape, seed=index) for index, (name, shape) in enumerate(given.items())}
    made = {}
    for precision in ("strict", "fp16"):
        with gx.Worker(model, backend="simulator", precision=precision) as worker:
            made[precision] = worker.run(feeds)[0]
            (plan,) = worker.plans
    kernels = [each.kernel.expression for each in plan.segment.commands if isinstance(each, Launch)]
    expected = "attend<float>" if form == "given" else "attend_mma<half, FewHeads64, kMasked>"
    assert [each for each in kernels if "attend" in each] == [expected]
    largest = float(np.abs(made["strict"]).max())
    np.testing.assert_allclose(made["fp16"], made["strict"], rtol=0, atol=2**-8 * largest)
    assert (made["fp16"] != made["strict"]).any()
