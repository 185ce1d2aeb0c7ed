"""Providers of products and convolutions: our kernels, cuBLASLt and cuDNN, and the choice among their candidates.

A choice is a pure function of problem, target and tune file. What our kernels cost is predicted from the launches that
they would be (`gpuexec.planner.time_model`), what a library costs from a closed form of tiles, waves and bytes, which
is cruder: `gpuexec tune` puts times in place of both. A tune file decides alone about problems that it has.

What each library takes is said here; `gpuexec.devices.libraries` calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from gpuexec.ir.command import Command
from gpuexec.ir.geometry import ceil_div, channels_last_strides, contiguous_strides
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.library_problem import (
    FLOAT32,
    GELU_TANH,
    NO_ACTIVATION,
    RELU,
    TF32_PRODUCTS,
    ConvProblem,
    Problem,
    ProductProblem,
)
from gpuexec.ir.provider import (
    CUBLASLT,
    CUDNN,
    OURS,
    BitsClass,
    CallEmitter,
    Candidate,
    Offer,
    Posed,
    ProblemSlots,
    Provider,
)
from gpuexec.ir.target import Target
from gpuexec.planner.launch_work import describe_work, find_grid, list_operands
from gpuexec.planner.time_model import TIME_MODEL, bound_launch
from gpuexec.planner.tune_file import Tuning

_MIB = 1 << 20
# Scratch memory that a call may take: what the documentation of cuBLAS recommends for sm_90, and for all else; cuDNN
# recommends none.
_WORKSPACE_NBYTES = {True: 32 * _MIB, False: 4 * _MIB}
_CONV_WORKSPACE_NBYTES = 32 * _MIB
_OTHER_KIND = "it solves problems of another kind"
_HALVES = ("float16", "bfloat16")
_ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4}
_MAX_INT = 2**31 - 1
# Multiply-adds of halves that libraries begin in a clock of a multiprocessor where they have better instructions than
# mma.sync: about three quarters of the data sheets' rates by wgmma and tcgen05, which published measurements reach for
# large products. Elsewhere they take it that libraries reach what mma.sync does.
_MATRIX_PRODUCTS = {90: 1536, 100: 3072, 103: 3072}
_REACHED = 0.8  # of the rate of arithmetic within a tile
# Tiles of libraries, rows and columns, and into how many slices the inner extent is cut at most.
_TILES = ((128, 256), (128, 128), (128, 64), (64, 64), (64, 32))
_MAX_SLICES, _SLICE_DEPTH = 16, 256


@dataclass(frozen=True, slots=True)
class Providers:
    """What plans may take beside our kernels.

    Attributes:
        names: Of libraries.
        tuning: Times measured before; None: all costs are predicted.
        forced: The provider that takes all that it can, to be measured; None: the cheapest.
    """

    names: tuple[str, ...] = ()
    tuning: Tuning | None = None
    forced: str | None = None


NO_PROVIDERS = Providers()


class OwnKernels:
    """Our kernels as a provider of one problem.

    Args:
        launch: Emits them.
        commands: What that emits.
        bits: What their bits follow from.
    """

    name = OURS

    def __init__(self, launch: Callable[[], None], commands: Sequence[Command], bits: BitsClass) -> None:
        self._launch, self._commands, self._bits = launch, commands, bits

    def candidates(self, problem: Problem, target: Target) -> Sequence[Candidate]:
        """Return the one candidate."""
        cost = predict_commands_us(self._commands, target)
        return [Candidate(OURS, cost, False, 0, self._bits, lambda emit, slots: self._launch())]

    def refuse(self, problem: Problem, target: Target) -> str:
        """Return nothing: our kernels solve all problems."""
        return ""


class CublasLt:
    """Products by cuBLASLt."""

    name = CUBLASLT

    def candidates(self, problem: Problem, target: Target) -> Sequence[Candidate]:
        """Return one candidate, or none."""
        if self.refuse(problem, target):
            return []
        return [_make_candidate(CUBLASLT, problem, target, _WORKSPACE_NBYTES[target.architecture >= 90])]

    def refuse(self, problem: Problem, target: Target) -> str:
        """Return why it does not take a problem."""
        if not isinstance(problem, ProductProblem):
            return _OTHER_KIND
        rows, columns, inner = problem.extents
        if not _takes_types(problem):
            return f"it does not multiply {problem.dtype} into {problem.result} with sums of float"
        if min(rows, columns, inner, problem.count) < 1:
            return "an extent is 0"
        if max(rows, columns, inner, problem.count) > _MAX_INT:
            return "an extent is beyond 32 bits"
        lies = ((rows, inner, *problem.a), (inner, columns, *problem.b))
        if any(_find_pitch(*lie) is None for lie in lies) or problem.y_row < columns:
            return "an operand is dense along neither of its axes"
        if problem.activation not in (NO_ACTIVATION, RELU, GELU_TANH):
            return f"it has no {problem.activation}"
        return ""


class Cudnn:
    """Convolutions by cuDNN."""

    name = CUDNN

    def candidates(self, problem: Problem, target: Target) -> Sequence[Candidate]:
        """Return one candidate, or none."""
        if self.refuse(problem, target):
            return []
        return [_make_candidate(CUDNN, problem, target, _CONV_WORKSPACE_NBYTES)]

    def refuse(self, problem: Problem, target: Target) -> str:
        """Return why it does not take a problem."""
        if not isinstance(problem, ConvProblem):
            return _OTHER_KIND
        if not _takes_types(problem):
            return f"it does not convolve {problem.dtype} into {problem.result} with sums of float"
        if len(problem.x[0]) not in (4, 5):
            return "it convolves along two or three axes"
        if 0 in (*problem.x[0], *problem.w[0], *problem.y[0]):
            return "an extent is 0"
        if not all(_is_packed(*each) for each in (problem.x, problem.w, problem.y)):
            return "an image or weight is neither row-major nor channels last"
        if problem.activation not in (NO_ACTIVATION, RELU):
            return f"it is not asked for {problem.activation}"
        return ""


_LIBRARIES: Mapping[str, Provider] = {CUBLASLT: CublasLt(), CUDNN: Cudnn()}


def weigh(own: OwnKernels, posed: Posed, target: Target, providers: Providers, limit: BitsClass) -> Offer:
    """Return the candidates of a problem with the one to take.

    Args:
        own: Our kernels.
        posed: The problem, or why there is none.
        target: What is planned for.
        providers: The libraries, and what was measured.
        limit: What bits may follow from.
    """
    problem = posed.problem
    refused: list[tuple[str, str]] = []
    found: list[Candidate] = []
    if isinstance(problem, str):
        return Offer("", OURS, (), ((" or ".join(providers.names), problem),))
    sources: list[Provider] = [own, *(_LIBRARIES[name] for name in providers.names)]
    for provider in sources:
        why = provider.refuse(problem, target)
        said = {} if providers.tuning is None else providers.tuning.refused.get(str(problem), {})
        for each in provider.candidates(problem, target):
            if each.provider in said:
                why = said[each.provider]
            elif each.bits > limit:
                why = f"bits may follow from {_NAMES[limit]} alone"
            else:
                found.append(each)
        if why and why != _OTHER_KIND:
            refused.append((provider.name, why))
    if providers.tuning is not None:
        found, unmeasured = _replace_costs(found, str(problem), providers.tuning)
        refused += unmeasured
    costs = tuple((each.provider, each.cost_us, each.is_measured) for each in found)
    forced = [each for each in found if each.provider == providers.forced]
    chosen = min(forced or found, key=lambda each: each.cost_us)  # the first of equals: ours
    if providers.forced is not None and not forced:
        chosen = found[0]
    return Offer(str(problem), chosen.provider, costs, tuple(refused))


def emit_library(name: str, posed: Posed, target: Target, emit: CallEmitter) -> str:
    """Add the command of a library, as was chosen at the upper end of the size class; return why it can't be.

    Args:
        name: The library.
        posed: The problem at the size at hand.
        target: What is planned for.
        emit: Takes the command.
    """
    if isinstance(posed.problem, str):
        return posed.problem
    provider = _LIBRARIES[name]
    for candidate in provider.candidates(posed.problem, target):
        candidate.emit(emit, posed.slots)
        return ""
    return provider.refuse(posed.problem, target)


def predict_commands_us(commands: Sequence[Command], target: Target) -> float:
    """Return what commands take one after the other, all they read coming from device memory."""
    gpu, total = find_gpu(target.architecture), 0.0
    for command in commands:
        work = describe_work(command)
        nbytes = sum(each for _, _, each in list_operands(command, work))
        bounds = bound_launch(work, find_grid(command), nbytes, 1.0, gpu)
        total += TIME_MODEL.node_us + TIME_MODEL.predict_us(bounds)
    return total


def predict_library_us(problem: Problem, architecture: int, gpu: Gpu) -> float:
    """Return what a library's kernel takes: the cheapest of a few tiles and slices, or its bytes if that is more."""
    rows, columns, inner, count, nbytes = _find_shape(problem)
    # Multiply-adds of a multiprocessor in a second.
    rate = _find_products(problem, architecture, gpu) * gpu.clock_hertz * _REACHED
    best = float("inf")
    for height, width in _TILES:
        tiles = count * ceil_div(rows, height) * ceil_div(columns, width)
        for slices in (1, 2, 4, 8, _MAX_SLICES):
            if slices > 1 and inner < slices * _SLICE_DEPTH:
                break
            waves = ceil_div(tiles * slices, gpu.multiprocessors)
            sums = waves * height * width * ceil_div(inner, slices) / rate
            # Partial sums are written and read once more, out of L2.
            extra = 0.0 if slices == 1 else 2 * 4 * slices * count * rows * columns / gpu.l2_bytes_per_second
            best = min(best, sums + extra)
    moved = TIME_MODEL.dram * nbytes / gpu.dram_bytes_per_second
    return TIME_MODEL.node_us + TIME_MODEL.fill_us + 1e6 * max(best, moved)


