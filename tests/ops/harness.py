"""Harness of operator cases: all checks of one case.

1. ``infer`` equals the specs of what ``compute`` returned.
2. ``compute`` equals the oracle: onnx.reference, onnxruntime, or arrays worked out by hand.
3. The case as a graph of one node: its plan is verified, and the CPU device gives the bits ``compute`` gave. Where the
   operator is prepared, its calls give the bits of ``compute``, for dense inputs and for windows with gaps.
4. Planned for a GPU and run on the simulator, or on a GPU, it is within the operator's tolerance of ``compute``, for
   dense inputs and for windows with gaps. An operator without a lowering is refused by name. Closed forms of work have
   figures for what is launched.
5. On the simulator both run in check mode, in a random order of threads, which finds nothing in the kernels. Cases of
   more than 65536 elements, inputs and outputs together, run without it: what a kernel does wrong there it does wrong
   in a smaller case of its family too, or its family lacks one. Kernels as users run them, without the checks, are
   those of models and of ONNX's own cases (tests/system).
6. The same for a target with textures, the case as blits, where its operator has any. A case without a blit is refused
   by name. Cases of more than 32768 elements, two rows of a texture of floats, are planned and not drawn: a thread
   draws its texels there as in a smaller case of its family.

A test takes the parameter ``checks`` and gives it to `run_case`; tests/ops/conftest.py runs it once for each choice:
"host" is 1 to 3, "simulator" 4 and 5, "pixel" 6, and "gpu", with ``-m gpu``, 4 on a GPU. "plan" only lowers for GPUs
and keeps the launches: what tests/devices/launches.py asks for.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.device import Device
from gpuexec.errors import InputError, KernelError, NeedsHostValue, UnsupportedError
from gpuexec.ir.command import Kernel, Launch
from gpuexec.ir.graphs import Graph, Value
from gpuexec.ir.operator import Operator
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.work import Work, find_form
from gpuexec.planner.analyse import Analyser
from gpuexec.planner.lower import Lowering
from gpuexec.planner.resolve import Resolver
from gpuexec.planner.settle import OutputCopies, settle
from gpuexec.planner.template import Template, plan_graph
from tests.devices.execute import run_template, specs_of
from tests.devices.opening import open_living
from tests.ir.graph_builder import GraphBuilder
from tests.ops.case import Case, build_operator, const_positions, expect
from tests.ops.prepared import check_prepared
from tests.ops.strided import is_dense, memory_of, spread_all
from tests.ops.tolerance import assert_close, to_bits

Array = np.ndarray[Any, Any]
MAX_CHECKED_ELEMENTS = 1 << 16
MAX_DRAWN_ELEMENTS = 1 << 15  # as blits
# The device whose kernels are checked, for those that have one.
IN_CHECK_MODE = {"simulator": "check", "simulator_90": "check_90", "pixel": "pixel_check"}
# Attributes that are operators themselves, of which kernels are generated.
GENERATING = frozenset({"steps", "maker", "score_steps"})
# What the check "plan" plans for, and the launches of its plans by target.
TARGETS: list[Target] = []
LAUNCHES: list[tuple[str, list[Launch]]] = []
# What `compile_first` was asked for.
_COMPILED: set[Hashable] = set()
# A case with its operator, its inputs, and the positions of those that planning knows.
GivenCase = tuple[Case, Operator, Sequence[Array | None], set[int]]


@dataclass(frozen=True, slots=True)
class PlannedCase:
    """A case as a graph of one node, planned, and its inputs by name."""

    template: Template
    graph: Graph
    arrays: dict[str, Array]


def run_case(case: Case, checks: str) -> None:
    """Run the checks of a case that ``checks`` names."""
    op, inputs = build_operator(case)
    known = const_positions(case, inputs)
    if checks == "plan":
        plan_launches(case, op, inputs, known)
        return
    if is_beyond_drawing(case, inputs, checks):
        for given in list_layouts(inputs, known):
            plan_supported(case, op, given, known, open_living(checks).target)
        return
    computed = check_refusal(case, op, inputs) if case.refusal else op.compute(*inputs)
    if checks == "host":
        if not case.refusal:
            check_compute(case, op, inputs, known, computed)
            for made, expected in zip(run_on("cpu", case, op, inputs, known), _wanted(case, computed), strict=True):
                np.testing.assert_array_equal(
                    to_bits(made), to_bits(expected), err_msg=f"{case.id}: the CPU's plan differs"
                )
        return
    check_device(checks, case, op, inputs, known, computed)


def plan_launches(case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int]) -> None:
    """Lower a case, dense and with gaps, for each of `TARGETS` that has kernels for it, and keep the launches."""
    for given in list_layouts(inputs, known):
        graph, arrays = build_graph(case, op, given, known)
        for target in TARGETS:
            if op.has_blits or not target.has_textures:
                with refusing_unsupported(case, op, inputs, known, target):
                    LAUNCHES.append((target.name, list_launches(graph, specs_of(arrays), target)))


def list_launches(graph: Graph, specs: Mapping[str, TensorSpec], target: Target) -> list[Launch]:
    """Return the launches of a graph's plan, which is not made: laying it out and verifying it takes as long again."""
    lowered = Lowering(graph, target).run(Analyser(graph).run(specs))
    settlement = settle(lowered, graph, target, OutputCopies(graph, target))
    commands = Resolver(settlement, target).resolve(lowered.unpacked)
    return [command for command in commands if isinstance(command, Launch)]


