"""Facts on the classes of operators: operations, types kept, derivatives, blits, epilogues, factors, random numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpuexec.cli.operator_types import PIXEL
from gpuexec.errors import InputError
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import (
    Derivative,
    KnownInput,
    Operator,
    build,
    decomposition_for,
    find_operator,
    operator_names,
)
from gpuexec.ir.spec import TensorSpec, is_host_object
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import FINISHED, fused_name
from gpuexec.ops.elementwise.fused import PRODUCERS, Fused
from gpuexec.ops.elementwise.prologue import ProductOfRows
from gpuexec.ops.elementwise.region import Steps
from gpuexec.ops.lib.composite import Composite
from gpuexec.passes.decompose import decompose
from gpuexec.passes.derivatives import OF_ALL_OUTPUTS, PARTS, RULES
from gpuexec.planner.partitioner import find_partition
from gpuexec.planner.template import plan_graph
from tests.ops.agreement import compute
from tests.ops.calls import Call
from tests.ops.every_call import list_calls
from tests.ops.odd import Inputs, vary_dtypes
from tests.ops.tolerance import to_bits

Array = np.ndarray[Any, Any]
CLASSES = {
    name: found
    for name in operator_names()
    if (found := find_operator(name)) is not None and found.__module__.startswith("gpuexec.")
}
COUNTS = ("flops_per_output", "flops_per_input", "count_flops")
COMPUTE = Target.named("sm_90")
# Made of operators that may have epilogues, behind the pass that fuses these; what pads is padded as in those.
JOINED = {"gpuexec.AppendingAttention", "gpuexec.NormalizedConv", "gpuexec.SeparableConv"}


def is_stated(cls: type[Operator], *names: str) -> bool:
    """Return whether a class, or a base of it that is no base of all, has one of some attributes."""
    own = cls.__mro__[: cls.__mro__.index(Operator)]
    return any(name in vars(each) for each in own for name in names)


@pytest.mark.parametrize("name", CLASSES)
def test_operations_are_counted_or_said_to_have_no_formula(name: str) -> None:
    assert is_stated(CLASSES[name], *COUNTS), f"{name} needs one of {', '.join(COUNTS)}; None where there is no formula"
    for call in list_calls().get(name, ()):
        inputs = describe(call.inputs)
        count = call.operator.count_flops(inputs, call.operator.infer(*inputs))
        assert count is None or (isinstance(count, int) and count >= 0), call


@pytest.mark.parametrize("name", CLASSES)
def test_type_of_the_result_is_reported_where_it_is_that_of_the_first_input(name: str) -> None:
    """`find_dtype` names the result's type, and names it wherever that is always the first input's."""
    cls, kept = CLASSES[name], set()
    for op, inputs, made in list_variants(name):
        dtypes = [None if x is None else x.dtype for x in inputs]
        found = op.find_dtype(dtypes)
        assert found is None or found == made.dtype, f"{op} of {inputs}"
        kept.add(bool(inputs) and inputs[0] is not None and inputs[0].dtype == made.dtype)
    if not issubclass(cls, Composite) and kept:
        assert cls.keeps_dtype == (kept == {True})


@pytest.mark.parametrize("name", CLASSES)
def test_nodes_asked_to_do_nothing_give_their_input(name: str) -> None:
    for call in list_calls().get(name, ()):
        known = [None if x is None else KnownInput(x.dtype, x) for x in call.inputs]
        x = call.inputs[0] if call.inputs else None
        if x is not None and call.operator.is_noop(known):
            made = compute(call.operator, call.inputs)
            assert made is not None and made[0] is not None
            assert (made[0].shape, made[0].dtype) == (x.shape, x.dtype)
            if is_host_object(x.dtype):
                assert made[0] is x
            else:
                np.testing.assert_array_equal(to_bits(made[0]), to_bits(x))


def test_derivatives_are_those_of_the_rules() -> None:
    found = {name: cls.derivative for name, cls in CLASSES.items()}
    assert {name for name in found if found[name] is Derivative.RULE} == RULES.keys() | OF_ALL_OUTPUTS.keys()
    of_parts = {name for name in found if decomposition_for(name) is not None and found[name] is not Derivative.ZERO}
    assert {name for name in found if found[name] is Derivative.PARTS} == PARTS.keys() | of_parts
    for name, cls in CLASSES.items():
        assert not cls.fixed_inputs or cls.derivative is Derivative.RULE, name


@pytest.mark.parametrize("name", CLASSES)
def test_what_has_kernels_says_whether_it_has_blits(name: str) -> None:
    cls = CLASSES[name]
    if cls.lower is None or decomposition_for(name) is not None:
        assert not cls.has_blits, "its parts have them, or the host computes it"
        return
    assert is_stated(cls, "has_blits"), f"{name} needs has_blits"
    calls = list_calls()[name]
    assert cls.has_blits == any(is_drawn(call) for call in calls)


def test_what_has_an_epilogue_says_so() -> None:
    """Producers are what launches a kernel with steps for its one result."""
    stated = {name for name, cls in CLASSES.items() if cls.takes_epilogue}
    assert stated == PRODUCERS.keys()
    for name in stated:
        found = find_operator(fused_name(name))
        assert found is not None and issubclass(found, Fused)
        assert not found.keeps_dtype, "a Cast may be its last step"
    others = [name for name, cls in CLASSES.items() if not issubclass(cls, (Steps, ProductOfRows))]  # have such
    launching = {name for name in others if any(launch.kernel in FINISHED for launch in list_producing(name))}
    assert launching - JOINED == stated


def test_what_is_multiplied_by_padding_is_said() -> None:
    """Tiles of convolutions have zeros for taps and channels that only pad; with an epilogue and without."""
    stated = {name for name, cls in CLASSES.items() if cls.padded_factors and not issubclass(cls, Fused)} - JOINED
    assert {name for name in CLASSES if any(map(is_padded, list_producing(name)))} == stated
    for name in stated:
        finished = find_operator(fused_name(name))
        assert finished is not None and finished.padded_factors == CLASSES[name].padded_factors


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if len(cls.multiplied) > 1])
def test_factors_are_multiplied_with_each_other(name: str) -> None:
    """What one is divided by, the other is multiplied with: powers of two leave the same bits."""
    tried = 0
    for call in list_calls()[name]:
        made = compute(call.operator, call.inputs)
        if is_product(call) and made is not None and np.isfinite(to_wide(made[0])).all():
            one, other = call.operator.multiplied[:2]
            first, second = call.inputs[one], call.inputs[other]
            assert first is not None and second is not None
            scaled = compute(
                call.operator, put(call, {one: first * first.dtype.type(2), other: second / second.dtype.type(2)})
            )
            assert scaled is not None and made[0] is not None and scaled[0] is not None
            np.testing.assert_array_equal(to_wide(scaled[0]), to_wide(made[0]), err_msg=str(call))
            tried += 1
    assert tried


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if is_stated(cls, "channel_axis")])
def test_places_along_the_channels_make_elements_of_their_own(name: str) -> None:
    tried = 0
    for call in list_calls()[name]:
        for factor in call.operator.multiplied:
            if not is_product(call) or (weight := call.inputs[factor]) is None:
                continue
            axis = call.operator.channel_axis(factor, weight.ndim)
            if axis is None or not 1 < weight.shape[axis] < 20:
                continue
            none = compute(call.operator, put(call, {factor: weight * weight.dtype.type(0)}))
            reached = 0
            for place in range(weight.shape[axis]):
                alone = np.zeros_like(weight)
                where = (slice(None),) * axis + (place,)
                alone[where] = weight[where]
                made = compute(call.operator, put(call, {factor: alone}))
                assert none is not None and made is not None
                reached = reached + (to_wide(made[0]) != to_wide(none[0])).astype(int)
            assert np.max(reached, initial=0) <= 1, f"{call}: axis {axis} of input {factor}"
            tried += 1
    assert tried


@pytest.mark.parametrize("name", [name for name, cls in CLASSES.items() if is_stated(cls, "scaled_product")])
def test_products_with_scales_of_one_are_those_they_stand_for(name: str) -> None:
    tried, one = 0, np.array(1, np.float32)
    for call in list_calls()[name]:
        attributes = call.operator.scaled_product
        if attributes is None or not is_product(call):
            continue
        a, b, *addend = [None if x is None else x.astype(np.float32) for x in call.inputs]
        assert a is not None and b is not None and call.operator.multiplied == (0, 1)
        narrow = [x.astype(ml_dtypes.float8_e4m3fn) for x in (a, b)]
        given = (*(x.astype(np.float32) for x in narrow), *addend)
        made = compute(build("gpuexec.ScaledMatMul", attributes), (*narrow, one, one, *addend))
        expected = compute(call.operator, given)
        assert made is not None and expected is not None
        np.testing.assert_allclose(to_wide(made[0]), to_wide(expected[0]), rtol=1e-6)
        tried += 1
    assert tried


def test_what_moves_elements_may_have_them_rounded_before() -> None:
    moving = set()
    for name in CLASSES:
        for call in list_calls().get(name, ()):
            places = call.operator.moved_inputs(len(call.inputs))
            given = {place: x for place in places if (x := call.inputs[place]) is not None}
            if not given or any(x.dtype != np.float32 for x in given.values()):
                continue
            rounded = put(call, {place: x.astype(np.float16).astype(np.float32) for place, x in given.items()})
            made, expected = compute(call.operator, rounded), compute(call.operator, call.inputs)
            assert made is not None and expected is not None and made[0] is not None and expected[0] is not None
            np.testing.assert_array_equal(to_bits(made[0]), to_bits(expected[0].astype(np.float16).astype(np.float32)))
            moving.add(name)
    assert moving == {"Concat", "Gather", "Resize"}


@pytest.mark.parametrize("name", CLASSES)
def test_what_draws_random_numbers_says_so(name: str) -> None:
    """It has a stream of its own to draw from, or parts that have."""
    cls = CLASSES[name]
    if issubclass(cls, Composite):
        parts = [node for call in list_calls()[name] for node in take_apart(call)]
        assert cls.is_random == any(node.operator.is_random for node in parts)
    else:
        assert cls.is_random == ("stream" in {field.name for field in dataclasses.fields(cls)})  # type: ignore[arg-type]


def is_product(call: Call) -> bool:
    """Return whether a call multiplies finite floats, of 8 bits where scales are theirs."""
    factors = [call.inputs[i] if i < len(call.inputs) else None for i in call.operator.multiplied]
    dtypes = (np.float32, np.float64, ml_dtypes.float8_e4m3fn)
    return all(x is not None and x.dtype in dtypes and np.isfinite(x).all() for x in factors)


def put(call: Call, arrays: Mapping[int, Array]) -> Inputs:
    """Return the inputs of a call with others in some places."""
    return tuple(arrays.get(index, x) for index, x in enumerate(call.inputs))


def to_wide(array: Array | None) -> Array:
    assert array is not None
    return array.astype(np.float64)


def describe(inputs: Inputs) -> tuple[TensorSpec | None, ...]:
    return tuple(None if x is None else TensorSpec.of(x) for x in inputs)


def list_variants(name: str) -> Iterator[tuple[Operator, tuple[TensorSpec | None, ...], TensorSpec]]:
    """Yield calls in every type, and what the first output is."""
    for call in list_calls().get(name, ()):
        for inputs in (call.inputs, *(inputs for _, inputs in vary_dtypes(call))):
            specs = describe(inputs)
            try:
                made = call.operator.infer(*specs)
            except InputError:
                continue
            if made:
                yield call.operator, specs, made[0]


def take_apart(call: Call) -> tuple[Node, ...]:
    """Return the parts of a call, for as many outputs as there are."""
    for outputs in range(count_outputs(call), 0, -1):
        try:
            return decompose(make_graph(call, outputs)).nodes
        except InputError:  # with these inputs there are fewer
            continue
    raise AssertionError(call)


def count_outputs(call: Call) -> int:
    return len(call.operator.infer(*describe(call.inputs)))


def make_graph(call: Call, outputs: int) -> Graph:
    """Return a graph of one node of which so many outputs are wanted."""
    values = [None if x is None else Value(f"x{i}") for i, x in enumerate(call.inputs)]
    made = tuple([Value(f"y{i}") for i in range(outputs)])
    node = Node(call.operator, tuple(values), (*made, *(None,) * (count_outputs(call) - outputs)), "node")
    return Graph(tuple([value for value in values if value is not None]), made, (node,), {})


def is_drawn(call: Call) -> bool:
    """Return whether a target with textures leaves nothing to the host, be it that the first output alone is wanted."""
    for outputs in {1, count_outputs(call)}:
        graph = make_graph(call, outputs)
        if not find_partition(graph, find_specs(graph, call), PIXEL).host_calls:
            return True
    return False


def is_padded(launch: Launch) -> bool:
    return launch.kernel.source == "conv_simt.cu"


@functools.lru_cache(None)
def list_producing(name: str) -> tuple[Launch, ...]:
    """Return the launches that give the first outputs of an operator's calls, but of what has an epilogue."""
    cls, found = CLASSES[name], list[Launch]()
    if cls.lower is None or decomposition_for(name) is not None or issubclass(cls, Fused):
        return ()
    for call in list_calls()[name]:
        graph = make_graph(call, 1)
        specs = find_specs(graph, call)
        if (
            any(is_host_object(spec.dtype) for spec in specs.values())
            or find_partition(graph, specs, COMPUTE).host_calls
        ):
            continue
        plan = plan_graph(graph, {value.name: spec for value, spec in specs.items()}, COMPUTE, {}).plan
        results = {port.buffer for port in plan.outputs}
        launches = [each for each in plan.segment.commands if isinstance(each, Launch)]
        found += [each for each in launches if any(slot.buffer in results for slot in each.writes_to())]
    return tuple(found)


def find_specs(graph: Graph, call: Call) -> dict[Value, TensorSpec]:
    return dict(zip(graph.inputs, [spec for spec in describe(call.inputs) if spec is not None], strict=True))
