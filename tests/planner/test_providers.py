"""The choice among providers: by predicted and measured costs, within what bits may follow from, and its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.errors import PlanError
from gpuexec.ir.command import LibraryCall
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.library_problem import ProductProblem
from gpuexec.ir.plan_json import to_json
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.model.model import choose_precision
from gpuexec.passes import run_passes
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.providers import CublasLt, Providers, predict_library_us
from gpuexec.planner.template import Template, plan_graph
from gpuexec.planner.tune_file import Tuning, merge_tunings, read_tuning, write_tuning
from gpuexec.planner.verify import verify
from tests.model.small_models import make_model

BOTH = ("cublaslt", "cudnn")
PROBLEM = ProductProblem("float16", "float16", "float32", (512, 768, 768), (768, 1), (768, 1), None, 768)


def products(*steps: Any, columns: int = 768, rows: Any = 512) -> gx.Model:
    """Return a product with what follows it, of an operator's name, or with an operand."""
    nodes, last = [helper.make_node("MatMul", ["x", "w"], ["y0"], name="product")], "y0"
    for number, step in enumerate(steps, 1):
        name, others, attributes = (step, [], {}) if isinstance(step, str) else step
        nodes.append(helper.make_node(name, [last, *others], [f"y{number}"], **attributes))
        last = f"y{number}"
    weights = {"w": np.zeros((768, columns), np.float32), "b": np.zeros(columns, np.float32)}
    return make_model(nodes, {"x": (rows, 768)}, {last: (rows, columns)}, **weights)


def plan(model: gx.Model, providers: Providers, target: str = "sm_90", **options: Any) -> Template:
    specs = {port.name: TensorSpec((512, 768), np.dtype(np.float32)) for port in model.inputs}
    graph = run_passes(model.graph, model._plan_passes, model.disabled_passes, specs)
    return plan_graph(graph, specs, Target.named(target), model.dims, **options, providers=providers)


def list_calls(template: Template) -> list[LibraryCall]:
    return [command for command in template.plan.segment.commands if isinstance(command, LibraryCall)]


def tuned(template: Template, **times_us: float) -> Tuning:
    """Return a tune file of the first problem that a plan had."""
    names = {"ours": "gpuexec"}
    times = {names.get(name, name): us for name, us in times_us.items()}
    return Tuning("H100", {}, {template.offers[0][1].problem: times})


def test_the_cheapest_candidate_is_taken_and_the_reason_has_all_costs() -> None:
    template = plan(products(), Providers(BOTH))
    ((node, offer),) = template.offers
    costs = {name: us for name, us, _ in offer.costs}
    assert node == "product" and offer.chosen == min(costs, key=lambda name: costs[name]) and len(costs) == 2
    assert offer.reason == "; ".join(f"{name} {us:.1f} us predicted" for name, us in costs.items())


@pytest.mark.parametrize(("ours", "library", "chosen"), [(9.0, 10.0, "gpuexec"), (9.0, 8.0, "cublaslt")])
def test_times_of_a_tune_file_decide(ours: float, library: float, chosen: str) -> None:
    tuning = tuned(plan(products(), Providers(BOTH)), ours=ours, cublaslt=library)
    template = plan(products(), Providers(BOTH, tuning))
    offer = template.offers[0][1]
    assert offer.chosen == chosen and bool(list_calls(template)) == (chosen == "cublaslt")
    assert offer.reason == f"gpuexec {ours:.1f} us measured; cublaslt {library:.1f} us measured"


def test_a_candidate_that_was_not_measured_where_others_were_is_left_out() -> None:
    first = plan(products(), Providers(BOTH))
    offer = plan(products(), Providers(BOTH, tuned(first, ours=99.0))).offers[0][1]
    assert offer.chosen == "gpuexec" and offer.refused == (("cublaslt", "it was not measured"),)


