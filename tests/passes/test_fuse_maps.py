"""The pass fuse_regions with operators that move elements: what becomes one launch, and that no bit changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser

import gpuexec as gx
from gpuexec.ir.command import HostCall, Launch
from gpuexec.ir.graphs import Graph, check
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.elementwise.region import Region
from gpuexec.passes.fuse_regions import fuse_regions
from tests.model.small_models import CPU
from tests.ops.tolerance import to_bits
from tests.passes.harness import compile_together, load, operators
from tests.passes.test_fuse_regions import EXTENTS

SIMULATOR, PIXEL = gx.BackendType.SIMULATOR, gx.BackendType.SIMULATOR_PIXEL
RNG = np.random.default_rng(31)
Inputs = dict[str, np.ndarray[Any, Any]]


def model(text: str) -> bytes:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}').SerializeToString()


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(size=shape).astype(np.float32)


# Neighbourhoods that are one launch, as exporters write them, and their inputs.
WORDS: Inputs = {
    "ids": np.array([[1, 7, -2, 0], [3, 3, 9, 5]]), "types": np.array([[0, 1, 1, 0]] * 2), "places": np.arange(4)[None]
}  # fmt: skip
TABLES = "float[10, 8] words, float[2, 8] kinds, float[16, 8] rows"
ONE_LAUNCH: dict[str, tuple[str, Inputs]] = {
    "bert_embedding": (
        f"""agraph (int64[2, 4] ids, int64[2, 4] types, int64[1, 4] places, {TABLES}) => (float[2, 4, 8] y) {{
        w = Gather (words, ids) k = Gather (kinds, types) s = Add (w, k) p = Gather (rows, places) y = Add (s, p) }}""",
        {**WORDS, "words": floats(10, 8), "kinds": floats(2, 8), "rows": floats(16, 8)},
    ),
    "gpt_embedding": (
        """agraph (int64[2, 4] ids, int64[1, 4] places, float[10, 8] words, float[16, 8] rows) => (float[2, 4, 8] y) {
        w = Gather (words, ids) p = Gather (rows, places) y = Add (w, p) }""",
        {"ids": WORDS["ids"], "places": WORDS["places"], "words": floats(10, 8), "rows": floats(16, 8)},
    ),
    "rotary_by_slices": (
        """agraph (float[1, 2, 4, 8] x, float[4, 8] cos, float[4, 8] sin) => (float[1, 2, 4, 8] y)
        <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}> {
        a = Slice (x, zero, half, last) b = Slice (x, half, end, last) n = Neg (b) r = Concat <axis = -1> (n, a)
        c = Mul (x, cos) s = Mul (r, sin) y = Add (c, s) }""",
        {"x": floats(1, 2, 4, 8), "cos": floats(4, 8), "sin": floats(4, 8)},
    ),
    "rotary_by_split": (
        """agraph (float[1, 2, 4, 8] x, float[1, 1, 4, 8] cos, float[1, 1, 4, 8] sin) => (float[1, 2, 4, 8] y) {
        a, b = Split <axis = -1, num_outputs = 2> (x) n = Neg (b) r = Concat <axis = -1> (n, a)
        c = Mul (x, cos) s = Mul (r, sin) y = Add (c, s) }""",
        {"x": floats(1, 2, 4, 8), "cos": floats(1, 1, 4, 8), "sin": floats(1, 1, 4, 8)},
    ),
    "rotary_of_a_scaled_query": (
        """agraph (float[1, 4, 2, 8] q, float[8] w, float[4, 8] cos, float[4, 8] sin) => (float[1, 2, 4, 8] y)
        <int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}> {
        m = Mul (q, w) x = Transpose <perm = [0, 2, 1, 3]> (m)
        a = Slice (x, zero, half, last) b = Slice (x, half, end, last) n = Neg (b) r = Concat <axis = -1> (n, a)
        c = Mul (x, cos) s = Mul (r, sin) y = Add (c, s) }""",
        {"q": floats(1, 4, 2, 8), "w": floats(8), "cos": floats(4, 8), "sin": floats(4, 8)},
    ),
    "rotary_of_interleaved_pairs": (
        """agraph (float[1, 2, 4, 8] x, float[4, 8] cos, float[4, 8] sin) => (float[1, 2, 4, 8] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[1] last = {-1},
        int64[1] two = {2}, int64[4] shape = {1, 2, 4, 8}> {
        a = Slice (x, zero, end, last, two) b = Slice (x, one, end, last, two) n = Neg (b)
        m = Unsqueeze (n, last) l = Unsqueeze (a, last) p = Concat <axis = -1> (m, l) r = Reshape (p, shape)
        c = Mul (x, cos) s = Mul (r, sin) y = Add (c, s) }""",
        {"x": floats(1, 2, 4, 8), "cos": floats(4, 8), "sin": floats(4, 8)},
    ),
    "rotary_of_a_stack": (
        """agraph (float[2, 4, 3, 8] x, float[4, 1, 4] cos, float[4, 1, 4] sin) => (float[2, 4, 3, 8] y)
        <int64[5] pairs = {2, 4, 3, 4, 2}, int64 zero = {0}, int64 one = {1}, int64[1] last = {-1},
        int64[4] shape = {2, 4, 3, 8}> {
        q = Reshape (x, pairs) a = Gather <axis = -1> (q, zero) b = Gather <axis = -1> (q, one)
        ac = Mul (a, cos) bs = Mul (b, sin) as = Mul (a, sin) bc = Mul (b, cos)
        u = Sub (ac, bs) v = Add (as, bc) m = Unsqueeze (u, last) l = Unsqueeze (v, last)
        p = Concat <axis = -1> (m, l) r = Reshape (p, shape) y = Relu (r) }""",
        {"x": floats(2, 4, 3, 8), "cos": floats(4, 1, 4), "sin": floats(4, 1, 4)},
    ),
    "cast_and_padding_of_an_image": (
        """agraph (uint8[1, 3, 6, 5] x) => (float[1, 3, 8, 8] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 2}, float scale = {0.00392}, float fill = {0.5}> {
        f = Cast <to = 1> (x) s = Mul (f, scale) y = Pad (s, pads, fill) }""",
        {"x": RNG.integers(0, 255, (1, 3, 6, 5)).astype(np.uint8)},
    ),
    "concat_of_two_results": (
        """agraph (float[3, 4] a, float[3, 7] b) => (float[3, 11] y) {
        p = Neg (a) q = Exp (b) y = Concat <axis = 1> (p, q) }""",
        {"a": floats(3, 4), "b": floats(3, 7)},
    ),
    "transposes_between": (
        """agraph (float[2, 6, 4] x, float[4, 6] b) => (float[2, 6, 4] y) {
        a = Relu (x) t = Transpose <perm = [0, 2, 1]> (a) s = Add (t, b) u = Transpose <perm = [0, 2, 1]> (s)
        y = Mul (u, x) }""",
        {"x": floats(2, 6, 4), "b": floats(4, 6)},
    ),
    "patches_with_a_token": (
        """agraph (float[1, 6, 4] x, float[1, 1, 6] token, float[1, 5, 6] places) => (float[1, 5, 6] y) {
        t = Transpose <perm = [0, 2, 1]> (x) c = Concat <axis = 1> (token, t) y = Add (c, places) }""",
        {"x": floats(1, 6, 4), "token": floats(1, 1, 6), "places": floats(1, 5, 6)},
    ),
}  # fmt: skip


def count_commands(data: bytes, inputs: Inputs, backend: gx.BackendType) -> list[Any]:
    with gx.Worker(gx.load(data), backend=backend) as worker:
        worker.run(inputs)
        return [command for plan in worker.plans for command in plan.segment.commands]


@pytest.mark.parametrize("backend", [CPU, SIMULATOR], ids=["host", "simulator"])
@pytest.mark.parametrize("name", ONE_LAUNCH)
def test_a_neighbourhood_is_one_command_with_the_bits_of_many(name: str, backend: gx.BackendType) -> None:
    text, inputs = ONE_LAUNCH[name]
    data = model(text)
    (command,) = count_commands(data, inputs, backend)
    assert isinstance(command, HostCall if backend is CPU else Launch)
    check_equal(data, inputs, backend)


def check_equal(data: bytes, inputs: Inputs, backend: gx.BackendType) -> None:
    results = []
    for disabled in ((), ("fuse_regions",)):
        with gx.Worker(gx.load(data, disabled_passes=disabled), backend=backend) as worker:
            results.append([np.asarray(each) for each in worker.run(inputs)])
    for got, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(to_bits(got), to_bits(expected))


def fuse(text: str) -> list[list[str]]:
    """Return the operators of each region that a graph of float inputs gets, and check the graph."""
    graph = fuse_graph(text)
    return [[row[0] for row in node.operator.steps] for node in graph.nodes if isinstance(node.operator, Region)]


def fuse_graph(text: str) -> Graph:
    before = load(text, 21)
    specs = {}
    for value in before.inputs:
        assert value.declared is not None and value.declared.dims is not None and value.declared.dtype is not None
        dims = [dim if isinstance(dim, int) else 4 for dim in value.declared.dims]
        specs[value.name] = TensorSpec(tuple(dims), value.declared.dtype)
    graph = fuse_regions(before, specs)
    check(graph)
    return graph


def test_a_view_that_no_step_reads_stays_free() -> None:
    text = """agraph (float[4, 6] x, float[4, 4] k) => (float[6, 4] y) {
        a = Neg (x) b = Exp (a) t = Transpose (b) y = MatMul (t, k) }"""
    assert fuse(text) == [["Neg", "Exp"]]


def test_a_value_that_others_read_is_made_once() -> None:
    text = """agraph (float[4, 6] x, float[6, 4] k) => (float[6, 4] y, float[4, 4] z) {
        a = Neg (x) b = Exp (a) t = Transpose (b) y = Mul (t, k) z = MatMul (b, k) }"""
    assert fuse(text) == [["Neg", "Exp"]]


def test_what_takes_a_library_function_is_not_made_several_times() -> None:
    text = """agraph (float[6, 6] x) => (float[6, 6] y) {{ a = {name} (x) b = Mul (a, x) t = Transpose (b)
        u = Reshape (b, shape) s = Add (t, u) y = Neg (s) }}"""
    text = text.replace("{{", "<int64[2] shape = {{6, 6}}> {{", 1)
    assert fuse(text.format(name="Relu")) == [["Relu", "Mul", "Transpose", "Reshape", "Add", "Neg"]]
    assert fuse(text.format(name="Tanh")) == [["Tanh", "Mul"], ["Add", "Neg"]]


def test_values_placed_in_windows_stay_with_what_makes_them() -> None:
    placed = """agraph (float[4, 4] x, float[4, 4] k) => (float[8, 4] y) {
        a = MatMul (x, k) b = Exp (x) y = Concat <axis = 0> (a, b) }"""
    assert fuse(placed) == [["Concat"]]
    beside = placed.replace("float[8, 4]", "float[4, 8]").replace("axis = 0", "axis = 1")
    assert fuse(beside) == [["Exp", "Concat"]], "the product's result is copied anyway"


@pytest.mark.parametrize(("shape", "along", "count"), [("8, 4", 0, 2), ("4, 8", 1, 3)])
def test_a_concat_by_itself_costs_nothing_or_one_launch(shape: str, along: int, count: int) -> None:
    data = model(f"""agraph (float[4, 4] x, float[4, 4] k) => (float[{shape}] y) {{
        a = MatMul (x, k) b = MatMul (a, k) y = Concat <axis = {along}> (a, b) }}""")
    inputs = {"x": floats(4, 4), "k": floats(4, 4)}
    commands = count_commands(data, inputs, SIMULATOR)
    assert len([each for each in commands if isinstance(each, Launch)]) == len(commands) == count
    for backend in (CPU, SIMULATOR):
        check_equal(data, inputs, backend)


def test_slices_are_picked_of_what_is_in_memory() -> None:
    text = """agraph (float[4, 6] x, int64[4] ids) => (float[4, 6] y) {
        a = Neg (x) b = Exp (a) g = Gather (b, ids) y = Add (g, b) }"""
    graph = fuse_graph(text)
    assert operators(graph) == ["gpuexec.Region", "gpuexec.Region"]
    assert fuse(text) == [["Neg", "Exp"], ["Gather", "Add"]]


def test_no_way_leads_out_of_a_window_and_back() -> None:
    text = """agraph (float[4, 6] x, float[6, 6] k) => (float[8, 6] y) {
        a = Neg (x) p = MatMul (a, k) b = Exp (p) c = Concat <axis = 0> (a, b) y = Relu (c) }"""
    assert fuse(text) == [["Exp", "Concat", "Relu"]], "Neg is a part too, but the product reads it"


def test_pads_that_are_computed_stay() -> None:
    text = """agraph (float[4, 6] x, int64[4] pads) => (float[p, q] y) { a = Neg (x) y = Pad (a, pads) }"""
    assert fuse(text) == []


def test_as_many_values_as_a_kernel_has_room_for_are_joined() -> None:
    """Each Concat of one value with itself asks for it twice."""
    steps = " ".join(f"c{n + 1} = Concat <axis = 0> (c{n}, c{n})" for n in range(9))
    text = f"agraph (float[1, 4] x) => (float[512, 4] y) {{ c0 = Relu (x) {steps} y = Neg (c9) }}"
    assert all(len(region) < 11 for region in fuse(text))


def test_sizes_of_a_class_share_kernels() -> None:
    text = """agraph (float[b, n, 8] x, int64[b, n] ids, float[10, 8] words) => (float[b, m, 8] y) {
        g = Gather (words, ids) s = Add (g, x) c = Concat <axis = 1> (s, x) y = Mul (c, c) }"""
    data = model(text)
    with gx.Worker(gx.load(data), backend=SIMULATOR) as worker:
        for batch, length in ((4, 8), (4, 5), (3, 7), (4, 8)):
            inputs = {
                "x": floats(batch, length, 8),
                "ids": RNG.integers(-10, 10, (batch, length)),
                "words": floats(10, 8),
            }
            (got,) = (np.asarray(each) for each in worker.run(inputs))
            expected = np.concatenate([inputs["words"][inputs["ids"]] + inputs["x"], inputs["x"]], 1)
            np.testing.assert_array_equal(got, expected * expected)
        commands = [command for plan in worker.plans for command in plan.segment.commands]
        kernels = {command.kernel for command in commands if isinstance(command, Launch)}
    assert len(kernels) == 1


UNARY, BINARY = ["Neg", "Abs", "Relu", "Sigmoid"], ["Add", "Mul", "Max", "Sub"]


class Drawing:
    """A random model of operators on elements and such as move them, while it is drawn."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.nodes = draw, list[Any]()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.constants: list[Any] = []
        self.inputs: Inputs = {}

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(sorted(options)))

    def add(self, operator: str, inputs: list[str], shape: tuple[int, ...], **attributes: Any) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        self.shapes[name] = shape

    def give(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.INT64, np.shape(array), np.ravel(array).tolist()))
        return name

    def step(self) -> None:
        name = self.pick(self.shapes)
        shape = self.shapes[name]
        axis = self.draw(st.integers(0, len(shape) - 1))
        match self.draw(
            st.sampled_from(["unary", "binary", "binary", "concat", "pad", "slice", "turn", "split", "join", "gather"])
        ):
            case "unary":
                self.add(self.pick(UNARY), [name], shape)
            case "binary":
                other = self.pick(each for each in self.shapes if self.shapes[each] == shape)
                self.add(self.pick(BINARY), [name, other], shape)
            case "concat":
                beside = shape[:axis] + shape[axis + 1 :]
                fits = [
                    e for e, s in self.shapes.items() if len(s) == len(shape) and s[:axis] + s[axis + 1 :] == beside
                ]
                parts = [name, *[self.pick(fits) for _ in range(self.draw(st.integers(0, 2)))]]
                total = sum(self.shapes[part][axis] for part in parts)
                self.add("Concat", parts, (*shape[:axis], total, *shape[axis + 1 :]), axis=axis)
            case "pad":
                begin, end = self.draw(st.integers(0, 3)), self.draw(st.integers(-min(1, shape[axis]), 4))
                pads = [begin if n == axis else 0 for n in range(len(shape))]
                pads += [end if n == axis else 0 for n in range(len(shape))]
                self.add("Pad", [name, self.give(pads)], (*shape[:axis], shape[axis] + begin + end, *shape[axis + 1 :]))
            case "slice":
                step = self.draw(st.sampled_from([1, 2, -1]))
                bounds = (-1, -(2**31)) if step < 0 else (self.draw(st.integers(0, 2)), 2**31)
                count = len(range(shape[axis])[slice(bounds[0], None if step < 0 else bounds[1], step)])
                given = [self.give([each]) for each in (*bounds, axis, step)]
                self.add("Slice", [name, *given], (*shape[:axis], count, *shape[axis + 1 :]))
            case "turn":
                order = self.draw(st.permutations(range(len(shape))))
                self.add("Transpose", [name], tuple([shape[each] for each in order]), perm=list(order))
            case "join":
                if axis and 0 not in shape:
                    made = (*shape[: axis - 1], shape[axis - 1] * shape[axis], *shape[axis + 1 :])
                    self.add("Reshape", [name, self.give(list(made))], made)
            case "split":
                if len(shape) < 4:
                    parts = next((n for n in (2, 3) if shape[axis] and shape[axis] % n == 0), 1)
                    made = (*shape[:axis], shape[axis] // parts, parts, *shape[axis + 1 :])
                    if 0 not in made:
                        self.add("Reshape", [name, self.give(list(made))], made)
            case _:
                if shape[axis]:
                    places = self.draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), max_size=4))
                    index = self.give(np.array(places, np.int64))
                    self.add("Gather", [name, index], (*shape[:axis], len(places), *shape[axis + 1 :]), axis=axis)