def compile_first(key: Hashable, cases: Iterable[Case], checks: str) -> None:
    """Compile what the cases of a test launch as `compile_together` does, at the first call for a ``key``.

    For tests that make their cases themselves, with choices patched as they are at the call.
    """
    if checks in IN_CHECK_MODE and (key, checks) not in _COMPILED:
        _COMPILED.add((key, checks))
        compile_together(list(cases), checks)


def compile_together(cases: Sequence[Case], checks: str) -> None:
    """Compile the kernels of generated text that cases launch, dense and with gaps."""
    for is_small in (True, False):
        calls: list[GivenCase] = []
        for case in cases:
            op, inputs = build_operator(case)
            if is_beyond_drawing(case, inputs, checks):
                continue
            if (count_elements(inputs, case.expected or ()) <= MAX_CHECKED_ELEMENTS) == is_small:
                known = const_positions(case, inputs)
                calls += [(case, op, given, known) for given in list_layouts(inputs, known)]
        compile_generated(calls, open_living(IN_CHECK_MODE[checks] if is_small else checks))


def compile_generated(calls: Iterable[GivenCase], device: Device) -> None:
    """Compile the kernels of generated text that calls launch, all those of one file as one object.

    Each by itself takes three times as long, most of it for what stands in front of the text. What can't be planned or
    compiled is left to its own test, which says so.
    """
    kernels: dict[Kernel, None] = {}
    for case, op, inputs, known in calls:
        graph, arrays = build_graph(case, op, inputs, known)
        with contextlib.suppress(UnsupportedError, NeedsHostValue):
            launches = list_launches(graph, specs_of(arrays), device.target)
            kernels |= dict.fromkeys(launch.kernel for launch in launches if launch.kernel.text)
    with contextlib.suppress(KernelError):
        device.load(list(kernels))


def keep_plans(graph: Graph, specs: Mapping[str, TensorSpec]) -> list[Plan]:
    """Plan a graph for each of `TARGETS` without textures and keep the launches; where there are none, for sm_90."""
    targets = [target for target in TARGETS if not target.has_textures]
    plans = [plan_graph(graph, specs, target).plan for target in targets or [Target.named("sm_90")]]
    if targets:
        LAUNCHES.extend(
            (plan.target, [command for command in plan.segment.commands if isinstance(command, Launch)])
            for plan in plans
        )
    return plans


