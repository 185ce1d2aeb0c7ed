"""HTML page of arenas: well-formed, with every temporary at its place in the layout, and names escaped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.cli.memory_page import draw_memory
from gpuexec.ir.arena_drawing import WIDTH, find_peak
from gpuexec.ir.graphs import name_values
from gpuexec.ir.plan import Plan, Role, list_lifetimes
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.template import plan_graph
from gpuexec.planner.time_model import BOUNDS
from tests.model.control_models import MODELS
from tests.model.small_models import make_model

SVG = "{http://www.w3.org/2000/svg}"
ODD = 'a<b>&"c"\x01'


def branchy() -> gx.Model:
    """Return a model with temporaries of several sizes and a node whose name is no markup."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"], name=ODD),
        helper.make_node("MatMul", ["x", "u"], ["other"], name="other"),
        helper.make_node("Exp", ["wide"], ["bent"], name="bend"),
        helper.make_node("Sub", ["bent", "other"], ["difference"], name="subtract"),
        helper.make_node("MatMul", ["difference", "v"], ["short"], name="narrow"),
        helper.make_node("Softmax", ["short"], ["y"], name="softmax"),
    ]
    weights = {"w": np.ones((8, 96), np.float32), "v": np.ones((96, 4), np.float32)}
    weights["u"] = 2 * weights["w"]
    return make_model(nodes, {"x": [40, 8]}, {"y": [40, 4]}, **weights)


def plan_branchy() -> tuple[gx.Model, Plan]:
    model = branchy()
    specs = {"x": TensorSpec((40, 8), np.dtype(np.float32))}
    return model, plan_graph(model.graph, specs, Target.named("sm_90")).plan


def parse(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))


def find_rectangles(page: ElementTree.Element) -> list[list[ElementTree.Element]]:
    """Return the rectangles of buffers, by drawing."""
    drawings = page.iter(f"{SVG}svg")
    return [[rect for rect in each.iter(f"{SVG}rect") if rect.get("class") == "box buffer"] for each in drawings]


def check_part(plan: Plan, rectangles: Sequence[ElementTree.Element]) -> None:
    """Check that there is a rectangle for each temporary, and that it lies and is as large as the layout says."""
    temporaries = [buffer.id for buffer in plan.buffers if buffer.role is Role.TEMP]
    assert [int(rect.get("data-buffer", "")) for rect in rectangles] == temporaries
    offsets = plan.layout.as_dict()
    rows = {name: [float(rect.get(name, "")) for rect in rectangles] for name in ("x", "y", "width", "height")}
    touched: dict[int, list[int]] = {}
    for position, command in enumerate(plan.segment.commands):
        for slot in (*command.reads_from(), *command.writes_to()):
            touched.setdefault(slot.buffer, []).append(position)
    bytes_of = {buffer.id: plan.buffers[buffer.id].nbytes for buffer in plan.buffers}
    unit_x = {rows["width"][i] / (max(touched[b]) + 1 - min(touched[b])) for i, b in enumerate(temporaries)}
    unit_y = {rows["height"][i] / bytes_of[b] for i, b in enumerate(temporaries) if bytes_of[b] > 1000}
    assert max(unit_x) == pytest.approx(min(unit_x), rel=1e-3) and max(unit_y) == pytest.approx(min(unit_y), rel=1e-2)
    left = {rows["x"][i] - min(touched[b]) * max(unit_x) for i, b in enumerate(temporaries)}
    floor = {rows["y"][i] + rows["height"][i] + offsets[b] * max(unit_y) for i, b in enumerate(temporaries)}
    assert max(left) - min(left) < 0.1 and max(floor) - min(floor) < 1
    for rect, buffer in zip(rectangles, temporaries, strict=True):
        assert int(rect.get("data-offset", "")) == offsets[buffer]
        assert int(rect.get("data-nbytes", "")) == bytes_of[buffer]
        assert (int(rect.get("data-first", "")), int(rect.get("data-last", ""))) == (
            min(touched[buffer]),
            max(touched[buffer]) + 1,
        )
        assert 0 < float(rect.get("x", "")) < WIDTH


def test_every_temporary_has_a_rectangle_where_the_layout_has_it() -> None:
    model, plan = plan_branchy()
    (rectangles,) = find_rectangles(parse(draw_memory("branchy", [plan], name_values(model.graph))))
    assert len(rectangles) >= 3
    check_part(plan, rectangles)


