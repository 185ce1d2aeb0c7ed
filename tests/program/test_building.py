"""Program building: shapes, plans, kernels and cases, or an error by name."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gpuexec as gx
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.planner.verify import verify
from gpuexec.program.building import build_contents
from gpuexec.program.cases import Case, make_case
from tests.devices.cuda_wheels import needs_cuda_wheels
from tests.program.program_seeds import load_linear, load_nested, load_text, load_twin

Array = np.ndarray[Any, Any]
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


@needs_cuda_wheels
def test_plans_are_laid_out_at_the_upper_ends() -> None:
    contents = build_contents({"m": load_linear(dims={"n": (1, 8)})}, architectures=["sm_80", "sm_90", "sm_80"])
    plans = contents.methods["m"].plans
    assert list(plans) == ["cpu", "sm_80", "sm_90"]
    for rows in plans.values():
        (plan,) = rows
        verify(plan)
        assert plan.inputs[0].spec.shape == (8, 4) and plan.outputs[0].spec.shape == (8, 3)
    assert contents.methods["m"].model._plans is plans


def test_shapes_given_bind_free_dimensions() -> None:
    contents = build_contents({"m": load_linear()}, shapes={"m": {"x": ((2, 5), 4)}})
    model = contents.methods["m"].model
    assert model.dims == {"n": (2, 5)} and model._plans["cpu"][0].inputs[0].spec.shape == (5, 4)


def test_method_without_bounds_has_no_plans() -> None:
    contents = build_contents({"m": load_linear()})
    assert contents.methods["m"].plans == {"cpu": ()}


@needs_cuda_wheels
def test_code_is_machine_code_of_each_and_ptx_of_the_newest() -> None:
    contents = build_contents({"m": load_linear(dims={"n": 2})}, architectures=["sm_90", "sm_80"])
    assert contents.code.architectures == ("compute_90", "sm_80", "sm_90")
    kernels = {each.kernel for each in contents.code.kernels}
    assert kernels == set(contents.methods["m"].plans["sm_90"][0].kernels())
    assert len(contents.code.kernels) == 3 * len(kernels)
    assert contents.methods["m"].model._code is contents.code


def test_no_architecture_needs_no_compiler(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuexec.devices.kernels.nvrtc.load_nvrtc", lambda: pytest.fail("the compiler was asked for"))
    contents = build_contents({"m": load_linear(dims={"n": 2})}, cache=KernelCache(tmp_path))
    assert contents.code.kernels == ()


def test_equal_constants_of_models_become_one_array_and_models_stay_as_they_were() -> None:
    linear, twin = load_linear(), load_twin()
    before = [id(a) for a in (*linear.graph.constants.values(), *twin.graph.constants.values())]
    contents = build_contents({"a": linear, "b": twin})
    a, b = (contents.methods[name].model for name in "ab")
    shared = {id(x) for x in a.graph.constants.values()} & {id(x) for x in b.graph.constants.values()}
    assert len(shared) == 1
    assert a._slabs is b._slabs and a._lock is b._lock and a._slabs is not linear._slabs
    assert before == [id(x) for x in (*linear.graph.constants.values(), *twin.graph.constants.values())]
    assert linear._plans == {} and not linear._code.kernels


@pytest.mark.feature("E41")
@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({}, {}, "needs a method at least"),
        ({"m": load_linear}, {"shapes": {"n": {}}}, "There are shapes for n; the methods are m"),
        ({"m": load_linear}, {"cases": {"n": []}}, "There are cases for n"),
        ({"m": load_linear}, {"shapes": {"m": {"q": (1, 4)}}}, "Method 'm': .*no input 'q'; it has x"),
        ({"m": load_linear}, {"shapes": {"m": {"x": (1, 5)}}}, "Method 'm': Input 'x': axis 1 is 4"),
        ({"m": load_linear}, {"architectures": ["sm_10"]}, "older than sm_75"),
        ({"m": load_linear}, {"cases": {"m": [Case({})]}}, "Method 'm': A case lacks the inputs x"),
        ({"m": load_linear}, {"cases": {"m": Case({})}}, "Method 'm': its cases are a list"),
        ({"m": load_linear}, {"cases": [Case({})]}, "Cases are given by name of the method; got a list"),
        ({"m": load_linear}, {"shapes": [(1, 4)]}, "Shapes are given by name of the method; got a list"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(models: Any, options: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        build_contents({name: load() for name, load in models.items()}, **options)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({"x": X, "q": X}, None, "A case has an input 'q'; the model has x"),
        ({"x": X.astype(np.float64)}, None, "input 'x' as float64, the model as float32"),
        ({"x": X[:, :3]}, None, r"input 'x' as \[2, 3\]"),
        ({"x": X}, {"z": X}, "A case has an output 'z'"),
        ({"x": X}, {}, "no expected outputs"),
    ],
)
def test_case_that_is_not_the_models_is_refused(inputs: Any, outputs: Any, message: str) -> None:
    with pytest.raises(gx.InputError, match=message):
        make_case(load_linear(), Case(inputs, outputs))


def test_case_without_outputs_has_what_the_cpu_computes() -> None:
    case = make_case(load_linear(), Case({"x": X}))
    with gx.Worker(load_linear(), backend=gx.BackendType.CPU) as worker:
        np.testing.assert_allclose(case.outputs["y"], worker.run(X)[0], rtol=1e-6)
    assert case.origin == "cpu"


def test_allowance_follows_the_operators_and_the_coarsest_type() -> None:
    exact = load_text("(float[n] x) => (float[n] y) { y = Neg (x) }")
    rounded = load_text("(float[n] x) => (float[n] y) { e = Exp (x)  y = Neg (e) }")
    body = "h = Cast <to = 16> (x)  s = Add (h, bf)  e = Exp (s)  y = Cast <to = 1> (e)"
    text = f"(float[n, 4] x) => (float[n, 4] y) {{ {body} }}"
    halves = load_text(text, arrays={"bf": np.ones(4, ml_dtypes.bfloat16)})
    row = np.linspace(0, 1, 4, dtype=np.float32)
    found = {
        name: next(iter(make_case(model, Case({"x": x})).allowances.values()))
        for name, model, x in (
            ("exact", exact, row),
            ("rounded", rounded, row),
            ("sums", load_linear(), X),
            ("halves", halves, X),
        )
    }
    eps = float(np.finfo(np.float32).eps)
    assert (found["exact"].rtol, found["exact"].atol, found["exact"].reason) == (0.0, 0.0, "exact")
    assert found["rounded"].rtol == 8 * eps and found["rounded"].reason == "rounding"
    assert found["sums"].rtol == eps**0.5 and found["sums"].reason == "reduction"
    assert found["halves"].rtol == 16 * 2.0**-7 and found["halves"].reason == "rounding"


def test_allowance_given_is_kept() -> None:
    allowed = make_case(load_linear(), Case({"x": X}, rtol=0.25)).allowances["y"]
    assert (allowed.rtol, allowed.atol, allowed.reason) == (0.25, 0.0, "given")


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf"), 10**400, True, "1"])
def test_allowance_that_judges_nothing_is_refused(name: str, number: Any) -> None:
    with pytest.raises(gx.InputError, match=f"{name} is a finite number from 0 on"):
        Case({"x": X}, **{name: number})


def test_allowance_is_stored_whatever_kind_of_number_it_is() -> None:
    allowed = make_case(load_linear(), Case({"x": X}, rtol=np.float32(0.5), atol=1)).allowances["y"]  # type: ignore[arg-type]
    assert (type(allowed.rtol), type(allowed.atol)) == (float, float)


def test_allowance_of_the_largest_numbers_is_finite() -> None:
    chain = "".join(f"e{i + 1} = Exp (e{i})  " for i in range(40))
    text = f"(double[4] e0, double[4] x) => (double[4] y, double[4] z) {{ {chain} h = Cast <to = 16> (e40)"
    text += "  s = Add (h, bf)  y = Cast <to = 11> (s)  z = Identity (x) }"
    model = load_text(text, arrays={"bf": np.ones(4, ml_dtypes.bfloat16)})
    largest = np.full(4, np.finfo(np.float64).max)
    with np.errstate(over="ignore"):
        allowed = make_case(model, Case({"e0": np.zeros(4), "x": largest})).allowances["z"]
    assert allowed.rtol > 1 and np.isfinite(allowed.atol)


@pytest.mark.parametrize(("inputs", "outputs"), [([X], None), (None, None), ({"x": X}, [X])])
def test_case_without_names_is_refused(inputs: Any, outputs: Any) -> None:
    with pytest.raises(gx.InputError, match=r"A case has its (in|out)puts by name, \{'x': array\}; got a"):
        Case(inputs, outputs)


@needs_cuda_wheels
def test_model_in_parts_has_a_plan_of_its_first_part_or_none() -> None:
    contents = build_contents({"m": load_nested(dims={"n": 3, "k": 4})}, architectures=["sm_80"])
    for rows in contents.methods["m"].plans.values():
        assert len(rows) <= 1


def test_models_without_names_and_an_architecture_that_is_no_list_are_refused() -> None:
    with pytest.raises(gx.InputError, match="Models are given by name of the method; got a list"):
        gx.Program.build([load_linear()])  # type: ignore[arg-type]
    with pytest.raises(gx.InputError, match=r"Architectures are a list, \['sm_90'\], got the text 'sm_90'"):
        gx.Program.build({"m": load_linear()}, architectures="sm_90")