def count_elements(*groups: Sequence[Array | None]) -> int:
    """Return the elements of all arrays."""
    return sum(array.size for group in groups for array in group if array is not None)


def is_beyond_drawing(case: Case, inputs: Sequence[Array | None], checks: str) -> bool:
    """Return whether a case is planned as blits, and not drawn."""
    return checks == "pixel" and count_elements(inputs, case.expected or ()) > MAX_DRAWN_ELEMENTS


def check_refusal(case: Case, op: Operator, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
    """Check that ``compute`` refuses the inputs with the words of the case; return what kernels make of them."""
    with pytest.raises(InputError, match=re.escape(case.refusal)):
        op.compute(*inputs)
    assert case.expected is not None, f"{case.id}: what kernels make of refused inputs is not known"
    return case.expected


def check_compute(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], computed: Sequence[Array | None]
) -> None:
    """Check ``compute`` by ``infer``, by the oracle, and with outputs in strided memory."""
    inferred = op.infer(*_specs(inputs, known))
    for index, wanted in enumerate(case.outputs):
        if wanted:
            got = computed[index]
            assert isinstance(got, np.ndarray), f"{case.id}: output {index} is {type(got).__name__}, not an array"
            assert (inferred[index].shape, inferred[index].dtype) == (got.shape, got.dtype), (
                f"{case.id}: output {index} inferred {inferred[index]}, computed {TensorSpec(got.shape, got.dtype)}"
            )
    for index, (wanted, expected) in enumerate(zip(case.outputs, expect(case), strict=True)):
        if wanted:
            compare(case, op, index, computed[index], expected, inputs)
    _check_strided_outputs(case, op, inputs, computed)
    for given in list_layouts(inputs, known):
        made = zip(computed if given is inputs else op.compute(*given), case.outputs, strict=False)
        check_prepared(case.id, op, given, known, [array if is_wanted else None for array, is_wanted in made])


def check_device(
    name: str,
    case: Case,
    op: Operator,
    inputs: Sequence[Array | None],
    known: set[int],
    computed: Sequence[Array | None],
) -> None:
    """Check what the kernels of a device make of a case, or that an operator without any is refused."""
    is_small = count_elements(inputs, computed) <= MAX_CHECKED_ELEMENTS
    positions = [index for index, wanted in enumerate(case.outputs) if wanted]
    for given in list_layouts(inputs, known):
        device = open_living(IN_CHECK_MODE.get(name, name) if is_small else name)
        planned = plan_supported(case, op, given, known, device.target)
        if planned is None:
            return
        check_work(case, planned.template.plan)
        for index, got in zip(positions, run_planned(planned, device), strict=True):
            expected = computed[index]
            assert expected is not None
            compare(case, op, index, got, expected, inputs)


def check_work(case: Case, plan: Plan) -> None:
    """Check that closed forms describe the launches of a plan: no figure is below 0, and none is infinite."""
    for command in plan.segment.commands:
        form = find_form(command.kernel) if isinstance(command, Launch) else None
        if form is not None:
            assert isinstance(command, Launch)
            whole = form(command)
            for work in (whole, whole.behind or Work()):
                names = [each.name for each in fields(work) if each.name not in ("operand_nbytes", "behind")]
                figures = [*(getattr(work, name) for name in names), *work.operand_nbytes.values()]
                is_real = all(0 <= each < math.inf for each in figures)
                assert is_real, f"{case.id}: {command.kernel} does {work}"


def list_layouts(inputs: Sequence[Array | None], known: set[int]) -> list[Sequence[Array | None]]:
    """Return the inputs as they are, and with gaps where that makes a difference to plans."""
    gaps = spread_all(inputs, known)
    is_same = all(x is y or (is_dense(x) and is_dense(y)) for x, y in zip(inputs, gaps, strict=True))
    return [inputs] if is_same else [inputs, gaps]


def run_on(name: str, case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int]) -> list[Array]:
    """Plan the case as a graph of one node and run it on a device; return the wanted outputs."""
    device = open_living(name)
    return run_planned(plan_case(case, op, inputs, known, device.target), device)