def test_hover_reports_node_value_bytes_and_life() -> None:
    model, plan = plan_branchy()
    (rectangles,) = find_rectangles(parse(draw_memory("branchy", [plan], name_values(model.graph))))
    texts = [str(rect.findtext(f"{SVG}title")) for rect in rectangles]
    assert any(
        "%other, written by other; 15,360 bytes at arena+" in text and "; commands 1 to 3" in text for text in texts
    )
    assert any('a<b>&"c"\N{REPLACEMENT CHARACTER}' in text and "%wide" in text for text in texts)


def test_lines_show_arena_bound_and_peak() -> None:
    model, plan = plan_branchy()
    page = parse(draw_memory("branchy", [plan], name_values(model.graph)))
    levels = {g.get("class"): g.get("data-nbytes") for g in page.iter(f"{SVG}g")}
    assert levels["level arena"] == str(plan.layout.nbytes) and levels["level bound"] == str(plan.layout.lower_bound)
    lifetimes = list_lifetimes(plan, name_values(model.graph))
    moment, peak = find_peak(lifetimes, len(plan.segment.commands))
    loads = [
        sum(-(-lifetime.nbytes // 256) * 256 for lifetime in lifetimes if lifetime.first <= command < lifetime.last)
        for command in range(len(plan.segment.commands))
    ]
    assert (moment, peak) == (loads.index(max(loads)), max(loads))
    assert f"peak {peak:,} bytes at command {moment}" in " ".join(page.itertext())


def test_names_are_escaped() -> None:
    model, plan = plan_branchy()
    page = draw_memory("<script>alert(1)</script>", [plan], name_values(model.graph))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert ODD not in page and "\x01" not in page
    assert "a&lt;b&gt;&amp;" in page


def test_page_needs_nothing_from_elsewhere() -> None:
    model, plan = plan_branchy()
    page = draw_memory("branchy", [plan], name_values(model.graph))
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert not {"link", "img", "iframe"} & {element.tag for element in parse(page).iter()}


def test_scratch_memory_is_no_value_of_its_node() -> None:
    model = make_model(
        [helper.make_node("TopK", ["x", "k"], ["v", "i"], name="top"), helper.make_node("Neg", ["v"], ["y"], name="n")],
        {"x": [3, 5000]},
        {"y": [3, 4]},
        k=np.array([4], np.int64),
    )
    plan = plan_graph(model.graph, {"x": TensorSpec((3, 5000), np.dtype(np.float32))}, Target.named("sm_90")).plan
    for lifetime in list_lifetimes(plan, name_values(model.graph)):
        is_read_elsewhere = any(
            origin != "top" and any(slot.buffer == lifetime.buffer for slot in command.reads_from())
            for origin, command in zip(plan.segment.origins, plan.segment.commands, strict=True)
        )
        assert ("scratch" in str(lifetime)) == (not is_read_elsewhere)


def test_plan_without_temporaries_is_drawn() -> None:
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    plan = plan_graph(model.graph, {"x": TensorSpec((2,), np.dtype(np.float32))}, Target.named("cpu")).plan
    assert find_rectangles(parse(draw_memory("empty", [plan], {}))) == [[]]


def test_explain_draws_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(MODELS["loop_in_if_in_scan"].parse(), tmp_path / "model.onnx")
    out = tmp_path / "out.html"
    assert main(["explain", str(tmp_path / "model.onnx"), "--backend", "cpu", "--memory", str(out)]) == 0
    printed = capsys.readouterr().out
    drawings = find_rectangles(parse(out.read_text(encoding="utf-8")))
    assert len(drawings) == printed.count("plan for cpu") > 1
    assert f"{len(drawings)} arenas drawn to" in printed
    assert "Part 1 of " in out.read_text(encoding="utf-8")


def test_explain_draws_for_a_target_without_its_device(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    digits = str(Path(__file__).resolve().parents[3] / "examples/models/digits.onnx")
    assert main(["explain", digits, "--target", "sm_90", "--dims", "batch=4", "--memory", str(out)]) == 0
    page = parse(out.read_text(encoding="utf-8"))
    rectangles, none = find_rectangles(page)
    assert rectangles and not none  # a roofline is drawn behind the arena


def test_roofline_has_a_circle_for_each_command_with_operations() -> None:
    _, plan = plan_branchy()
    prediction = predict_plan(plan)
    page = parse(draw_memory(ODD, [plan], {}, [prediction]))
    circles = list(page.iter(f"{SVG}circle"))
    assert len(circles) == sum(row.flops > 0 for row in prediction.commands) > 0
    for circle in circles:
        assert 0 < float(circle.get("cx", "0")) < WIDTH
        title = circle.find(f"{SVG}title")
        assert title is not None and title.text is not None and "bound by" in title.text
    kinds = [set(each.get("class", "").split()) for each in circles]
    assert all(kind & {*BOUNDS, "launch"} for kind in kinds)
