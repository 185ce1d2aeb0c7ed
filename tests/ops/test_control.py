"""If, Loop and Scan on the host: results, inference, refusals, and inlined branches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from gpuexec.errors import GpuexecError, InputError, NeedsHostValue
from gpuexec.importer import load_graph, run_oracle
from gpuexec.ir.graphs import Graph, Node, Value, bodies, check, with_bodies
from gpuexec.ir.operator import Operator, build, operator
from gpuexec.ir.spec import DeclaredSpec, TensorSpec
from gpuexec.ops.control.control import If, Loop, Scan, inline_branch
from gpuexec.ops.control.interpret import compute_graph, infer_graph
from gpuexec.ops.control.trips import ARRAYS, MoveAxis, Trip
from tests.ir.graph_builder import GraphBuilder
from tests.model.control_models import MODELS, X, flag
from tests.ops.operators import FLOAT, INT, Scale, Sum

CASES = [(name, index) for name, model in MODELS.items() for index in range(len(model.inputs))]
# onnxruntime does not slice what is empty.
BY_HAND = {("scan_of_nothing", 1): [X[0], np.zeros((4, 0), np.float32)]}
# Their extents, or the branch they take, depend on what their bodies compute.
RUN_IN_SEGMENTS = ("loop_that_ends_early", "loop_that_grows", "loop_in_if_in_scan")


@operator("Unknown", "test")
@dataclass(frozen=True, slots=True)
class Unknown(Operator):
    """Give a tensor whose shape nobody knows before it is computed."""

    def infer(self, x: TensorSpec) -> tuple[TensorSpec, ...]:
        raise NeedsHostValue("the content of input 0 (x) is needed", index=0, role="x")


def load(name: str) -> Graph:
    return load_graph(MODELS[name].parse()).graph


def only_node(name: str, operator: str) -> Node:
    (node,) = (node for node in load(name).nodes if node.operator.name == operator)
    return node


@pytest.mark.parametrize(("name", "index"), CASES)
def test_models_with_bodies_compute_what_another_engine_does(name: str, index: int) -> None:
    graph, feeds = load(name), MODELS[name].feeds()[index]
    expected = BY_HAND.get((name, index))
    if expected is None:
        expected = list(run_oracle(MODELS[name].parse(), feeds, "onnxruntime")[1].values())
    got = compute_graph(graph, [feeds[value.name] for value in graph.inputs])
    for array, wanted in zip(got, expected, strict=True):
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(array, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("name", "index"), [case for case in CASES if case[0] not in RUN_IN_SEGMENTS])
def test_inferred_specs_are_those_of_what_is_computed(name: str, index: int) -> None:
    graph, arrays = load(name), MODELS[name].inputs[index]
    computed = compute_graph(graph, arrays)
    inferred = infer_graph(graph, [TensorSpec.of(array) for array in arrays])
    assert [(spec.shape, spec.dtype) for spec in inferred] == [(array.shape, array.dtype) for array in computed]


def test_if_asks_for_its_condition() -> None:
    node = only_node("if", "If")
    condition = TensorSpec((), np.dtype(np.bool_))
    with pytest.raises(NeedsHostValue) as caught:
        node.operator.infer(condition, *[TensorSpec(X.shape, FLOAT)] * 2)
    assert (caught.value.index, caught.value.role) == (0, "condition")


def test_content_that_a_branch_needs_is_asked_for_as_an_input_of_the_if() -> None:
    build_ = GraphBuilder()
    data, shape = build_.input("data", 4), build_.input("shape", 2, dtype=INT)
    double = build_.node(Sum(), shape, shape)
    graph = build_.graph(build_.node(build("Expand", {}), data, double))
    node = If(graph, graph)
    true = TensorSpec.of(flag(True))
    specs = TensorSpec((4,), FLOAT), TensorSpec((2,), INT)
    with pytest.raises(NeedsHostValue, match="Expand") as caught:
        node.infer(true, *specs)
    assert (caught.value.index, caught.value.value) == (2, "shape")
    (spec,) = node.infer(true, specs[0], TensorSpec.of(np.array([1, 2])))
    assert spec.shape == (2, 4)


def test_reading_content_within_a_branch_is_put_down_to_where_it_comes_from() -> None:
    build_ = GraphBuilder()
    data, shape = build_.input("data", 1), build_.input("shape", 2, dtype=INT)
    graph = build_.graph(build_.node(build("Expand", {}), data, build_.node(Sum(), shape, shape)))
    roles: list[str] = []
    given = TensorSpec((2,), INT).with_value(np.array([1, 4]), lambda role, _minimum: roles.append(role))
    (spec,) = infer_graph(graph, [TensorSpec((1,), FLOAT), given])
    assert (spec.shape, set(roles)) == ((2, 8), {"shape"})


def test_condition_of_many_elements_is_refused() -> None:
    node = only_node("if", "If")
    with pytest.raises(InputError, match=r"the condition must be one bool, got bool\[2\]"):
        node.operator.compute(np.array([True, False]), X, X)
    with pytest.raises(InputError, match=r"the condition must be one bool, got float32\[\]"):
        node.operator.infer(TensorSpec((), FLOAT), X, X)


def test_error_in_a_body_names_the_nodes_on_the_way() -> None:
    graph = load("loop_in_if_in_scan")
    with pytest.raises(GpuexecError, match=r"Scan 'Scan_\d+': If 'If_\d+': Loop 'Loop_\d+': Add 'Add_\d+': "):
        compute_graph(_with_row_of_other_size(graph), [X, np.array(99, np.float32)])


def _with_row_of_other_size(graph: Graph) -> Graph:
    """Let the innermost body add what does not broadcast."""
    wrong = Value("wrong")

    def change(inner: Graph) -> Graph:
        nodes = []
        for node in inner.nodes:
            operator = with_bodies(node.operator, [change(body) for body in bodies(node.operator)])
            inputs = node.inputs
            if node.operator.name == "Add" and inner.name == "halve":
                inputs = (node.inputs[0], wrong)
            nodes.append(Node(operator, inputs, node.outputs, node.name))
        constants = {**inner.constants, wrong: np.ones(3, np.float32)} if inner.name == "halve" else inner.constants
        return Graph(inner.inputs, inner.outputs, tuple(nodes), constants, inner.name)

    return change(graph)


@pytest.mark.parametrize(
    ("name", "specs", "message"),
    [
        (
            "loop_that_grows",
            [TensorSpec((3, 4), FLOAT), TensorSpec.of(np.array(3))],
            r"carried value 0 enters as float32\[3,4\] and leaves as float32\[6,4\], .* it is run in segments",
        ),
        (
            "loop_that_ends_early",
            [TensorSpec((3, 4), FLOAT), TensorSpec((), FLOAT)],
            "its body computes when it ends, .* it is run in segments",
        ),
    ],
)
def test_loop_whose_extents_depend_on_its_trips_says_so(name: str, specs: list[TensorSpec], message: str) -> None:
    with pytest.raises(InputError, match=message):
        infer_graph(load(name), specs)


def test_loop_that_keeps_its_shapes_needs_no_trip_count() -> None:
    (spec,) = infer_graph(load("loop_of_trips"), [TensorSpec(X.shape, FLOAT), TensorSpec((), INT)])
    assert spec == TensorSpec(X.shape, FLOAT)
    assert spec.value is None


def test_carried_content_of_the_first_trip_is_not_taken_for_that_of_all() -> None:
    build_ = GraphBuilder()
    build_.input("trip", dtype=INT)
    again, size = build_.input("again", dtype=np.dtype(np.bool_)), build_.input("size", 1, dtype=INT)
    row = build_.node(build("ConstantOfShape", {}), size)
    loop = Loop(build_.graph(again, build_.node(Sum(), size, size), row), carried=1)
    true = TensorSpec.of(flag(True))
    with pytest.raises(InputError, match=r"needs the content of %size .* run in segments"):
        loop.infer(TensorSpec.of(np.array(2)), true, TensorSpec.of(np.array([3])))


@pytest.mark.parametrize(("limit", "trips"), [(5, 1), (0, 0), (None, 1)])
def test_loop_whose_condition_turns_false_at_once_makes_one_trip(limit: int | None, trips: int) -> None:
    build_ = GraphBuilder()
    build_.input("trip", dtype=INT)
    build_.input("again", dtype=np.dtype(np.bool_))
    x = build_.input("x", 2)
    loop = Loop(build_.graph(build_.constant(flag(False)), x), carried=0)
    count = None if limit is None else np.array(limit)
    (spec,) = loop.infer(None if count is None else TensorSpec.of(count), None, TensorSpec((2,), FLOAT))
    (rows,) = loop.compute(count, None, np.zeros(2, np.float32))
    assert spec.shape == rows.shape == (trips, 2)


def test_body_gets_number_and_condition_in_the_rank_it_declares() -> None:
    build_ = GraphBuilder()
    trip, again = build_.input("trip", 1, dtype=INT), build_.input("again", 1, dtype=np.dtype(np.bool_))
    loop = Loop(build_.graph(again, trip, again), carried=0)
    numbers, conditions = loop.compute(np.array(3), None)
    assert numbers is not None and conditions is not None
    assert (numbers.tolist(), conditions.tolist()) == ([[0], [1], [2]], [[True]] * 3)
    assert [spec.shape for spec in loop.infer(TensorSpec.of(np.array(3)), None)] == [(3, 1), (3, 1)]


def test_loop_without_end_is_refused_when_its_rows_are_counted() -> None:
    node = only_node("loop_that_never_starts", "Loop")
    with pytest.raises(InputError, match="it never ends"):
        node.operator.infer(None, TensorSpec.of(flag(True)), TensorSpec(X.shape, FLOAT))


def test_rows_of_a_loop_without_trips_are_shaped_as_declared_where_nothing_else_is_known() -> None:
    def make(dims: tuple[int | str, ...] | None) -> Loop:
        trip, again, x, row = (
            Value("trip"),
            Value("again"),
            Value("x"),
            Value("row", dims and DeclaredSpec(FLOAT, dims)),
        )
        return Loop(Graph((trip, again, x), (again, row), (Node(Unknown(), (x,), (row,), "last"),), {}), carried=0)

    (rows,) = make(("n", 3)).compute(np.array(0), None, X)
    assert (rows.shape, rows.dtype) == ((0, 0, 3), FLOAT)
    with pytest.raises(InputError, match="scan output %row is not known without a trip"):
        make(None).compute(np.array(0), None, X)


def test_scan_requests_moved_axes_and_a_trip_for_each_slice() -> None:
    body = GraphBuilder()
    graph = body.graph(body.node(Scale(), body.input("row")))
    scan = Scan(graph, 1, 0, scan_input_axes=(1,), scan_input_directions=(1,), scan_output_directions=(1,))
    trips = scan.make_trips([X], ARRAYS)
    assert next(trips) == MoveAxis(X, 1, 0)
    request = trips.send([X.T])
    for row in X.T[::-1]:
        assert isinstance(request, Trip)
        np.testing.assert_array_equal(request.given, [row])
        try:
            request = trips.send([-row])
        except StopIteration as end:
            np.testing.assert_array_equal(end.value, [-X.T])
    with pytest.raises(StopIteration):
        next(trips)


def test_rows_that_differ_are_refused() -> None:
    build_ = GraphBuilder()
    build_.input("trip", dtype=INT)
    again, x = build_.input("again", dtype=np.dtype(np.bool_)), build_.input("x", "n")
    grown = build_.node(build("Concat", {"axis": 0}), x, x)
    loop = Loop(build_.graph(again, grown, x), carried=1)
    with pytest.raises(InputError, match=r"rows of scan output 0 .* float32\[2\], then float32\[4\] in trip 1"):
        loop.compute(np.array(2), None, np.zeros(2, np.float32))


def test_scan_refuses_states_that_change_shape_and_inputs_of_other_lengths() -> None:
    node = only_node("scan_along_axes_and_back", "Scan")
    with pytest.raises(InputError, match=r"equally long along their axes, got \[4, 3\]"):
        node.operator.compute(X[0, :3], X, np.zeros((3, 3), np.float32))
    build_ = GraphBuilder()
    state, row = build_.input("state", "n"), build_.input("row", "m")
    scan = Scan(build_.graph(build_.node(build("Concat", {"axis": 0}), state, row)), 1, 1)
    message = r"state 0 must keep its shape and type, enters as float32\[4\] and leaves as float32\[8\]"
    with pytest.raises(InputError, match=message):
        scan.compute(X[0], X)
    with pytest.raises(InputError, match=message):
        scan.infer(TensorSpec((4,), FLOAT), TensorSpec(X.shape, FLOAT))


def test_operators_refuse_bodies_that_do_not_fit() -> None:
    build_ = GraphBuilder()
    x = build_.input("x", 4)
    one, two = build_.graph(x), build_.graph(x, x)
    with pytest.raises(InputError, match="both branches must take and give as many values"):
        If(one, two)
    with pytest.raises(InputError, match="at least 3 values and give 2 for 1 carried ones, got 1 and 1"):
        Loop(one, 1)
    with pytest.raises(InputError, match="at least 1 scan input"):
        Scan(one, 0, 1)
    with pytest.raises(InputError, match=r"scan_input_axes must have one entry for each of 1 values, got \[0, 1\]"):
        Scan(one, 1, 0, scan_input_axes=(0, 1))


def branch_of(*outputs: str) -> tuple[Node, Graph]:
    """Return an If with captures ``x`` and ``y``, and a branch that gives what the names say."""
    x, y, middle, made, table = (Value(name) for name in ("x", "y", "middle", "made", "table"))
    nodes = (Node(Scale(), (x,), (middle,), "scale"), Node(Sum(), (middle, table), (made,), "sum"))
    by_name = {value.name: value for value in (x, y, middle, made, table)}
    constants = {table: np.ones(4, np.float32)}
    branch = Graph((x, y), tuple(by_name[name] for name in outputs), nodes, constants, "branch")
    node = Node(
        If(branch, branch),
        (Value("c"), Value("outer_x"), Value("outer_y")),
        tuple(Value(f"out{index}") for index in range(len(outputs))),
        "choose",
    )
    return node, branch


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (("made",), ["choose/scale", "choose/sum"]),
        (("middle", "made"), ["choose/scale", "choose/sum"]),
        (("middle",), ["choose/scale"]),
        (("y",), ["choose/output0"]),
        (("table", "y"), ["choose/output0", "choose/output1"]),
        (("made", "made"), ["choose/scale", "choose/sum", "choose/output1"]),
    ],
)
def test_inlined_branch_gives_what_the_if_gives(outputs: tuple[str, ...], names: list[str]) -> None:
    node, branch = branch_of(*outputs)
    nodes, constants = inline_branch(node, branch)
    assert [each.name for each in nodes] == names
    captures = tuple(value for value in node.inputs[1:] if value is not None)
    given = tuple(value for value in node.outputs if value is not None)
    graph = Graph(captures, given, nodes, constants)
    check(graph)
    arrays = X[0], X[1]
    for got, expected in zip(compute_graph(graph, arrays), compute_graph(branch, arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_inlined_branch_leaves_out_what_nobody_wants() -> None:
    node, branch = branch_of("middle", "made")
    nodes, constants = inline_branch(Node(node.operator, node.inputs, (node.outputs[0], None), node.name), branch)
    assert [each.name for each in nodes] == ["choose/scale"]
    assert not constants


def test_values_of_an_inlined_branch_are_new_each_time_and_of_free_names() -> None:
    node, branch = branch_of("made")
    (first, _), table = inline_branch(node, branch)
    (second, _), other = inline_branch(node, branch, taken={"choose/middle", "choose/table"})
    assert first.outputs[0] is not second.outputs[0]
    assert [value.name for value in (*first.outputs, *table) if value] == ["choose/middle", "choose/table"]
    assert [value.name for value in (*second.outputs, *other) if value] == ["choose/middle.2", "choose/table.2"]
