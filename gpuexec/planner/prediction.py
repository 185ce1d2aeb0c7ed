"""Prediction of a plan's time on a GPU that is not there: launches, bytes, operations and microseconds.

Each command is bounded by the time model (`gpuexec.planner.time_model`) from its work. Bytes of device memory are those
that an L2 of the GPU's size lacks in a run after others of its kind. A command begins some time after the last one that
it waits for has ended, less where it is a launch that is there before that and waits itself. Commands that nothing
orders run side by side, as in a graph, and slow each other down where they would take more than the device has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gpuexec.ir.command import Command, Copy, Fill, HostCall, Launch, LibraryCall, Slot
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.gpus import Gpu, find_gpu
from gpuexec.ir.plan import Plan, Role
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work
from gpuexec.planner.edges import Edge
from gpuexec.planner.fused_groups import find_fused_groups
from gpuexec.planner.launch_work import describe_work, find_grid, list_operands
from gpuexec.planner.memory_format import count_transposes
from gpuexec.planner.providers import predict_library_us
from gpuexec.planner.time_model import TIME_MODEL, LaunchBounds, TimeModel, bound_launch
from gpuexec.system.records import Record

_LINE_BYTES = 1 << 16  # what the model of L2 keeps or evicts at once
_SPARSE = 4  # a slot that touches less than this part of its range is taken as dense bytes
_RUNS = 2  # in the model of L2: in the last one it holds what the one before left
_LAUNCH = "launch"  # what decides about a command that takes less time than it takes to begin


@dataclass(frozen=True, slots=True)
class CommandPrediction:
    """What is predicted of a command.

    Attributes:
        kernel: Its kernel, or ``copy``, ``fill``, ``host``, or the library that it calls.
        origin: The node it stems from.
        blocks: Of its grid.
        waves: How often its blocks fill the GPU.
        nbytes: Bytes of its operands that it reads and writes, each once.
        dram_nbytes: Bytes between L2 and device memory.
        flops: Operations.
        bound_by: What decides its time: ``issue``, ``tensor``, ``shared``, ``l2``, ``dram``, ``latency``, or ``launch``
            where that is less than what it takes to begin. Of a call of a library it is ``library``.
        predicted_us: With the device for itself, from the end of what it waits for.
        bounds: Of its time.
        begin_us: From the end of what it waits for to its begin.
        is_early: Whether it is launched before the end of some launch that it waits for itself.
    """

    kernel: str
    origin: str
    blocks: int
    waves: float
    nbytes: int
    dram_nbytes: int
    flops: int
    bound_by: str
    predicted_us: float
    bounds: LaunchBounds
    begin_us: float
    is_early: bool


@dataclass(frozen=True, slots=True)
class PlanPrediction(Record):
    """What is predicted of a plan.

    Attributes:
        target: Name of the target.
        gpu: The GPU that stands for it.
        launches: Commands that a device runs.
        early: How many of them begin early.
        transposes: How many of them do nothing but change the memory format of an image.
        transposed_nbytes: Bytes that those read and write.
        moved_nbytes: Bytes that commands read and write, each operand once.
        minimum_nbytes: The fewest that fused groups could do with (`gpuexec.planner.fused_groups`).
        flops: Operations.
        predicted_us: Of a run among others.
        floor_us: Of the minimum of bytes from device memory, or of the operations as multiply-adds at full rate, on
            tensor cores where a command uses them, which have products of bytes at twice the rate, else of floats;
            whichever is more.
        commands: Each command.
    """

    target: str
    gpu: Gpu
    launches: int
    early: int
    transposes: int
    transposed_nbytes: int
    moved_nbytes: int
    minimum_nbytes: int
    flops: int
    predicted_us: float
    floor_us: float
    commands: tuple[CommandPrediction, ...]


Operands = Sequence[tuple[Slot, bool, int]]


def predict_plan(
    plan: Plan,
    commands: Sequence[Command] | None = None,
    *,
    gpu: Gpu | None = None,
    model: TimeModel = TIME_MODEL,
    waits: Callable[[Launch], bool] | None = None,
) -> PlanPrediction:
    """Predict a plan for a target with kernels.

    Args:
        plan: The plan.
        commands: Those of a variant; None: those of the upper end of the size class.
        gpu: None: the GPU that stands for the plan's target.
        model: Constants of the model.
        waits: Whether a launch waits for others itself, so that it begins early; None: none does.
    """
    commands = plan.segment.commands if commands is None else commands
    architecture = Target.named(plan.target).architecture
    gpu = find_gpu(architecture) if gpu is None else gpu
    works = [describe_work(command) for command in commands]
    operands = [list_operands(command, work) for command, work in zip(commands, works, strict=True)]
    traffic = _find_traffic(plan, operands, gpu)
    edges = plan.segment.edges
    programmatic = frozenset() if waits is None else _find_programmatic(commands, edges, waits)
    early = {after for _, after in programmatic}
    rows: list[CommandPrediction] = []
    for position, (command, origin, work, touched, (missed, dram)) in enumerate(
        zip(commands, plan.segment.origins, works, operands, traffic, strict=True)
    ):
        is_early = position in early
        if isinstance(command, LibraryCall):
            rows.append(_predict_call(command, origin, work, touched, dram, architecture, gpu, model))
            continue
        rows.append(_predict_command(command, origin, work, touched, missed, dram, gpu, model, is_early=is_early))
    minimum = find_fused_groups(plan, commands, operands).minimum_nbytes
    flops = sum(row.flops for row in rows)
    seconds = sum(_find_floor_seconds(row, work, gpu) for row, work in zip(rows, works, strict=True))
    return PlanPrediction(
        plan.target,
        gpu,
        sum(not isinstance(command, HostCall) for command in commands),
        len(early),
        *count_transposes(commands),
        sum(row.nbytes for row in rows),
        minimum,
        flops,
        _find_end(rows, edges, programmatic, gpu, model),
        max(minimum / gpu.dram_bytes_per_second, seconds) * 1e6,
        tuple(rows),
    )


def _find_floor_seconds(row: CommandPrediction, work: Work, gpu: Gpu) -> float:
    """Return the time of a command's operations at full rate; tensor cores count products of bytes as halves."""
    if not row.bounds.tensor:
        return row.flops / gpu.float_rate
    products = work.matrix_products
    rate = gpu.group_rate if work.is_by_groups else gpu.matrix_rate
    return (min(row.flops, 2 * products) if products else row.flops) / rate