@st.composite
def make_models(draw: Any) -> tuple[bytes, Inputs]:
    """Return a random model and its inputs."""
    drawing = Drawing(draw)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    for number in range(draw(st.integers(1, 2))):
        shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
        drawing.shapes[f"x{number}"] = shape
        drawing.inputs[f"x{number}"] = random.normal(size=shape).astype(np.float32)
    for _ in range(draw(st.integers(2, 10))):
        if max(map(np.prod, drawing.shapes.values())) < 10**5:
            drawing.step()
    made = [name for name in drawing.shapes if name[0] == "v"]
    if not made:
        drawing.add("Neg", ["x0"], drawing.shapes["x0"])
        made = ["v0"]
    wanted = draw(st.sets(st.sampled_from(made), max_size=2)) | {made[-1]}
    graph = helper.make_graph(
        drawing.nodes,
        "random",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * x.ndim) for n, x in drawing.inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * len(drawing.shapes[n])) for n in sorted(wanted)],
        drawing.constants,
    )
    return (
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]).SerializeToString(),
        drawing.inputs,
    )


@settings(max_examples=150, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_host(drawn: tuple[bytes, Inputs]) -> None:
    check_equal(*drawn, CPU)


@settings(max_examples=10, deadline=None)
@given(make_models())
def test_random_graphs_give_the_same_bits_on_the_simulator(drawn: tuple[bytes, Inputs]) -> None:
    check_equal(*drawn, SIMULATOR)


@settings(max_examples=2, deadline=None)
@given(st.lists(make_models(), min_size=16, max_size=16))
def test_random_graphs_give_the_same_bits_as_blits(models: list[tuple[bytes, Inputs]]) -> None:
    compile_together(models, PIXEL)
    for drawn in models:
        check_equal(*drawn, PIXEL)
