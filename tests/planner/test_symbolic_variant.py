"""Symbolic variants: at every size for which the guards hold, the very commands that planning that size gives."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import gpuexec as gx
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.symbolic_int import UntraceableError
from gpuexec.ir.target import Target
from gpuexec.planner.symbolic_variant import SymbolicVariant, share_layout
from gpuexec.planner.template import Template, plan_graph
from tests.bench.decoders import make_gpt2, make_llama
from tests.bench.host_time import open_tracer
from tests.bench.models import BenchModel
from tests.ir.random_graphs import random_graph
from tests.planner.test_template import decoder, step
from tests.planner.tracing import Axis, check_trace

TARGETS = ("cpu", "sm_90", "sm_75")
DECODERS = {
    "gpt2": lambda: make_gpt2(layers=2, past=3, capacity=256, width=96, heads=12, vocabulary=100),
    "llama": lambda: make_llama(
        layers=2, past=3, capacity=256, width=64, heads=4, key_heads=2, hidden=96, vocabulary=99
    ),
}


def check_sizes(
    template: Template,
    specs_of: Mapping[int, Mapping[str, TensorSpec]],
    groups: Sequence[Sequence[Axis]],
    *,
    is_tied: bool = False,
) -> None:
    """Trace a template until all sizes have a trace; hold all that a trace serves against planning by itself."""
    left, made = list(specs_of), list[SymbolicVariant]()
    while left:
        symbolic = check_trace(template, specs_of[left[0]], groups)
        made.append(symbolic)
        share_layout(made)
        served = [size for size in left if check_size(template, specs_of[size], symbolic, groups)]
        assert left[0] in served
        left = [size for size in left if size not in served]
        assert is_tied or not symbolic.tied
    for symbolic in made:  # rows are of one layout whatever was traced later
        assert symbolic.layout is made[-1].layout


def check_size(
    template: Template, specs: Mapping[str, TensorSpec], symbolic: SymbolicVariant, groups: Sequence[Sequence[Axis]]
) -> bool:
    """Hold the variant of a trace against the size's own; return whether the trace holds for it."""
    found = symbolic.find([specs[group[0][0]].shape[group[0][1]] for group in groups])
    if found is None:
        return False
    exact = template.specialise(specs)
    assert found.commands == exact.commands
    assert (found.inputs, found.outputs) == (exact.inputs, exact.outputs)
    assert len(found.row) <= len(found.layout.fields)
    return True


def make_template(bench: BenchModel, backend: object) -> tuple[Template, Mapping[str, TensorSpec]]:
    """Return the template that decoding with bound state runs by, and specs of its inputs."""
    found: list[tuple[Template, Mapping[str, TensorSpec]]] = []
    real = Template.specialise

    def note(self: Template, inputs: Mapping[str, TensorSpec]) -> object:
        found.append((self, dict(inputs)))
        return real(self, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Template, "specialise", note)
        with gx.Worker(bench.load(), backend=backend) as worker:  # type: ignore[arg-type]
            for _ in range(3):
                worker.schedule({name: item for name, item in bench.inputs.items() if name not in bench.state.values()})
    return found[-1]


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("device", ["recorder", "cpu"])
def test_lengths_of_decoders(name: str, device: str) -> None:
    bench = DECODERS[name]()
    template, specs = make_template(bench, open_tracer() if device == "recorder" else "cpu")
    groups = [[(value, 2) for value in bench.state.values()]]

    def specs_of(length: int) -> dict[str, TensorSpec]:
        changed = {}
        for value in bench.state.values():
            batch, heads, _, depth = specs[value].shape
            changed[value] = specs[value].with_shape((batch, heads, length, depth))
        return {**specs, **changed}

    sizes = random.Random(1).sample(range(250), 40)
    check_sizes(template, {size: specs_of(size) for size in sizes}, groups)


@pytest.mark.parametrize("target", TARGETS)
def test_lengths_of_a_cache_with_a_mask(target: str) -> None:
    graph = decoder()

    def specs_of(past: int) -> dict[str, TensorSpec]:
        return {name: TensorSpec(x.shape, x.dtype) for name, x in step(past).items()}

    template = plan_graph(graph, specs_of(40), Target.named(target))
    sizes = {size: specs_of(size) for size in (40, 33, 34, 50, 2, 3, 17, 41, 49)}
    check_sizes(template, sizes, [[("past", 0)], [("mask", 0)]], is_tied=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(12))
def test_random_graphs(seed: int, target: str) -> None:
    graph = random_graph(seed)
    sizes = {size: {"x": TensorSpec((size, 4), np.dtype(np.float32))} for size in (128, 126, 66, 4, 2, 90)}
    template = plan_graph(graph, sizes[128], Target.named(target))
    check_sizes(template, sizes, [[("x", 0)]], is_tied=True)


@pytest.mark.parametrize("target", TARGETS)
def test_batch_and_length_at_once(target: str) -> None:
    def program(x: Any) -> Any:
        scores = gx.fn.softmax(x @ gx.fn.swapaxes(x, 1, 2), axis=-1)
        flat = gx.fn.reshape(scores @ x, (-1, x.shape[1] * 8))
        return flat + 1, gx.fn.mean(scores, axis=1)

    graph = gx.graph(program, {"x": ("float32", ("n", "length", 8))}).graph
    sizes = {
        place: {"x": TensorSpec((rows, length, 8), np.dtype(np.float32))}
        for place, (rows, length) in enumerate(itertools.product((2, 3, 4, 7), (5, 16, 31, 64)))
    }
    template = plan_graph(graph, {"x": TensorSpec((8, 64, 8), np.dtype(np.float32))}, Target.named(target))
    check_sizes(template, sizes, [[("x", 0)], [("x", 1)]])


def test_reads_of_content_are_refused() -> None:
    graph = decoder()
    specs = {name: TensorSpec(x.shape, x.dtype) for name, x in step(9).items()}
    template = plan_graph(graph, specs, Target.named("sm_90"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuexec.ir.symbolic_int.MAX_GUARDS", 1)
        with pytest.raises(UntraceableError, match="more than 1 guards"):
            template.trace(specs, [[("past", 0)], [("mask", 0)]])
    # A trace that was given up leaves nothing behind.
    check_sizes(template, {9: specs}, [[("past", 0)], [("mask", 0)]], is_tied=True)