def test_a_problem_that_a_library_refused_when_measured_is_not_given_to_it() -> None:
    problem = plan(products(), Providers(BOTH)).offers[0][1].problem
    tuning = Tuning("H100", {}, {}, {problem: {"cublaslt": "no algorithm"}})
    offer = plan(products(), Providers(BOTH, tuning, forced="cublaslt")).offers[0][1]
    assert offer.chosen == "gpuexec" and offer.refused == (("cublaslt", "no algorithm"),)


@pytest.mark.parametrize(
    ("precision", "options", "why"),
    [
        ("reference", {}, "bits may follow from the order of terms alone"),
        ("strict", {"fixes_division": True}, "bits may follow from size class and architecture alone"),
    ],
)
def test_bits_that_must_follow_from_less_than_a_library_leave_it_out(
    precision: str, options: dict[str, Any], why: str
) -> None:
    model = choose_precision(products(), precision)
    template = plan(model, Providers(BOTH, forced="cublaslt"), **options)
    offer = template.offers[0][1]
    assert offer.chosen == "gpuexec" and offer.refused == (("cublaslt", why),) and not list_calls(template)


@pytest.mark.parametrize(
    ("steps", "is_called", "text"),
    [
        ((), True, "y by 768"),
        ((("Add", ["b"], {}),), True, "bias"),
        ((("Add", ["b"], {}), "Relu"), True, "bias, relu"),
        ((("Add", ["b"], {}), ("Gelu", [], {"approximate": "tanh"})), True, "bias, gelu_tanh"),
        ((("Add", ["b"], {}), "Gelu"), False, "its epilogue has Gelu, which libraries lack"),
        (("Relu", ("Add", ["b"], {})), False, "its epilogue adds twice, or behind its activation"),
        (("Sigmoid",), False, "its epilogue has Sigmoid, which libraries lack"),
    ],
)
def test_an_epilogue_is_part_of_the_problem_or_keeps_libraries_away(
    steps: tuple[Any, ...], is_called: bool, text: str
) -> None:
    template = plan(products(*steps), Providers(BOTH, forced="cublaslt"))
    offer = template.offers[0][1]
    assert bool(list_calls(template)) == is_called and (offer.problem if is_called else offer.reason).endswith(text)
    assert len(template.plan.segment.commands) == 1 or not is_called


def test_a_plan_with_calls_is_verified_predicted_and_printed() -> None:
    template = plan(products(("Add", ["b"], {})), Providers(BOTH, forced="cublaslt"))
    verify(template.plan)
    (call,) = list_calls(template)
    workspace = call.arguments[-1]
    assert workspace is not None and workspace.spec.nbytes == 32 << 20 == template.plan.layout.nbytes
    (row,) = predict_plan(template.plan).commands
    assert row.kernel == "cublaslt" and row.bound_by == "library" and row.flops == 2 * 512 * 768 * 768
    assert row.nbytes == 4 * (512 * 768 * 2 + 768 * 768 + 768)  # the workspace is none of its operands
    assert "call cublaslt product 512x768x768, float32" in str(template.plan)


def test_a_plan_with_calls_is_not_stored() -> None:
    template = plan(products(), Providers(BOTH, forced="cublaslt"))
    with pytest.raises(PlanError, match=r"^A plan that calls cublaslt is not stored: make it without providers\.$"):
        to_json(template.plan)


def test_all_sizes_of_a_class_take_the_provider_of_its_upper_end() -> None:
    model = products(rows="n").bind({"n": (1, 512)})
    template = plan(model, Providers(BOTH, forced="cublaslt"))
    variant = template.specialise({"x": TensorSpec((3, 768), np.dtype(np.float32))})
    (call,) = variant.commands
    assert isinstance(call, LibraryCall) and isinstance(call.problem, ProductProblem)
    assert call.problem.extents == (3, 768, 768)


@pytest.mark.parametrize("target", ["cpu", "pixel_80"])
def test_other_targets_than_gpus_with_memory_have_no_choice(target: str) -> None:
    template = plan(products(), Providers(BOTH, forced="cublaslt"), target)
    assert not template.offers and not list_calls(template)