_NAMES = {
    BitsClass.ORDERED: "the order of terms",
    BitsClass.SIZE_CLASS: "size class and architecture",
    BitsClass.EXTENTS: "extents and architecture",
    BitsClass.LIBRARY: "the library",
}


def _make_candidate(name: str, problem: Problem, target: Target, workspace_nbytes: int) -> Candidate:
    def emit(emitter: CallEmitter, slots: ProblemSlots) -> None:
        emitter.call(name, problem, slots, workspace_nbytes)

    cost = predict_library_us(problem, target.architecture, find_gpu(target.architecture))
    return Candidate(name, cost, False, workspace_nbytes, BitsClass.LIBRARY, emit)


def _replace_costs(
    found: Sequence[Candidate], problem: str, tuning: Tuning
) -> tuple[list[Candidate], list[tuple[str, str]]]:
    """Return the candidates that a tune file has times of, with these, and why others are left out.

    Where it has not the problem, or no time of a candidate, predictions stand.
    """
    known = tuning.find(problem)
    measured = [
        replace(each, cost_us=known[each.provider], is_measured=True) for each in found if each.provider in known
    ]
    if not measured:
        return list(found), []
    left = [(each.provider, "it was not measured") for each in found if each.provider not in known]
    return measured, left


def _takes_types(problem: Problem) -> bool:
    """Return whether operands and result are of types that libraries multiply with sums of float."""
    if problem.dtype in _HALVES:
        return problem.result in (problem.dtype, FLOAT32) and problem.compute == FLOAT32
    return problem.dtype == problem.result == FLOAT32 and problem.compute in (FLOAT32, TF32_PRODUCTS)