def run_planned(planned: PlannedCase, device: Device) -> list[Array]:
    """Run the plan of a case, which its template has verified; return the wanted outputs."""
    return run_template(planned.template, planned.graph, planned.arrays, device)


def plan_supported(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], target: Target
) -> PlannedCase | None:
    """Plan the case; None where the target has no kernels for it, which planning has refused by name."""
    with refusing_unsupported(case, op, inputs, known, target):
        return plan_case(case, op, inputs, known, target)
    return None


@contextlib.contextmanager
def refusing_unsupported(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], target: Target
) -> Iterator[None]:
    """Leave out what follows where the target has no kernels for the case, which must be refused by name.

    Every operator that is lowered has kernels; a blit may lack.
    """
    is_lowered = op.is_lowered(_specs(inputs, known))
    try:
        yield
    except UnsupportedError as error:
        if (is_lowered and not target.has_textures) or op.name not in str(error):
            raise
        return
    assert is_lowered, f"{case.id}: {op.name} is planned without a lowering"


def plan_case(case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], target: Target) -> PlannedCase:
    """Plan the case as a graph of one node."""
    graph, arrays = build_graph(case, op, inputs, known)
    return PlannedCase(plan_graph(graph, specs_of(arrays), target), graph, arrays)


def build_graph(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int]
) -> tuple[Graph, dict[str, Array]]:
    """Return the case as a graph of one node, and its inputs by name."""
    build, values = GraphBuilder(), list[Value | None]()
    arrays: dict[str, Array] = {}
    for index, x in enumerate(inputs):
        if x is None:
            values.append(None)
        elif index in known:
            values.append(build.constant(np.array(x), f"x{index}"))
        else:
            memory, window = memory_of(x)
            arrays[f"x{index}"] = memory
            value = build.input(f"x{index}", *memory.shape, dtype=x.dtype)
            values.append(value if window is None else build.node(window, value))
    absent = [index for index, wanted in enumerate(case.outputs) if not wanted]
    count = len(op.infer(*_specs(inputs, known)))
    outputs = build.nodes(op, *values, count=count, name=case.id, absent=absent)
    graph = build.graph(*[outputs[index] for index, wanted in enumerate(case.outputs) if wanted])
    return graph, arrays


def compare(
    case: Case, op: Operator, index: int, got: Array | None, expected: Array, inputs: Sequence[Array | None]
) -> None:
    """Compare an output by the operator's tolerance class."""
    assert_close(f"{case.id}: output {index}", op, inputs, index, got, expected, case.terms)


def _check_strided_outputs(
    case: Case, op: Operator, inputs: Sequence[Array | None], computed: Sequence[Array | None]
) -> None:
    """Check that ``compute(out=)`` with strided outputs gives the same bits."""
    out: list[Array | None] = []
    for wanted, array in zip(case.outputs, computed, strict=False):
        if not wanted or array is None:
            out.append(None)
            continue
        roomy = np.zeros((*array.shape[:-1], 2 * array.shape[-1]) if array.ndim else (2,), array.dtype)
        out.append(roomy[..., ::2] if array.ndim else roomy[:1].reshape(()))
    again = _wanted(case, op.compute(*inputs, out=out))
    for first, second in zip(_wanted(case, computed), again, strict=True):
        np.testing.assert_array_equal(to_bits(second), to_bits(first), err_msg=f"{case.id}: compute(out=) differs")


def _specs(inputs: Sequence[Array | None], known: set[int]) -> list[TensorSpec | None]:
    return [
        None if x is None else (TensorSpec.of(x) if i in known else TensorSpec(x.shape, x.dtype))
        for i, x in enumerate(inputs)
    ]


def _wanted(case: Case, outputs: Sequence[Array | None]) -> list[Array]:
    found = [output for output, wanted in zip(outputs, case.outputs, strict=False) if wanted]
    assert all(output is not None for output in found)
    return [output for output in found if output is not None]
