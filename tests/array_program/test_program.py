"""Tracing: what a program takes and gives, dtypes, free dimensions, other models, saving, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import gpuexec as gx
from gpuexec.importer import load_graph, run_oracle, to_model
from gpuexec.spec import BFLOAT16, SEQUENCE, TensorSpec
from tests.array_program.tracing import Array, check, check_devices, compute, trace
from tests.objects import MIXED

fn = gx.fn
X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
SPECS = {"x": ("float32", ("n", 4)), "y": ("float32", (4,))}


def dims_of(model: gx.Model) -> list[Any]:
    return [port.spec.dims for port in model.outputs]


# ---------------------------------------------------------------- inputs and outputs


@pytest.mark.parametrize(
    "specs",
    [
        SPECS,
        [("float32", ("n", 4)), (np.float32, (4,))],
        {"y": TensorSpec((4,), np.dtype(np.float32)), "x": ("float32", ("n", 4))},
    ],
)
def test_inputs_go_by_name_or_place(specs: Any) -> None:
    model = gx.graph(lambda x, y: x - y, specs)
    given = {"x": X, "y": X[0]}
    (got,) = compute(model, *(given[port.name] for port in model.inputs))
    np.testing.assert_array_equal(got, X - X[0])
    assert [str(port) for port in model.outputs] == ["output: float32[n,4]"]


def test_a_model_gives_its_inputs_and_an_array_its_shape() -> None:
    first = gx.graph(lambda x, y: x - y, SPECS)
    second = gx.graph(lambda *arrays: fn.forward(first, *arrays) * 2, first)
    assert [str(port) for port in second.inputs] == [str(port) for port in first.inputs]
    assert gx.graph(lambda a: a + 1, [X]).inputs[0].spec.dims == (3, 4)


def test_outputs_have_the_names_of_a_dict_and_are_each_their_own() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return {"same": x, "y": y, "again": y, "third": y, "add_1": y * 2, "seven": 7, "rows": np.arange(2)}

    model = gx.graph(function, [("float32", (3, 4))])
    assert [port.name for port in model.outputs] == ["same", "y", "again", "third", "add_1", "seven", "rows"]
    expected = [X, X + 1, X + 1, X + 1, (X + 1) * 2, np.int64(7), np.arange(2)]
    check_devices(lambda x: tuple(function(x).values()), X, expected=expected)
    for got, wanted in zip(compute(model, X), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_dims_are_fixed_and_bounded() -> None:
    model = gx.graph(lambda x, y: x - y, SPECS, dims={"n": 5})
    assert model.inputs[0].spec.dims == (5, 4)
    bounded = gx.graph(lambda x, y: x - y, SPECS, dims={"n": (1, 64)})
    assert bounded.inputs[0].spec.dims == ("n", 4) and bounded.dims == {"n": (1, 64)}
    with pytest.raises(gx.InputError, match="'m'"):
        gx.graph(lambda x, y: x - y, SPECS, dims={"m": (1, 4)})


# ---------------------------------------------------------------- dtypes


DTYPES = [np.dtype(name) for name in ("bool", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scalar", [True, 3, 2.5], ids=str)
def test_python_scalars_are_weak(dtype: np.dtype[Any], scalar: Any) -> None:
    x = np.array([0, 1, 1], dtype)
    check(lambda x: (x + scalar, scalar * x, np.where(x > 0, x, scalar), x < scalar, np.maximum(x, scalar)), x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arrays_promote_as_numpys(dtype: np.dtype[Any]) -> None:
    x = np.array([1, 0, 1], dtype)
    for other in DTYPES:
        y = np.array([1, 1, 0], other)
        check(lambda x, y: (x * y, x == y, np.maximum(x, y)), x, y)
        check(lambda x, y: np.concatenate([x, y]), x, y)


def test_bfloat16_stays_beside_scalars() -> None:
    x = np.array([1, 2.5, -3], BFLOAT16)
    model = trace(lambda x: (x * 2.0 + 1, x / 3, fn.exp(x), x > 0.5, x.sum()), x)
    assert [port.spec.dtype.name for port in model.outputs] == ["bfloat16"] * 3 + ["bool", "bfloat16"]
    np.testing.assert_array_equal(compute(model, x)[0], x * np.array(2, BFLOAT16) + np.array(1, BFLOAT16))


def test_a_free_extent_is_weak() -> None:
    def function(x: Any, y: Any) -> Any:
        return x.sum(0) / x.shape[0], x.shape[0] * 2 + 1, x * x.shape[0].astype(np.int64)

    model = gx.graph(function, SPECS)
    assert [port.spec.dtype.name for port in model.outputs] == ["float32", "int64", "float64"]
    got = compute(model, X, X[0])
    np.testing.assert_allclose(got[0], X.mean(0))
    assert got[1] == 7


# ---------------------------------------------------------------- free dimensions


@pytest.mark.parametrize(
    ("function", "dims"),
    [
        (lambda x, y: x @ x.T, [("n", "n")]),
        (lambda x, y: x.reshape(-1), [(None,)]),
        (lambda x, y: x.reshape(x.shape[0] * 2, 2).reshape(x.shape), [("n", 4)]),
        (lambda x, y: x[:-1], [(None, 4)]),
        (lambda x, y: x[:3], [(None, 4)]),
        (lambda x, y: x[:, :3], [("n", 3)]),
        (lambda x, y: fn.arange(x.shape[0]), [("n",)]),
        (lambda x, y: x[x[:, 0] > 0], [("count(greater_1)", 4)]),
        (lambda x, y: fn.nonzero(y > 0)[0], [("count(greater_1)",)]),
        (lambda x, y: x.sum(0, keepdims=True), [(1, 4)]),
    ],
)
def test_free_dimensions_are_followed(function: Any, dims: Any) -> None:
    assert dims_of(gx.graph(function, SPECS)) == dims


def test_one_program_serves_all_sizes() -> None:
    def function(x: Any, y: Any) -> Any:
        big = x[x > 0]
        return x - x.mean(0), big.sum(), fn.flip(x, 0)[:2], x.reshape(-1, 2)[1::2], fn.pad(x, ((1, 0), (0, 2)))

    model = gx.graph(function, SPECS)
    with gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        for n in (3, 1, 7):
            x = np.sin(np.arange(n * 4, dtype=np.float32)).reshape(n, 4)
            wanted = [
                x - x.mean(0), x[x > 0].sum(), x[::-1][:2], x.reshape(-1, 2)[1::2], np.pad(x, ((1, 0), (0, 2)))
            ]  # fmt: skip
            for got, each in zip(worker.run({"x": x, "y": x[0]}), wanted, strict=True):
                np.testing.assert_allclose(got, each, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- other models


AFFINE = """<ir_version: 10, opset_import: ["": 18]> affine (float[n, 4] x) => (float[n, 2] y, float[n, 4] t)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { t = Relu (x)  y = MatMul (t, w) }"""


def test_forward_takes_a_model_in_and_leaves_it_as_it_is() -> None:
    model = gx.load(parser.parse_model(AFFINE))
    before = repr(model)
    weight = next(iter(model.info.graph.constants.values()))

    def function(x: Any) -> Any:
        first, inner = fn.forward(model, x)
        second, _ = fn.forward(model, x=inner * 2)
        return first + 1, second

    composed = gx.graph(function, model)
    relu = np.maximum(X, 0)
    check_devices(function, X, expected=[relu @ weight + 1, relu * 2 @ weight])
    assert repr(model) == before
    assert any(array is weight for array in composed.info.graph.constants.values())


def test_forward_takes_models_with_branches_and_sizes_of_their_own(tmp_path: Path) -> None:
    def choose(x: Any) -> Any:
        kept = x[x[:, 0] > 0]
        return fn.cond(kept.shape[0] > 1, lambda: kept * 2, lambda: x), fn.fori_loop(0, 3, lambda i, y: y + 1, x)

    inner = gx.graph(choose, [("float32", ("n", 4))])

    def function(x: Any) -> Any:
        first, more = fn.forward(inner, x)
        return first + 1, *fn.forward(inner, more)

    x = X + 3
    kept, others = x[x[:, 0] > 0], (x + 3)[(x + 3)[:, 0] > 0]
    expected = [kept * 2 + 1, others * 2, x + 6]
    model = trace(function, x, free=True)
    model.save(tmp_path / "composed.onnx")
    for each in (model, gx.load(tmp_path / "composed.onnx")):
        for got, wanted in zip(compute(each, x), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)
    check_devices(function, x, expected=expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: fn.forward(m), "'x' is missing; its inputs are x"),
        (lambda m, x: fn.forward(m, x, x), "has 1 inputs, got 2 arrays"),
        (lambda m, x: fn.forward(m, x, z=x), "'z' is unknown or given twice"),
        (lambda m, x: fn.forward(m, x.astype("float16")), r"convert it by x.astype\('float32'\)"),
        (lambda m, x: fn.forward(m, x[:, :3]), r"Input x: float32\[n,4\] got "),
    ],
)
def test_forward_refuses_what_does_not_fit(call: Any, message: str) -> None:
    model = gx.load(parser.parse_model(AFFINE))
    with pytest.raises(gx.InputError, match=r"test_program.py:\d+: .*" + message):
        trace(lambda x: call(model, x), X)


def test_forward_refuses_memories() -> None:
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[2] s, float[2] x) => (float[2] t) { t = Add (s, x) }'
    model = gx.load(parser.parse_model(text)).bind_state({"t": "s"})
    with pytest.raises(gx.InputError, match=r"has memories .*use bind_state on the result"):
        trace(lambda x: fn.forward(model, x), X[0, :2])


# ---------------------------------------------------------------- as a model


def test_a_program_is_saved_runs_elsewhere_and_loads_equal(tmp_path: Path) -> None:
    def function(x: Any, y: Any) -> Any:
        z = x[::-1, 1:] * y[1:] + fn.gelu(x[:, :3])
        return {"z": z, "best": fn.top_k(z, 2)[1], "kept": z[z > 0], "mean": z.mean(0) / x.shape[0]}

    model = gx.graph(function, SPECS)
    model.save(tmp_path / "program.onnx")
    again = gx.load(tmp_path / "program.onnx")
    assert [str(port) for port in again.inputs] == [str(port) for port in model.inputs]
    assert [str(node) for node in again.graph.nodes] == [str(node) for node in model.graph.nodes]
    inputs = {"x": X, "y": X[1]}
    _, oracle = run_oracle(to_model(load_graph(tmp_path / "program.onnx").graph), inputs)
    for port, ours, theirs in zip(
        model.outputs, compute(model, *inputs.values()), compute(again, X, X[1]), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(oracle[port.name], ours, rtol=1e-5, atol=1e-6)


def test_a_program_file_and_states_are_made_of_it(tmp_path: Path) -> None:
    model = gx.graph(lambda total, x: {"left": total + x}, {"total": ("float32", (4,)), "x": ("float32", (4,))})
    with gx.Worker(model.bind_state({"left": "total"}), backend=gx.BackendType.CPU) as worker:
        for _ in range(3):
            worker.schedule(X[0])
        np.testing.assert_array_equal(worker.state.get("total"), X[0] * 3)
    gx.Program.build({"forward": model}).save(tmp_path / "program.gxp")
    method = gx.Program.load(gx.FileDataLoader(tmp_path / "program.gxp")).load_method("forward")
    for index, array in enumerate((X[0], X[1])):
        method.set_input(index, array)
    method.execute()
    np.testing.assert_array_equal(method.get_output(0).readback_and_clone(), X[0] + X[1])


def test_what_may_be_cut_to_less_is_no_named_extent() -> None:
    def function(x: Any) -> Any:
        top = fn.maximum(x.shape[0], 100_000)
        return x[:100], x[:16_000], x[-100_000:], fn.zeros((top,)), x[:-1]

    model = gx.graph(function, {"x": ("float32", ("n",))})
    assert [port.spec.dims for port in model.outputs] == [(None,)] * 5
    (_, cut, *_) = compute(model, ramp(20_000))
    assert cut.shape == (16_000,)


def test_dimensions_that_no_input_names_are_refused() -> None:
    with pytest.raises(gx.InputError, match="no dimension 'm'; it has n"):
        gx.graph(lambda x: x, {"x": ("float32", ("n", "k"))}, dims={"k": 2, "m": 3})


def test_many_sizes_that_only_a_run_knows_are_told_apart() -> None:
    model = gx.graph(lambda x: sum(x[x > i].sum() for i in range(200)), {"x": ("float32", ("n",))})
    (got,) = compute(model, ramp(9))
    assert got == sum(i * i for i in range(9))


def test_an_output_that_nobody_reads_is_saved_with_a_name(tmp_path: Path) -> None:
    for function in (fn.sort, fn.argsort):
        trace(function, X, free=True).save(tmp_path / "model.onnx")
        onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)


def test_nodes_tell_the_line_they_come_from() -> None:
    def function(x: Any) -> Any:
        y = x + 1
        return y * y

    line = function.__code__.co_firstlineno
    names = [node.name for node in trace(function, X).graph.nodes]
    assert names == [f"test_program.py:{line + 1} Add", f"test_program.py:{line + 2} Mul"]


def test_what_is_done_twice_is_there_once() -> None:
    model = trace(lambda x: (x + 1) * (x + 1) + fn.exp(x) * 0 + (fn.exp(x), x - 9)[0], X)
    assert [node.operator.name for node in model.info.graph.nodes].count("Exp") == 1
    assert "Sub" not in [node.operator.name for node in model.info.graph.nodes]


def test_a_weight_used_twice_is_there_once_as_it_was_at_each_use() -> None:
    weight = np.arange(400, dtype=np.float32).reshape(4, 100)

    def function(x: Any) -> Any:
        first = x @ weight + (x * 2) @ weight
        weight[0] = 7
        return first, x @ weight

    before = weight.copy()
    model = trace(function, X)
    assert sum(array.shape == (4, 100) for array in model.info.graph.constants.values()) == 2
    for got, wanted in zip(compute(model, X), (X @ before * 3, X @ weight), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


# ---------------------------------------------------------------- what is refused


def branch(x: Any) -> Any:
    return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (branch, r"bool\(\).*gx.fn.where.*gx.fn.cond"),
        (lambda x: -x if 0 < x < 1 else x, "chained comparisons"),
        (lambda x: float(x.sum()), r"float\(\).*astype"),
        (lambda x: [i for i in range(x.sum())], "range.*while_loop"),  # noqa: C416
        (lambda x: np.asarray(x), "np.asarray"),
        (lambda x: 3 in x, r"\(x == item\).any\(\)"),
        (lambda x: x + np.ones(7, np.float32), r"Add .*do not broadcast"),
        (lambda x: x @ x, "4 columns don't meet 3 rows"),
        (lambda x: x + "a", "expected numbers or bools, got 'a'"),
        (lambda x: x == None, "expected numbers or bools, got None"),  # noqa: E711
        (lambda x: -(x > 0), "negative.*bool"),
        (lambda x: x.reshape(5, -1), "Reshape"),
        (lambda x: x.sum(2), "axes is out of range for rank 2"),
        (lambda x: x[:0].max(0), "no elements along axes"),
        (lambda x: np.fft.fft(x), "np.fft has no form|has no form for symbolic arrays"),
        (lambda x: np.add(x, x, out=np.empty((3, 4))), "out has no meaning"),
        (lambda x: np.sum(x, where=x > 0), "unexpected keyword argument 'where'"),
        (lambda x: np.add.accumulate(x), "np.add.accumulate has no form"),
        (lambda x: np.modf(x), "np.modf has no form"),
        (lambda x: None, "must return an array"),
        (lambda x: {"x": x}, "x is the name of an input and of an output"),
        (lambda x: fn.einsum("ij,jk->il", x, x.T), "einsum 'ij,jk->il'"),
        (lambda x: fn.concatenate([x, x[0]]), "can't be joined"),
        (lambda x: fn.broadcast_to(x, (2, 4)), "can't be broadcast"),
        (lambda x: x.transpose(0, 0), "must name each axis once"),
    ],
)
def test_mistakes_are_refused_with_their_line(function: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message) as caught:
        trace(function, X)
    assert str(caught.value).startswith("test_program.py:")


def test_a_mistake_with_free_extents_says_what_was_tried() -> None:
    with pytest.raises(gx.InputError, match=r"Free dimensions are tried with n = 2640"):
        gx.graph(lambda x, y: x.T + y[:3], SPECS)


@pytest.mark.parametrize(
    "specs", [[("float99", (1,))], [("float32", (-1,))], ["float32"], {"x": 3}, 7, [("float32", 3)]]
)
def test_bad_specs_are_refused(specs: Any) -> None:
    with pytest.raises(gx.InputError):
        gx.graph(lambda x: x, specs)


def test_arrays_of_another_program_are_refused() -> None:
    kept: list[Any] = []
    trace(lambda x: kept.append(x) or x + 1, X)
    with pytest.raises(gx.InputError, match=r"another program was used; use gx.fn.forward"):
        trace(lambda x: x + kept[0], X)
    with pytest.raises(gx.InputError, match=r"inside a function that gx\.graph traces"):
        fn.zeros((2, 3))


def test_no_module_has_the_name_of_what_the_package_gives() -> None:
    modules = {path.stem for path in Path(gx.__file__).parent.iterdir() if path.suffix in ("", ".py")}
    assert "graphs" in modules and callable(gx.graph)
    assert modules & set(gx.__all__) == set()


def test_trace_in_trace() -> None:
    def function(x: Any) -> Any:
        inner = gx.graph(lambda y: y * 3, [("float32", (3, 4))])
        return fn.forward(inner, x) + fn.ones((4,), np.float32)

    check_devices(function, X, expected=X * 3 + 1)


def ramp(n: int) -> Array:
    return np.arange(n, dtype=np.float32)


def test_symbolic_arrays_say_what_they_are() -> None:
    seen: list[str] = []
    gx.graph(lambda x, y: seen.append(repr(x)) or seen.append(repr(x.mean(0))) or x, SPECS)
    assert seen == ["SymbolicArray(%x, float32[n,4])", "SymbolicArray(%reducemean_1, float32[4])"]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ([("string", (3,))], "input 'x' is string"),
        ([TensorSpec((), SEQUENCE)], "input 'x' is sequence"),
        (gx.load(MIXED), "input 's' is sequence"),
    ],
    ids=["string", "sequence", "model"],
)
def test_a_program_of_host_objects_is_refused(specs: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=f"array programs compute with numbers and bools; {message}"):
        gx.graph(lambda x, *others: x, specs)


def test_host_objects_within_a_program_are_refused() -> None:
    with pytest.raises(gx.InputError, match="what an array is converted to is string"):
        gx.graph(lambda x: x.astype(object), [("float32", (3,))])
    model = gx.load(MIXED)
    with pytest.raises(gx.InputError, match="'s' of 'g' is sequence"):
        gx.graph(lambda x: fn.forward(model, x, x, x), [("float32", (3,))])
