"""The host's part of a run: nodes that NumPy computes between two plans."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpuexec.mapped import hold
from gpuexec.planner.cut import Cut
from gpuexec.planner.evaluate import evaluate_node
from gpuexec.running.bound import Bound
from gpuexec.running.held import Env, Held
from gpuexec.running.pacing import Pacer
from gpuexec.running.part import Stage
from gpuexec.running.profiled import note_host_layer
from gpuexec.running.road import Road
from gpuexec.running.run import BETWEEN, Pause, Turn
from gpuexec.spec import TensorSpec


def compute_nodes(road: Road, bound: Bound, pacer: Pacer | None, stage: Stage, env: Env) -> Iterator[Turn]:
    """Compute nodes on the host: those without a kernel here, which are layers, and light ones."""
    cut, profile = stage.cut, bound.profile
    if cut.host_calls:
        yield Pause(lambda: False, lambda: None, is_work=True)
    left = count_layers(cut)
    for node in cut.host_nodes:
        is_layer = node in cut.host_calls
        if is_layer:
            yield BETWEEN
        if is_layer and pacer is not None and not pacer.fits(stage.times, node):
            yield pacer.take(left)
        specs = [None if value is None else _describe(env[value]) for value in node.inputs]
        start = time.perf_counter()
        for value, spec in zip(node.outputs, evaluate_node(node, specs), strict=False):
            if value is None or spec is None or spec.value is None:
                continue
            # An output that a light node made on the device too stays there.
            held = env.setdefault(value, Held(TensorSpec(spec.shape, spec.dtype)))
            held.array, held.is_computed = spec.value.array, True
        inspection = bound.run._inspection
        if inspection is not None:
            rows = bound.exposure.rows_of(node, node.outputs)
            inspection._take_host_node(node, rows, {value: held.array for value, held in env.items()})
        if not is_layer:
            continue
        computed_ms = (time.perf_counter() - start) * 1e3
        road.syncs.note_call(node, cut.host_calls[node], computed_ms)
        if profile is not None:
            note_host_layer(profile, node, env, computed_ms)
        if pacer is not None:
            pacer.add(node.name, stage.times, node)
            stage.times.note(node, computed_ms)
            left -= 1
            if pacer.is_full:
                yield pacer.take(left)


def _describe(held: Held) -> TensorSpec:
    """Return the spec of an input, with its content; a weight that lies in a file is read once."""
    spec = held.describe()
    return spec.with_value(hold(held.array)) if held.is_weight and held.array is not None else spec


def count_layers(cut: Cut) -> int:
    """Return how many layers may follow the plan of a cut."""
    return len(cut.host_calls) + (0 if cut.rest is None else len(cut.rest.nodes))
