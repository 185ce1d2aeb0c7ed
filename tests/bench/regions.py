"""What is fused: regions of the plans of models by their template, and what fusing saves of launches and bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

import gpuexec as gx
from gpuexec.devices.dependent_launch import find_waiting
from gpuexec.ir.command import Launch
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.passes import GENERATING
from gpuexec.passes.pointwise_nodes import PointwiseNodes
from gpuexec.planner.prediction import predict_plan
from gpuexec.planner.template import Template
from tests.bench.architectures import ARCHITECTURES
from tests.bench.models import Array, make_template
from tests.bench.tables import Figures

TARGET, PRECISION = "sm_90", "fp16"
# By the file of kernels that are all generated text; other kernels have text as an epilogue.
TEMPLATES = {"flat.cu": "flat", "rows.cu": "row", "tiled.cu": "tile"}
EPILOGUE, APART = "epilogue", "launched apart"
_COLUMNS = ("model", "launches", *TEMPLATES.values(), EPILOGUE, APART, "steps", "alone", "why alone")
_SAVED_COLUMNS = ("model", "fused", "launches", "MB moved", "MB at least", "predicted us")
# Makers of architectures that `measure_regions` takes.
MAKERS = {name: partial(make, has_weights=False) for name, make in ARCHITECTURES.items()}


def measure_regions(folder: Path | None) -> list[Figures]:
    """Count the regions of each model of a folder, and plan the architectures with fusing and without."""
    return [*_count_folder(folder), _measure_saved()]


def count_regions(template: Template) -> tuple[Counter[str], int]:
    """Return how many regions a plan has of each template, and how many steps are in them."""
    plan, found = template.plan, Counter[str]()
    steps = {node.name: len(rows) for node in template.graph.nodes if (rows := getattr(node.operator, "steps", ()))}
    launched = {name: EPILOGUE if name not in _list_regions(template.graph) else APART for name in steps}
    for command, origin in zip(plan.segment.commands, plan.segment.origins, strict=True):
        if isinstance(command, Launch) and command.kernel.text and origin in launched:
            launched[origin] = TEMPLATES.get(command.kernel.source, EPILOGUE)
    found.update(launched.values())
    return found, sum(steps.values())


def explain_alone(graph: Graph, inputs: Mapping[str, TensorSpec]) -> Counter[str]:
    """Return why operators on elements are in no region, with how many there are of each reason."""
    nodes, readers = PointwiseNodes.of(graph, inputs), graph.consumers()
    makers = graph.producers()
    reasons: Counter[str] = Counter()
    for node in graph.nodes:
        if getattr(node.operator, "steps", ()) or not nodes.is_pointwise(node):
            continue
        beside = [makers[value] for value in node.inputs if value is not None and value in makers]
        beside += [reader for value in node.outputs if value is not None for reader in readers.get(value, ())]
        reasons[_explain(node, beside, nodes)] += 1
    return reasons


def _explain(node: Node, beside: list[Node], nodes: PointwiseNodes) -> str:
    fitting = [each for each in beside if getattr(each.operator, "steps", ()) or nodes.is_pointwise(each)]
    if not fitting:
        return "none beside it"
    shape = _find_shape(node.outputs, nodes)
    if all(_find_shape(each.outputs, nodes) != shape for each in fitting):
        return "other shapes beside it"
    return "a way out and back, or too many operands"


def _find_shape(values: tuple[Value | None, ...], nodes: PointwiseNodes) -> tuple[int, ...] | None:
    spec = None if values[0] is None else nodes.specs.get(values[0])
    return None if spec is None else spec.shape


def _list_regions(graph: Graph) -> set[str]:
    return {node.name for node in graph.nodes if node.operator.name.endswith("Region")}


def _count_folder(folder: Path | None) -> list[Figures]:
    figures = Figures(f"Regions of models, in each template, {TARGET}", _COLUMNS)
    if folder is None:
        figures.notes.append("Not measured: GPUEXEC_MODELS names no folder of models.")
        return [figures]
    failed, target = Figures("Models left out", ("model", "why")), Target.named(TARGET)
    for name, entry in json.loads((folder / "manifest.json").read_text()).items():
        try:
            model, given = gx.load(folder / entry["file"]), _read_case(folder / entry["cases"][0])
            template = make_template(model, given, target)
        except (gx.GpuexecError, ValueError, KeyError) as error:
            failed.add(name, str(error).split(":", 1)[-1].strip())
            continue
        found, steps = count_regions(template)
        alone = explain_alone(template.graph, {key: TensorSpec.of(array) for key, array in given.items()})
        why = ", ".join(f"{reason} {count}" for reason, count in alone.most_common())
        counts = [found[each] for each in (*TEMPLATES.values(), EPILOGUE, APART)]
        figures.add(name, len(template.plan.segment.commands), *counts, steps, alone.total(), why)
    if figures.rows:
        columns = zip(*(row[1:-1] for row in figures.rows), strict=True)
        figures.add(f"all {len(figures.rows)}", *map(sum, columns), "")
    return [figures, failed]


def _read_case(file: Path) -> dict[str, Array]:
    with np.load(file) as case:
        return {str(name): case[f"in_{i}"] for i, name in enumerate(case["input_names"])}


def _measure_saved() -> Figures:
    figures = Figures(f"Plans with fusing and without, {TARGET}, {PRECISION}", _SAVED_COLUMNS)
    target = Target.named(TARGET)
    for name, make in MAKERS.items():
        bench = make()
        model = gx.model.model.choose_precision(bench.load(), PRECISION)
        for is_fused in (True, False):
            template = make_template(model, bench.inputs, target, () if is_fused else GENERATING)
            found = predict_plan(bench.specialise(template), waits=find_waiting(target))
            moved, least = found.moved_nbytes / 1e6, found.minimum_nbytes / 1e6
            figures.add(name, "yes" if is_fused else "no", found.launches, moved, least, found.predicted_us)
    figures.notes.append("MB at least: the fewest that groups of commands could do with, if each were one.")
    return figures
