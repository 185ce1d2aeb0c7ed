"""What notebooks and pages show: well-formed, escaped, whole in itself, and no wider than a narrow page."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import helper

import gpuexec as gx
from gpuexec.cli import main
from gpuexec.cli.memory_page import draw_memory
from gpuexec.execution.profiling.timeline_drawing import list_segments
from gpuexec.execution.report import PrintedText
from gpuexec.ir.gpus import find_gpu_named
from gpuexec.ir.roofline import RooflinePoint, draw_roofline
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.template import plan_graph
from gpuexec.system.html import Markup, draw_bar, draw_label, escape_text, make_table
from tests.model.small_models import make_model, ramp
from tests.model.staged_models import MODELS, inputs

ODD = '<script>alert("1")</script>&\x01' + "long" * 40
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "input", "link"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Nothing that the browser would ask a network for.
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


class Checker(HTMLParser):
    """Checks that elements nest, and collects scripts and references."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scripts = 0
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.references += [str(value) for name, value in attrs if name in ("src", "href", "data", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [str(value) for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(markup: str, *, scripts: int) -> ElementTree.Element:
    """Check that markup is well-formed, with so many scripts of its own and nothing from elsewhere; return it."""
    checker = Checker()
    checker.feed(markup)
    checker.close()
    assert (checker.open, checker.scripts, checker.references) == ([], scripts, [])
    assert "url(" not in markup and "@import" not in markup
    assert "http" not in markup.replace("http://www.w3.org/2000/svg", "")
    return ElementTree.fromstring(markup.removeprefix("<!DOCTYPE html>"))


def odd_model() -> gx.Model:
    """Return a model with a memory, whose nodes have names that are markup, and wider than a page."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["wide"], name=ODD),
        helper.make_node("Add", ["wide", "held"], ["total"], name=f"{ODD}add"),
        helper.make_node("Softmax", ["total"], ["y"], name=f"{ODD}softmax"),
    ]
    shapes = {"x": [4, 3], "held": [4, 5]}, {"y": [4, 5], "total": [4, 5]}
    return make_model(nodes, *shapes, w=ramp(3, 5)).bind_state({"total": "held"})


@cache
def show() -> dict[str, str]:
    """Return what notebooks show of each class, by its name."""
    model = odd_model()
    with gx.Profiler() as profiler, gx.Worker(model, backend=gx.BackendType.CPU) as worker:
        worker.run(ramp(4, 3))
        shown = (model, worker.plans[0], worker.report(), profiler, worker.state)
        gap = gx.gap_of(np.ones(3), np.full(3, 1.1))
        return {type(each).__name__: each._repr_html_() for each in (*shown, gap)}


SPECS = {name: TensorSpec(shape, np.dtype(np.float32)) for name, shape in {"x": (4, 3), "held": (4, 5)}.items()}
CLASSES = ("Model", "Plan", "Report", "Profiler", "State", "Gap")


def profile(name: str) -> gx.Profiler:
    with gx.Profiler() as profiler, gx.Worker(MODELS[name].load(), backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(inputs(0))
    return profiler


def odd_profile() -> gx.Profiler:
    with gx.Profiler() as profiler, gx.Worker(odd_model(), backend=gx.BackendType.CPU) as worker:
        for _ in range(3):
            worker.run(ramp(4, 3))
    return profiler


@pytest.mark.parametrize("name", CLASSES)
def test_notebooks_show_well_formed_markup_without_scripts(name: str) -> None:
    shown = show()[name]
    check(shown, scripts=0)
    assert "prefers-color-scheme: dark" in shown and "<script>alert" not in shown and "\x01" not in shown
    # A style that only its own element has.
    style = re.sub(r"@media [^{]*\{(.*)\}", r"\1", shown.partition("<style>")[2].partition("</style>")[0])
    rules = [rule for rule in re.findall(r"([^{}]+)\{", style) if rule.strip()]
    assert rules and all(part.strip().startswith(".gpuexec") for rule in rules for part in rule.split(","))


@pytest.mark.parametrize("name", ["Plan", "Profiler"])
def test_names_of_nodes_are_shown_escaped(name: str) -> None:
    shown = show()[name]
    assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\N{REPLACEMENT CHARACTER}long" in shown
    assert ODD.replace("\x01", "\N{REPLACEMENT CHARACTER}") in "".join(check(shown, scripts=0).itertext())


def test_classes_show_what_they_hold() -> None:
    texts = {name: " ".join(check(shown, scripts=0).itertext()) for name, shown in show().items()}
    assert tuple(texts) == CLASSES
    assert "3 in the file" in texts["Model"] and "Softmax" in texts["Model"] and "swap" in texts["Model"]
    assert "float32[4,3]" in texts["Plan"] and "arena over time" in show()["Plan"] and "MatMul" in texts["Plan"]
    assert "Report of a Worker on cpu" in texts["Report"]
    assert "held" in texts["State"] and "total" in texts["State"] and "float32[4,5]" in texts["State"]
    assert "beyond the tolerance" in texts["Gap"] and "0.1" in texts["Gap"]


def test_reports_show_host_calls_and_reads() -> None:
    with gx.Worker(MODELS["host call"].load(), backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(inputs(0))
        text = " ".join(check(worker.report()._repr_html_(), scripts=0).itertext())
    assert "no lowering for this device" in text and "input of a host call" in text


def test_what_is_text_is_escaped_and_what_is_markup_is_not() -> None:
    assert escape_text("<&>\"'\x00") == "&lt;&amp;&gt;&quot;&#x27;\N{REPLACEMENT CHARACTER}"
    assert escape_text(Markup("<b>")) == "<b>" and escape_text(escape_text("&")) == "&amp;"
    table = ElementTree.fromstring(make_table(("a", "<b>"), [("&", Markup("<i>x</i>")), (1, 2)], numbers=1))
    assert [cell.text for cell in table.iter("th")] == ["a", "<b>"]
    assert [cell.text for cell in table.iter("td")] == ["&", None, "1", "2"] and table.find(".//i") is not None
    assert make_table(("a",), []) == ""
    assert "and 50 more" in make_table(("a",), [(number,) for number in range(250)])


def test_bars_and_labels_keep_to_their_room() -> None:
    assert "width:100.0%" in draw_bar(7.0, "") and "over" in draw_bar(7.0, "")
    assert "width:50.0%" in draw_bar(0.5, "") and "over" not in draw_bar(0.5, "")
    assert draw_label(0, 0, "name", 10) == "" and ">na…<" in draw_label(0, 0, "names", 25)


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("read", ["host read: NonZero_1.count", "no wait: on to NonZero_1", ""]),
        ("host call", ["host read: a for NoKernel_1", "no wait: on to Add_2", ""]),
        ("loop", ["no wait: on to Add_0", *["host read: size for Less_2"] * 4, ""]),
    ],
)
def test_segments_say_what_cut_them(name: str, cuts: list[str]) -> None:
    profiler = profile(name)
    segments = list_segments(profiler.rows(), profiler.events())
    assert sum(each.layers for each in segments) == len(profiler.rows())
    for segment, cut in zip(segments, cuts, strict=True):
        assert segment.cut.startswith(cut) and bool(segment.cut) == bool(cut)
        assert segment.start_ms <= segment.end_ms


def test_a_timeline_has_an_arrow_for_each_layer_from_the_host_to_the_device(tmp_path: Path) -> None:
    profiler, path = profile("loop"), tmp_path / "profile.html"
    profiler.save_html(path)
    page = check(path.read_text(encoding="utf-8"), scripts=1)
    (timeline,) = (each for each in page.iter(f"{SVG}svg") if each.get("class") == "timeline")
    layers = [row for row in profiler.rows() if row.plan >= 0]
    arrows = [each for each in timeline.iter(f"{SVG}path") if each.get("class") == "arrow"]
    boxes: dict[str, list[ElementTree.Element]] = {}
    for box in timeline.iter(f"{SVG}rect"):
        boxes.setdefault(str(box.get("class")), []).append(box)
    assert len(arrows) == len(layers) == len(boxes["box issue"]) == len(boxes["box layer"]) > 0

    def place(box: ElementTree.Element, *names: str) -> float:
        return sum(float(box.get(name, "")) for name in names)

    starts = {(round(place(box, "x", "width"), 1), round(place(box, "y", "height"), 1)) for box in boxes["box issue"]}
    ends = {round(place(box, "x"), 1) for box in boxes["box layer"]}
    for arrow in arrows:
        numbers = [float(each) for each in re.findall(r"-?[\d.]+", arrow.get("d", ""))]
        assert any(abs(x - numbers[0]) < 0.2 and abs(y - numbers[1]) < 0.2 for x, y in starts)
        assert any(abs(x - numbers[-2]) < 0.2 for x in ends)
    width = float(timeline.get("viewBox", "").split()[2])
    assert all(place(box, "x") >= 0 and place(box, "x", "width") <= width for each in boxes.values() for box in each)


def test_pages_of_profiles_are_well_formed_and_escaped(tmp_path: Path) -> None:
    profiler, path = odd_profile(), tmp_path / "profile.html"
    sizes = []
    for runs in (1, 3):
        profiler.save_html(path, runs=runs)
        page = path.read_text(encoding="utf-8")
        kinds = [str(each.get("class")) for each in check(page, scripts=1).iter(f"{SVG}svg")]
        assert kinds == ["strip", "timeline", "roofline"] and "<script>alert" not in page
        sizes.append(page.count('class="arrow"'))
    assert sizes[1] == 3 * sizes[0] > 0
    gx.Profiler().save_html(path)
    assert "No run was profiled yet." in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("runs", [0, -1, True, 1.5, "1"])
def test_a_number_of_runs_that_is_none_is_refused(runs: Any, tmp_path: Path) -> None:
    with pytest.raises(gx.InputError, match="runs must be a whole number, at least 1, got"):
        gx.Profiler().save_html(tmp_path / "profile.html", runs=runs)
    assert not list(tmp_path.iterdir())


def test_the_command_line_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = str(Path(__file__).resolve().parents[2] / "examples/models/digits.onnx")
    out = tmp_path / "profile.html"
    assert main(["profile", digits, "--backend", "cpu", "--dims", "batch=2", "--runs", "2", "--html", str(out)]) == 0
    assert f"page written to {out}" in capsys.readouterr().out
    check(out.read_text(encoding="utf-8"), scripts=1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla T4", "T4"),
        ("NVIDIA H200", None),
        ("cpu", None),
        ("simulator (sm_90)", None),
    ],
)
def test_roofs_are_those_of_the_device_of_that_name(name: str, expected: str | None) -> None:
    found = find_gpu_named(name)
    assert (None if found is None else found.name) == expected


def test_a_roofline_has_a_roof_where_it_is_known() -> None:
    points = [RooflinePoint("a", 1000, 100, 1.0), RooflinePoint("nothing", 0, 100, 1.0)]
    for gpu in (None, find_gpu_named("NVIDIA B200")):
        drawing = draw_roofline(points, gpu, 2.0)
        assert drawing.count("<circle") == 1 and drawing.count('class="roof"') == (gpu is not None)
    assert draw_roofline(points[1:], None, 1.0) == ""


def test_a_summary_is_shown_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with gx.Worker(MODELS["host call"].load(), backend=gx.BackendType.SIMULATOR) as worker:
        worker.run(inputs(0))
        summary = worker.summary()
    shown = repr(summary)
    assert "\\n" not in shown and max(map(len, shown.splitlines())) <= 80
    assert max(map(len, summary.splitlines())) > 80 and shown.split() == summary.split()
    assert isinstance(summary, str) and summary == str(summary) and f"{summary}" == summary


def test_printed_text_is_folded_with_what_follows_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert repr(PrintedText("a\n\n  one two three four five")) == "a\n\n  one two three four\n      five"
    assert max(map(len, repr(PrintedText(f"  {ODD}")).splitlines())) <= 20


def make_pages(folder: Path) -> dict[str, str]:
    """Return pages by name; what notebooks show is in a page as they show it."""
    odd_profile().save_html(folder / "page.html")
    plan = plan_graph(odd_model().graph, SPECS, Target.named("sm_90")).plan
    return {
        "page": (folder / "page.html").read_text(encoding="utf-8"),
        "memory": draw_memory(ODD, [plan], {}, [predict_plan(plan)]),
        **show(),
    }


def test_nothing_is_wider_than_400_pixels_in_a_browser(tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed, which lays pages out")
    # Frames are narrower than windows can be. Titles come back, as the script of this page leaves them.
    frames = [
        f'<iframe id="{name}" width="400" height="900" srcdoc="{escape(page)}"></iframe>'
        for name, page in make_pages(tmp_path).items()
    ]
    script = (
        "onload = () => { document.title = [...document.querySelectorAll('iframe')].map(frame => {"
        " const page = frame.contentDocument.documentElement, box = page.querySelector('.wide, h1');"
        " return [frame.id, page.scrollWidth, page.clientWidth,"
        " getComputedStyle(box).color, matchMedia('(prefers-color-scheme: dark)').matches].join('|'); }).join('#'); }"
    )
    path = tmp_path / "frames.html"
    path.write_text(f"<!DOCTYPE html><title>none</title>{''.join(frames)}<script>{script}</script>", encoding="utf-8")
    for flags, is_dark in (((), "false"), (("--force-dark-mode",), "true")):
        command = [browser, *FLAGS, *flags, f"--user-data-dir={tmp_path / is_dark}", "--dump-dom", path.as_uri()]
        dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        found = re.search(r"<title>(.*?)</title>", dumped, re.DOTALL)
        assert found is not None
        rows = [row.split("|") for row in found[1].split("#")]
        assert [row[0] for row in rows] == ["page", "memory", *CLASSES]
        for name, scrolled, width, colour, dark in rows:
            assert int(scrolled) <= int(width) <= 400, f"{name} is {scrolled} wide"
            assert dark == is_dark
            if name in ("page", "memory"):
                assert colour == ("rgb(255, 255, 255)" if is_dark == "true" else "rgb(0, 0, 0)")