def _find_programmatic(
    commands: Sequence[Command], edges: Sequence[Edge], waits: Callable[[Launch], bool]
) -> frozenset[Edge]:
    """Return the edges between launches of which the later one waits itself."""
    return frozenset(
        (before, after)
        for before, after in edges
        if _is_plain_launch(commands[before]) and _is_plain_launch(last := commands[after]) and waits(last)  # type: ignore[arg-type]
    )


def _is_plain_launch(command: Command) -> bool:
    return isinstance(command, Launch) and not command.cooperative


def _predict_command(
    command: Command,
    origin: str,
    work: Work,
    operands: Operands,
    missed: float,
    dram: int,
    gpu: Gpu,
    model: TimeModel,
    *,
    is_early: bool,
) -> CommandPrediction:
    grid = find_grid(command)
    bounds = bound_launch(work, grid, dram, missed, gpu)
    bound_by, longest = model.find_bound(bounds)
    begin = model.early_us if is_early else model.node_us
    if isinstance(command, HostCall):
        bound_by, alone = "host", 0.0
    else:
        around = begin + model.fill_us
        bound_by, alone = bound_by if longest > around else _LAUNCH, begin + model.predict_us(bounds)
    return CommandPrediction(
        _name(command), origin, grid.blocks, bounds.waves, sum(nbytes for _, _, nbytes in operands), dram, work.flops,
        bound_by, alone, bounds, begin, is_early,
    )  # fmt: skip


def _predict_call(
    call: LibraryCall,
    origin: str,
    work: Work,
    operands: Operands,
    dram: int,
    architecture: int,
    gpu: Gpu,
    model: TimeModel,
) -> CommandPrediction:
    """Return what is predicted of a call of a library: its time in closed form, over the whole device."""
    alone = predict_library_us(call.problem, architecture, gpu)
    tensor = 0.0 if call.problem.is_on_floats else alone
    bounds = LaunchBounds(tensor=tensor, dram=dram / gpu.dram_bytes_per_second * 1e6, waves=1.0)
    return CommandPrediction(
        call.library, origin, 0, bounds.waves, sum(nbytes for _, _, nbytes in operands), dram, work.flops, "library",
        alone, bounds, model.node_us, False,
    )  # fmt: skip


def _name(command: Command) -> str:
    match command:
        case Launch():
            return str(command.kernel)
        case Copy():
            return "copy"
        case Fill():
            return "fill"
        case LibraryCall():
            return command.library
        case HostCall():
            return "host"