def _find_pitch(outer: int, inner: int, outer_stride: int, inner_stride: int) -> int | None:
    """Return the stride between lines of a matrix that is dense along one of its axes; None where it is not."""
    if inner_stride == 1 or inner == 1:
        pitch = inner if outer == 1 else outer_stride
        return pitch if pitch >= inner else None
    if outer_stride == 1 or outer == 1:
        return inner_stride if inner_stride >= outer else None
    return None


def _is_packed(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = (contiguous_strides(shape), channels_last_strides(shape))
    return any(all(extent == 1 or a == b for extent, a, b in zip(shape, strides, each, strict=True)) for each in wanted)


def _find_shape(problem: Problem) -> tuple[int, int, int, int, int]:
    """Return rows, columns, inner extent and number of products, and the bytes of all operands."""
    itemsize, stored = _ITEMSIZES[problem.dtype], _ITEMSIZES[problem.result]
    if isinstance(problem, ProductProblem):
        rows, columns, inner = problem.extents
        a, b = (1 if problem.count > 1 and not walk else problem.count for walk in problem.walks[:2])
        operands = a * rows * inner + b * inner * columns
        results = problem.count * rows * columns * (1 if problem.c_row is None else 2)
        return rows, columns, inner, problem.count, operands * itemsize + results * stored
    groups, outs = problem.groups, problem.w[0][0] // problem.groups
    places = problem.y[0][0] * prod(problem.y[0][2:])
    nbytes = (prod(problem.x[0]) + prod(problem.w[0])) * itemsize + prod(problem.y[0]) * stored
    return places, outs, prod(problem.w[0][1:]), groups, nbytes


def _find_products(problem: Problem, architecture: int, gpu: Gpu) -> float:
    """Return the multiply-adds that a multiprocessor begins in a clock; half as many of tf32 as of halves."""
    halves = _MATRIX_PRODUCTS.get(architecture, gpu.matrix_products)
    if problem.dtype in _HALVES:
        return halves
    return gpu.fp32_lanes if problem.is_on_floats or architecture < 80 else halves / 2
