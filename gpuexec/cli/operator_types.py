"""Element types that operators accept, per input, and those with a blit, found by asking the operators.

An example (`gpuexec.cli.operator_examples`) is tried with each of its inputs in every type, alone and together with the
inputs of its own type: the types that ``infer`` accepts are the operator's. Each such call is planned for a device
whose memory is textures: if nothing runs on the host there, every launch has a blit.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpuexec.cli.operator_examples import Example, convert_spec, takes
from gpuexec.errors import InputError
from gpuexec.ir.apply import infer_specs
from gpuexec.ir.containers import make_blank
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Operator
from gpuexec.ir.spec import DTYPES, HOST_OBJECTS, STRING, dtype_row, is_host_object
from gpuexec.ir.target import Target
from gpuexec.ops.tensor.shape import to_literal
from gpuexec.passes.decompose import decompose
from gpuexec.planner.partitioner import find_partition

TYPES = (*DTYPES, *HOST_OBJECTS)
PIXEL = Target.named("pixel_90")


@dataclass(frozen=True, slots=True)
class AcceptedTypes:
    """Element types that an operator accepts.

    Attributes:
        types: Element types of each input, in table order; of what has no inputs, those of its output.
        drawn: Those of them for which a pixel target has nothing to compute on the host.
        undrawn: Names of the operators that the host computes there, of the examples as they are.
    """

    types: tuple[tuple[str, ...], ...]
    drawn: tuple[tuple[str, ...], ...]
    undrawn: tuple[str, ...]


def list_accepted_types(examples: Sequence[Example]) -> AcceptedTypes:
    """Return the element types that the operator of these examples accepts."""
    types, drawn = defaultdict[int, set[str]](set), defaultdict[int, set[str]](set)
    undrawn = {name: None for example in examples for name in list_host_calls(example, PIXEL)}
    for example in examples:
        for positions, name, variant in list_variants(example):
            is_drawn = not (is_host_object(dtype_row(name).numpy) or list_host_calls(variant, PIXEL))
            for position in positions:
                types[position].add(name)
                drawn[position].update([name] if is_drawn else [])
    places = sorted(types)
    return AcceptedTypes(_sort_all(types[i] for i in places), _sort_all(drawn[i] for i in places), tuple(undrawn))


def list_variants(example: Example) -> Iterator[tuple[tuple[int, ...], str, Example]]:
    """Yield the accepted calls like an example: which inputs have which type, and the call."""
    op, inputs = example.operator, example.inputs
    if not inputs:
        yield from (((0,), name, Example(made, ())) for name, made in _list_makers(op))
    wants_content = not takes(op, inputs)
    groups = {
        positions
        for i, given in enumerate(inputs)
        if given is not None
        for positions in ((i,), tuple([j for j, x in enumerate(inputs) if x is not None and x.dtype == given.dtype]))
    }
    for positions in sorted(groups):
        for row in TYPES:
            changed = list(inputs)
            for i in positions:
                x = inputs[i]
                changed[i] = None if x is None else convert_spec(x, row.numpy)
            if takes(op, changed, wants_content):
                yield positions, row.name, Example(op, tuple(changed))


def list_host_calls(example: Example, target: Target) -> tuple[str, ...]:
    """Return the names of the operators that run on the host when a call is planned for a target."""
    values = [None if x is None else Value(f"x{i}") for i, x in enumerate(example.inputs)]
    given = {value: x for value, x in zip(values, example.inputs, strict=True) if value is not None and x is not None}
    try:
        outputs = len(infer_specs(example.operator, example.inputs))
    except InputError:  # the number of outputs depends on content
        outputs = 1
    while True:
        made = tuple([Value(f"y{i}") for i in range(outputs)])
        node = Node(example.operator, tuple(values), made, "node")
        try:
            graph = decompose(Graph(tuple(given), made, (node,), {}))
            break
        except InputError:  # with these inputs there are fewer outputs
            if (outputs := outputs - 1) < 1:
                raise
    return tuple(dict.fromkeys(call.operator.name for call in find_partition(graph, given, target).host_calls))


def _list_makers(op: Operator) -> Iterator[tuple[str, Operator]]:
    """Yield an operator without inputs for each output type that an attribute can select, and the types."""
    fields = {field.name for field in dataclasses.fields(op)}  # type: ignore[arg-type]
    for row in (*DTYPES, dtype_row(STRING)):
        said = {"dtype": row.code} if "dtype" in fields else {"value": to_literal(make_blank((1,), row.numpy))}
        try:
            made = dataclasses.replace(op, **said)  # type: ignore[type-var]
            (spec,) = made.infer()
        except InputError:
            continue
        yield dtype_row(spec.dtype).name, made


def _sort_all(names: Iterable[set[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple([tuple([row.name for row in TYPES if row.name in each]) for each in names])