class _Cache:
    """An L2 that evicts the line least recently used, and writes back what was written to it."""

    def __init__(self, nbytes: int) -> None:
        self._room = nbytes
        self._lines: OrderedDict[tuple[int, int], tuple[int, bool]] = OrderedDict()

    def touch(self, space: int, low: int, high: int, nbytes: int, *, is_written: bool) -> tuple[int, int]:
        """Access bytes spread over a range; return those that were missing, and those written back to make room."""
        missing, written_back = 0.0, 0
        share = nbytes / (high - low)
        for number in range(low // _LINE_BYTES, ceil_div(high, _LINE_BYTES)):
            own = (min(high, (number + 1) * _LINE_BYTES) - max(low, number * _LINE_BYTES)) * share
            size, is_dirty = self._lines.pop((space, number), (0, False))
            if not size and not is_written:
                missing += own
            now = min(_LINE_BYTES, max(size, int(own)))
            self._room -= now - size
            self._lines[space, number] = (now, is_dirty or is_written)
            while self._room < 0:
                _, (freed, is_dirty) = self._lines.popitem(last=False)
                self._room += freed
                written_back += freed if is_dirty else 0
        return int(missing), written_back


def _find_traffic(plan: Plan, operands: Sequence[Operands], gpu: Gpu) -> list[tuple[float, int]]:
    """Return for each command the share of the bytes read that L2 lacks, and the bytes from and to device memory."""
    places = plan.layout.as_dict()
    roles = {buffer.id: buffer.role for buffer in plan.buffers}
    cache = _Cache(gpu.l2_nbytes)
    found: list[tuple[float, int]] = []
    for _ in range(_RUNS):
        found = []
        for touched in operands:
            read = missing = back = 0
            for slot, is_written, nbytes in touched:
                low, high = slot.byte_range()
                if not nbytes or low >= high:
                    continue
                if nbytes * _SPARSE < high - low:
                    high = low + nbytes
                is_temp = roles[slot.buffer] is Role.TEMP
                space, shift = (-1, places[slot.buffer]) if is_temp else (slot.buffer, 0)
                lacking, evicted = cache.touch(space, low + shift, high + shift, nbytes, is_written=is_written)
                read += 0 if is_written else nbytes
                missing, back = missing + lacking, back + evicted
            found.append((missing / read if read else 0.0, missing + back))
    return found


def _find_end(
    rows: Sequence[CommandPrediction],
    edges: Sequence[Edge],
    programmatic: AbstractSet[Edge],
    gpu: Gpu,
    model: TimeModel,
) -> float:
    """Return when the last command ends, all begun as soon as their edges allow: sooner behind programmatic ones.

    Commands that run side by side share the places of blocks, the time of multiprocessors, L2 and device memory; what
    is asked for beyond the whole of one of these slows all of them down alike.
    """
    waiting = [0] * len(rows)
    following: list[list[int]] = [[] for _ in rows]
    for before, after in edges:
        waiting[after] += 1
        following[before].append(after)
    demands = [_find_demands(row, gpu, model) for row in rows]
    now = 0.0
    ready = [model.node_us] * len(rows)  # when each could begin, by the commands before it that have ended
    begins = {index: ready[index] for index in range(len(rows)) if not waiting[index]}  # when each begins
    left: dict[int, float] = {}  # microseconds of each command under way, had it the device for itself
    while begins or left:
        slow = max(1.0, *(sum(demands[index][i] for index in left) for i in range(4))) if left else 1.0
        ends = min((each * slow for each in left.values()), default=float("inf"))
        step = min(ends, min(begins.values(), default=float("inf")) - now)
        now += step
        left = {index: each - step / slow for index, each in left.items()}
        done = [index for index, each in left.items() if each <= 1e-9]
        for index in [index for index, begin in begins.items() if begin <= now + 1e-9]:
            del begins[index]
            left[index] = rows[index].predicted_us - rows[index].begin_us if rows[index].predicted_us else 0.0
        for index in done:
            del left[index]
            for each in following[index]:
                waiting[each] -= 1
                ready[each] = max(
                    ready[each], now + (model.early_us if (index, each) in programmatic else model.node_us)
                )
                if not waiting[each]:
                    begins[each] = ready[each]
    return now


def _find_demands(row: CommandPrediction, gpu: Gpu, model: TimeModel) -> tuple[float, float, float, float]:
    """Return the shares of the device that a command takes while it runs."""
    bounds, alone = row.bounds, row.predicted_us - row.begin_us
    if alone <= 0:
        return (0.0, 0.0, 0.0, 0.0)
    occupied = min(1.0, row.blocks / gpu.multiprocessors)
    busy = max(model.issue * bounds.issue, model.shared * bounds.shared) / alone
    return min(1.0, bounds.waves), occupied * busy, model.l2 * bounds.l2 / alone, model.dram * bounds.dram / alone
