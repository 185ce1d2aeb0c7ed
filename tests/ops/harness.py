"""Harness of operator cases: all checks of one case.

1. ``infer`` equals the specs of what ``compute`` returned.
2. ``compute`` equals the oracle: onnx.reference, onnxruntime, or arrays worked out by hand.
3. The case as a graph of one node: its plan passes `verify`, and the CPU device gives the bits ``compute`` gave.
4. Planned for a GPU and run on the simulator, or on a GPU, it is within the operator's tolerance of ``compute``, for
   dense inputs and for windows with gaps. An operator without a lowering is refused by name.
5. The simulator's check mode, in a random order of threads, finds nothing in the kernels of the case for dense inputs.
   Cases of more than 65536 elements, inputs and outputs together, are left out: what a kernel does wrong there it does
   wrong in a smaller case of its family too, or its family lacks one.
6. Planned for a target with textures, the case as blits is within the tolerance too: dense inputs in check mode where
   they are as small, windows with gaps on the simulator. A case without a blit is refused by name.

`run_case` does what `CHECKS` says: "host" is 1 to 3; "simulator" and "gpu" are 4 there; "check" is 5, "pixel" is 6.
tests/ops/conftest.py runs every test of cases once for each. "plan" only plans for GPUs and keeps the plans: what
tests/launches.py asks for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.graphs import Graph, Value
from gpuexec.operator import Operator
from gpuexec.plan import Plan
from gpuexec.planner.template import Template, plan_graph
from gpuexec.planner.verify import verify
from gpuexec.spec import TensorSpec
from gpuexec.target import Target
from tests.devices.opening import open_living
from tests.execute import run_template
from tests.graph_builder import GraphBuilder
from tests.ops.case import Case, build_operator, const_positions, expect
from tests.ops.strided import memory_of, spread_all
from tests.ops.tolerance import assert_close, to_bits

Array = np.ndarray[Any, Any]
MOST_CHECKED_ELEMENTS = 1 << 16
# What `run_case` does now; the fixture of tests/ops/conftest.py sets it.
CHECKS: list[str] = ["host", "simulator"]
# What the check "plan" plans for, and the plans it made.
TARGETS: list[Target] = []
PLANS: list[Plan] = []


def run_case(case: Case) -> None:
    """Run the checks of a case that `CHECKS` names."""
    op, inputs = build_operator(case)
    known = const_positions(case, inputs)
    if "plan" in CHECKS:
        if op.is_lowered(_specs(inputs, known)):
            PLANS.extend(
                plan_case(case, op, given, known, target)[0].plan
                for target in TARGETS
                for given in (inputs, spread_all(inputs, known))
                if not target.has_textures or is_drawn(case, op, given, known, target)
            )
        return
    computed = check_refusal(case, op, inputs) if case.refusal else op.compute(*inputs)
    if "host" in CHECKS and not case.refusal:
        check_compute(case, op, inputs, known, computed)
        for made, expected in zip(run_on("cpu", case, op, inputs, known), _wanted(case, computed), strict=True):
            np.testing.assert_array_equal(
                to_bits(made), to_bits(expected), err_msg=f"{case.id}: the CPU's plan differs"
            )
    for device in ("simulator", "gpu"):
        if device in CHECKS:
            check_device(device, case, op, inputs, known, computed)
    if "pixel" in CHECKS:
        check_blits(case, op, inputs, known, computed)
    if (
        "check" in CHECKS
        and op.is_lowered(_specs(inputs, known))
        and count_elements(inputs, computed) <= MOST_CHECKED_ELEMENTS
    ):
        run_on("check", case, op, inputs, known)


def count_elements(*groups: Sequence[Array | None]) -> int:
    """Return the elements of all arrays."""
    return sum(array.size for group in groups for array in group if array is not None)


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


def check_device(
    name: str,
    case: Case,
    op: Operator,
    inputs: Sequence[Array | None],
    known: set[int],
    computed: Sequence[Array | None],
) -> None:
    """Check what the kernels of a device make of a case, or that an operator without any is refused."""
    if not op.is_lowered(_specs(inputs, known)):
        with pytest.raises(UnsupportedError, match=op.name):
            run_on(name, case, op, inputs, known)
        return
    positions = [index for index, wanted in enumerate(case.outputs) if wanted]
    for given in (inputs, spread_all(inputs, known)):
        for index, got in zip(positions, run_on(name, case, op, given, known), strict=True):
            expected = computed[index]
            assert expected is not None
            compare(case, op, index, got, expected, inputs)


def check_blits(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], computed: Sequence[Array | None]
) -> None:
    """Check what blits make of a case, or that one without any is refused."""
    positions = [index for index, wanted in enumerate(case.outputs) if wanted]
    is_small = count_elements(inputs, computed) <= MOST_CHECKED_ELEMENTS
    for device, given in (("pixel_check" if is_small else "pixel", inputs), ("pixel", spread_all(inputs, known))):
        if not op.is_lowered(_specs(given, known)) or not is_drawn(case, op, given, known, open_living(device).target):
            with pytest.raises(UnsupportedError, match=op.name):
                run_on(device, case, op, given, known)
            return
        outputs = run_on(device, case, op, given, known)
        for index, got in zip(positions, outputs, strict=True):
            expected = computed[index]
            assert expected is not None
            compare(case, op, index, got, expected, inputs)


def run_on(name: str, case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int]) -> list[Array]:
    """Plan the case as a graph of one node, verify the plan, and run it on a device; return the wanted outputs."""
    device = open_living(name)
    template, graph, arrays = plan_case(case, op, inputs, known, device.target)
    verify(template.plan)
    return run_template(template, graph, arrays, device)


def is_drawn(case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], target: Target) -> bool:
    """Return whether a target with textures has blits for a case."""
    try:
        plan_case(case, op, inputs, known, target)
    except UnsupportedError:
        return False
    return True


def plan_case(
    case: Case, op: Operator, inputs: Sequence[Array | None], known: set[int], target: Target
) -> tuple[Template, Graph, dict[str, Array]]:
    """Plan the case as a graph of one node; return the plan's template, the graph, and its inputs by name."""
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
    specs = {key: TensorSpec(memory.shape, memory.dtype) for key, memory in arrays.items()}
    return plan_graph(graph, specs, target), graph, arrays


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
