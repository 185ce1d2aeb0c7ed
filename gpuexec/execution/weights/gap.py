"""Accuracy gap of a model with compressed weights: layer by layer, and in its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError, locate
from gpuexec.execution.inspection.gaps import Gap, gap_of
from gpuexec.ir.apply import compute_arrays
from gpuexec.ir.graphs import Array, Graph, Node, Value, walk
from gpuexec.model.model import Model
from gpuexec.model.ports import ModelPort
from gpuexec.ops.quant.narrow import Narrowed
from gpuexec.ops.quant.narrow_weight import widen
from gpuexec.system.mapped import read_content
from gpuexec.system.records import Record


@dataclass(frozen=True, slots=True)
class WeightRow(Record):
    """A layer with a narrow weight.

    Attributes:
        node: Its name.
        operator: Its operator, as ONNX names it.
        weight: The gap between the wide weight and the value of the narrow one; None where the first is not in the
            model any more.
        output: The gap of what it makes, inputs being what each of the models makes them.
        nbytes: Of the weight with its scales.
        wide_nbytes: Of the weight if it were wide.

    Example:
        >>> rows = gx.measure_weights(model, model.compress_weights("fp16"), {"image": x}).rows
        >>> {row.operator for row in rows} == {"Conv", "Gemm"}, rows[0].nbytes * 2 == rows[0].wide_nbytes
        (True, True)
    """

    node: str
    operator: str
    weight: Gap | None
    output: Gap
    nbytes: int
    wide_nbytes: int


@dataclass(frozen=True, slots=True)
class WeightGap(Record):
    """Result of `measure_weights`; printed as a table.

    Attributes:
        rows: The layers whose weights are narrow, in order.
        outputs: The gap of each output, by name.
        nbytes: Of all weights of the compressed model.
        wide_nbytes: Of all weights of the other.

    Example:
        >>> gap = gx.measure_weights(model, model.compress_weights("int8"), {"image": x})
        >>> gap.nbytes < gap.wide_nbytes / 3, list(gap.outputs)
        (True, ['logits', 'probabilities'])
    """

    rows: tuple[WeightRow, ...]
    outputs: Mapping[str, Gap]
    nbytes: int
    wide_nbytes: int

    def __str__(self) -> str:
        width = max([len(row.node) for row in self.rows] + [len(name) for name in self.outputs] + [len("layer")])
        lines = [f"{'layer':{width}}  {'operator':13}  {'bytes':>12}  {'weight snr':>10}  {'output snr':>10}  max abs"]
        for row in self.rows:
            weight = "-" if row.weight is None else f"{row.weight.snr_db:.1f} dB"
            sizes = f"{row.nbytes:>12,}  {weight:>10}  {row.output.snr_db:>7.1f} dB  {row.output.max_abs:.3g}"
            lines.append(f"{row.node:{width}}  {row.operator:13}  {sizes}")
        for name, gap in self.outputs.items():
            lines.append(f"{name:{width}}  {'(output)':13}  {'':12}  {'':10}  {gap.snr_db:>7.1f} dB  {gap.max_abs:.3g}")
        lines.append(f"weights take {self.nbytes:,} bytes, {self.wide_nbytes:,} before")
        return "\n".join(lines)


def measure_weights(
    model: Model, compressed: Model, inputs: Mapping[str, Array] | None = None, *, seed: int = 0
) -> WeightGap:
    """Run both models on the host with the same inputs, and measure the gaps between their values.

    Args:
        model: The model before `Model.compress_weights`.
        compressed: The model after it.
        inputs: Arrays by name. None: normal floats, integers of 0 and 1, of extent 1 where a dimension is free.
            Memories begin as zeros.
        seed: Of such inputs.

    Raises:
        InputError: The models take different inputs, or one is missing or does not fit.

    Example:
        >>> small = model.compress_weights("int8")
        >>> gx.measure_weights(model, small, {"image": x}).outputs["logits"].snr_db > 30
        True
    """
    if [str(port) for port in model.ports] != [str(port) for port in compressed.ports]:
        raise InputError(
            f"{compressed!r} takes other inputs than {model!r}; expected what compress_weights made of it."
        )
    arrays = _take_inputs(model, inputs, np.random.default_rng(seed))
    narrow = {node.outputs[0].name: node for node in compressed.graph.nodes if _is_narrow(node) and node.outputs[0]}
    wanted = {*narrow, *(port.name for port in compressed.outputs)}
    wide_values, values = (_compute(each.graph, arrays, wanted) for each in (model, compressed))
    wide_weights = {node.name: _weight_of(node, model.graph) for node in model.graph.nodes}
    rows = []
    for name, node in narrow.items():
        if name not in wide_values:
            continue
        operator, weight = _describe(node, compressed.graph)
        before = wide_weights.get(node.name)
        gap = None if before is None or before.shape != weight.shape else gap_of(read_content(before), weight)
        nbytes = sum(array.nbytes for array in _parts(node, compressed.graph) if array is not None)
        rows.append(WeightRow(node.name, operator, gap, gap_of(wide_values[name], values[name]), nbytes, weight.nbytes))
    outputs = {port.name: gap_of(wide_values[port.name], values[port.name]) for port in compressed.outputs}
    return WeightGap(tuple(rows), outputs, _count(compressed.graph), _count(model.graph))


def _take_inputs(model: Model, given: Mapping[str, Array] | None, rng: np.random.Generator) -> dict[str, Array]:
    names = {port.name for port in model.inputs}
    unknown = sorted(set(given or ()) - {port.name for port in model.ports})
    missing = sorted(names - set(given)) if given is not None else []
    if unknown or missing:
        wrong = [f"there is no {name!r}" for name in unknown] + [f"{name!r} is missing" for name in missing]
        raise InputError(f"{model.graph.name!r} takes {', '.join(sorted(names))}; {'; '.join(wrong)}.")
    arrays = {}
    for port in model.ports:
        if port.name in (given or {}):
            array = np.asarray((given or {})[port.name])
        else:
            made = _make(port, model, rng)
            array = made if port.name in names else np.zeros_like(made)
        if array.dtype != port.spec.dtype:
            raise InputError(f"Input {port.name!r} is {port.spec}, got {array.dtype}.", value=port.name)
        arrays[port.name] = array
    return arrays


def _make(port: ModelPort, model: Model, rng: np.random.Generator) -> Array:
    if port.spec.dims is None:
        raise InputError(f"Input {port.name!r} declares no rank; give it among inputs.", value=port.name)
    bounds = [model.dims.get(dim, 1) if isinstance(dim, str) else dim for dim in port.spec.dims]
    shape = tuple(1 if bound is None else bound[1] if isinstance(bound, tuple) else bound for bound in bounds)
    if port.spec.dtype.kind in "iub":
        return rng.integers(0, 2, shape).astype(port.spec.dtype)
    return np.asarray(rng.standard_normal(shape)).astype(port.spec.dtype)


def _compute(graph: Graph, inputs: Mapping[str, Array], wanted: set[str]) -> dict[str, Array]:
    """Compute the values of these names; others are released after their last use."""
    known: dict[Value, Array] = dict(graph.constants)
    known.update({value: inputs[value.name] for value in graph.inputs})
    left = {value: len(nodes) for value, nodes in graph.consumers().items()}
    found = {value.name: array for value, array in known.items() if value.name in wanted}
    for node in graph.nodes:
        try:
            made = compute_arrays(node.operator, [None if value is None else known[value] for value in node.inputs])
        except GpuexecError as error:
            raise locate(error, node, node.name) from None
        for value, array in zip(node.outputs, made, strict=False):
            if value is not None and array is not None:
                known[value] = array
                if value.name in wanted:
                    found[value.name] = array
        for value in node.inputs:
            if value is not None:
                left[value] -= 1
                if not left[value]:
                    del known[value]
    return found


def _is_narrow(node: Node) -> bool:
    return isinstance(node.operator, Narrowed)


def _parts(node: Node, graph: Graph) -> Iterator[Array | None]:
    """Yield weight, scale and zero point of a node with a narrow weight."""
    form = node.operator.form  # type: ignore[attr-defined]
    places = (form.weight, form.inputs, form.inputs + 1)
    for place in places:
        value = node.inputs[place] if place < len(node.inputs) else None
        yield None if value is None else graph.constants.get(value)


def _describe(node: Node, graph: Graph) -> tuple[str, Array]:
    """Return the computation of a node with a narrow weight, and the float weight that it represents."""
    operator: Any = node.operator
    weight, scale, zero = (None if array is None else read_content(array) for array in _parts(node, graph))
    assert weight is not None, "a narrow weight is a constant"
    return operator.form.consumer.name, widen(weight, scale, zero, operator.scale_axis, operator.wide)


def _weight_of(node: Node, graph: Graph) -> Array | None:
    """Return the constant at the weight's position of a node."""
    place = 0 if node.operator.name == "Gather" else 1
    value = node.inputs[place] if place < len(node.inputs) else None
    return None if value is None else graph.constants.get(value)


def _count(graph: Graph) -> int:
    arrays = {id(array): array for each in walk(graph) for array in each.constants.values()}
    return sum(array.nbytes for array in arrays.values())