def test_what_a_library_costs_is_bounded_by_arithmetic_and_bytes() -> None:
    gpu = find_gpu(90)
    cost = predict_library_us(PROBLEM, 90, gpu)
    assert cost > PROBLEM.flops / 989e12 * 1e6 and cost > 2 * 3 * 512 * 768 / gpu.dram_bytes_per_second * 1e6
    wide = ProductProblem("float16", "float16", "float32", (8192, 8192, 8192), (8192, 1), (8192, 1), None, 8192)
    rate = wide.flops / predict_library_us(wide, 90, gpu) * 1e6
    assert 400e12 < rate < 989e12


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"extents": (512, 0, 768)}, "an extent is 0"),
        ({"a": (0, 1)}, "an operand is dense along neither of its axes"),
        ({"b": (768, 2)}, "an operand is dense along neither of its axes"),
        ({"y_row": 700}, "an operand is dense along neither of its axes"),
        ({"dtype": "float64"}, "it does not multiply float64 into float16 with sums of float"),
    ],
)
def test_cublaslt_says_why_it_does_not_take_a_problem(changes: dict[str, Any], why: str) -> None:
    from dataclasses import replace

    target = Target.named("sm_90")
    problem = replace(PROBLEM, **changes)
    assert CublasLt().refuse(problem, target) == why and not CublasLt().candidates(problem, target)


def test_a_tune_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tune.json"
    times = {"product 1": {"gpuexec": 3.25, "cublaslt": 2.5}, "product 2": {"gpuexec": 1.0}}
    tuning = Tuning("H100", {"driver": "13000"}, times, {"product 2": {"cublaslt": "no algorithm"}})
    write_tuning(path, tuning)
    read = read_tuning(path)
    assert (read.gpu, read.versions, read.times_us, read.refused) == (
        tuning.gpu, tuning.versions, tuning.times_us, tuning.refused,
    )  # fmt: skip
    assert json.loads(path.read_text())["problems"][0]["fastest"] == "cublaslt"
    read.check_gpu("H100")
    with pytest.raises(gx.InputError, match=r"tune\.json was measured on 'H100', and this is 'A100'"):
        read.check_gpu("A100")


def test_a_tune_file_is_added_to_on_the_same_gpu_and_versions(tmp_path: Path) -> None:
    before = Tuning("H100", {"driver": "1"}, {"a": {"gpuexec": 1.0}, "b": {"gpuexec": 2.0}}, source="t.json")
    after = merge_tunings(before, Tuning("H100", {"driver": "1"}, {"b": {"gpuexec": 3.0}}))
    assert after.times_us == {"a": {"gpuexec": 1.0}, "b": {"gpuexec": 3.0}}
    with pytest.raises(gx.InputError, match=r"t\.json was measured with another version of driver: name a new file"):
        merge_tunings(before, Tuning("H100", {"driver": "2"}, {}))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is no tune file: Expecting"),
        ("[]", "is no tune file: it lacks 'gpuexec_tuning'"),
        ('{"gpuexec_tuning": 9}', "is a tune file of format 9; this release reads 1"),
        ('{"gpuexec_tuning": 1}', "is no tune file: KeyError: 'problems'"),
        (
            '{"gpuexec_tuning": 1, "gpu": "g", "versions": {}, "problems": [{"problem": "p", "median_us": {"me": 1}}]}',
            "there is no provider 'me'",
        ),
        (
            '{"gpuexec_tuning": 1, "gpu": "g", "versions": {}, "problems": [{"problem": "p", "median_us": '
            '{"cudnn": -1}}]}',
            "expected microseconds, got -1",
        ),
    ],
)
def test_a_file_that_is_no_tune_file_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "tune.json"
    path.write_text(text)
    with pytest.raises(gx.InputError) as error:
        read_tuning(path)
    assert why in str(error.value)
