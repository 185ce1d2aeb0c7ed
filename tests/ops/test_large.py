"""Every operator with tensors beyond 2**31 elements: planned for a GPU, or refused for what no GPU has.

Offsets and counts that a launch is given must hold such numbers; what is made for 32 bits says so when it is planned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gpuexec.errors import InputError, KernelError, NeedsHostValue, OutOfMemoryError, UnsupportedError
from gpuexec.ir.graphs import Value
from gpuexec.ir.operator import find_operator
from gpuexec.ir.plan import Plan
from gpuexec.ir.spec import TensorSpec
from gpuexec.passes.decompose import decompose
from gpuexec.planner.template import plan_graph
from tests.devices.opening import open_device
from tests.ir.graph_builder import GraphBuilder
from tests.ops.calls import Call
from tests.ops.every_call import choose_calls, list_asked
from tests.ops.test_every_operator import NAMES

FAR = 2**31
# Tables as long as an axis are made while planning: only axes that have none are enlarged.
TABLES = {"Resize": (0,)}
_GRID = re.compile(r"grid .* is outside 1 to")
Shapes = dict[int, tuple[int, ...]]


def enlarge(call: Call) -> Iterator[Shapes]:
    """Return shapes of inputs with an extent beyond 2**31: wherever it is met, and in one place alone."""
    known = list_asked(call.operator, call.inputs)
    free = {i: x.shape for i, x in enumerate(call.inputs) if x is not None and i not in known}
    axes = TABLES.get(call.operator.name, range(8))
    for extent in sorted({n for shape in free.values() for n in shape}):
        if axes == range(8):
            yield {i: tuple(FAR + n if n == extent else n for n in shape) for i, shape in free.items()}
    for i, shape in free.items():
        for axis, extent in enumerate(shape):
            if axis in axes:
                yield {**free, i: (*shape[:axis], FAR + extent, *shape[axis + 1 :])}


def plan(call: Call, shapes: Shapes) -> Plan | None:
    """Plan an operator for inputs of these shapes; None where it refuses them, or wants content first."""
    build, specs, values = GraphBuilder(), dict[str, TensorSpec](), list[Value | None]()
    given: list[TensorSpec | None] = []
    for i, x in enumerate(call.inputs):
        if x is None:
            values.append(None)
            given.append(None)
        elif i in shapes:
            specs[f"x{i}"] = TensorSpec(shapes[i], x.dtype)
            values.append(build.input(f"x{i}", *shapes[i], dtype=x.dtype))
            given.append(specs[f"x{i}"])
        else:
            values.append(build.constant(x, f"x{i}"))
            given.append(TensorSpec.of(x))
    try:
        count = len(call.operator.infer(*given))
        graph = decompose(build.graph(*build.nodes(call.operator, *values, count=count)))
        template = plan_graph(graph, specs, open_device("tracer").target)
    except (InputError, NeedsHostValue):
        return None
    return template.plan


@pytest.mark.parametrize("name", NAMES)
def test_what_is_beyond_32_bits_is_planned_or_refused(name: str) -> None:
    found = find_operator(name)
    assert found is not None
    (call,) = choose_calls(name, 1)
    for shapes in enlarge(call):
        try:
            plan(call, shapes)
        except KernelError as error:  # beyond the grid of any GPU
            if not _GRID.search(str(error)):
                raise
        except OutOfMemoryError:  # beyond the addresses of any GPU
            continue
        except UnsupportedError:
            assert found.lower is None or found.host_reason, f"{name} lacks a lowering"
