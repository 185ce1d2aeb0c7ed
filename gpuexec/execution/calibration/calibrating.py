"""Calibration of a model for int8: ranges of activations over batches become QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from gpuexec.devices.backend import BackendLike, BackendType
from gpuexec.errors import InputError, NonFiniteError
from gpuexec.execution.calibration.magnitudes import Magnitudes
from gpuexec.execution.results.given import Inputs
from gpuexec.execution.runs.inputs import name_inputs
from gpuexec.execution.worker import Worker
from gpuexec.importer.output_selection import shorten
from gpuexec.importer.read import Source
from gpuexec.ir.graphs import Graph, Node, Value, take_free
from gpuexec.model.editing.editable_model import EditableModel
from gpuexec.model.loading import load
from gpuexec.model.model import Model, remake, settle_model
from gpuexec.ops.elementwise.elementwise_cast import Identity
from gpuexec.ops.quant.quantize import WIDE
from gpuexec.passes.quantize_products import (
    ActivationScale,
    QuantizableProduct,
    find_products,
    make_scale,
    quantize_products,
)

METHODS = ("max", "percentile", "entropy")
PRODUCTS = ("weights", "all")
ACTIVATIONS = {"int8": np.dtype(np.int8), "uint8": np.dtype(np.uint8)}
# Numbers of an integer type that tell magnitudes apart: of one sign, or of the only one there is.
_LEVELS, _UNSIGNED_LEVELS = 128, 256


@dataclass(frozen=True, slots=True)
class _Options:
    """How ranges become scales, as `calibrate` was told."""

    method: str
    percentile: float
    activations: str

    def check(self) -> None:
        for name, given, known in (
            ("method", self.method, METHODS),
            ("activations", self.activations, tuple(ACTIVATIONS)),
        ):
            if given not in known:
                raise InputError(f"{name} takes {', '.join(map(repr, known))}, got {given!r}.")
        if not 0 < self.percentile <= 100:
            raise InputError(f"percentile is above 0 and at most 100, as in 99.99, got {self.percentile!r}.")

    def choose(self, seen: Magnitudes) -> ActivationScale | None:
        """Return the scale of an activation; None where it never was anything but 0, or is of another type."""
        if seen.dtype not in WIDE or not seen.largest:
            return None
        threshold = seen.largest
        if self.method == "percentile":
            threshold = seen.take_percentile(self.percentile)
        elif self.method == "entropy":
            is_unsigned = self.activations == "uint8" and (seen.least >= 0 or seen.most <= 0)
            threshold = seen.minimise_divergence(_UNSIGNED_LEVELS if is_unsigned else _LEVELS)
        least, most = max(seen.least, -threshold), min(seen.most, threshold)
        return make_scale(least, most, seen.dtype, ACTIVATIONS[self.activations])


def calibrate(
    model: Model | Source,
    batches: Iterable[Inputs],
    *,
    method: str = "max",
    percentile: float = 99.99,
    per_channel: bool = True,
    products: str = "weights",
    activations: str = "int8",
    keep: Collection[str] = (),
    backend: BackendLike = BackendType.AUTO,
) -> Model:
    """Run a model over batches and return it quantised to 8 bits, waiting for the device.

    What products and convolutions multiply goes through a QuantizeLinear and a DequantizeLinear: weights as int8
    constants, activations with a scale that follows from what the batches made of them. Biases and all else stay
    float. BatchNormalization is fused into the Conv before it first. The model that comes out says this in ONNX, so
    `Model.save` writes a file that other engines run too. Bodies of loops and branches stay as they are; so does a
    product whose activations were nothing but 0, or that multiplies what is quantised already.

    A batch's activations are on the host together while it is counted, so batches are better small and many. What
    the result costs, layer by layer, `measure_gap(result, x, against=model)` tells.

    Args:
        model: The model, or what `load` takes. One with memories goes on from batch to batch.
        batches: Inputs of a run each, all of them, as for `Worker.run`; gone through once.
        method: What becomes of the magnitudes of an activation. ``"max"``: the largest is the end of the scale.
            ``"percentile"``: so many percent of those that are not 0 lie within it. ``"entropy"``: the end that
            changes their distribution least, by Kullback-Leibler divergence.
        percentile: Of ``"percentile"``.
        per_channel: Weights have a scale for each output channel; else one each.
        products: ``"weights"``: those with a constant factor. ``"all"``: those of two activations too, as attention
            has; the precision that costs is rarely worth it.
        activations: ``"int8"``, symmetric about zero: tensor cores multiply it with weights as it is, and a zero point,
            whose share of each sum would have to be taken off again, there is none. ``"uint8"``, from the least to the
            largest: twice the levels where there are no negative ones (behind a Relu the zero point is 0 too), for
            engines of CPUs.
        keep: Names of nodes that stay float, or patterns (``"head.*"``).
        backend: Where the model runs meanwhile.

    Raises:
        InputError: There is no batch, one lacks an input or does not fit, an option is none, a name in ``keep`` fits no
            product, or the model has nothing to quantise.
        NonFiniteError: An activation holds a NaN or an infinity; names the node that made the first.

    Example:
        >>> quantized = gx.calibrate(model, [x[:4], x[4:]], method="entropy", keep={"head"}, backend="cpu")
        >>> [node.operator.name for node in quantized.info.graph.nodes].count("QuantizeLinear")
        2
    """
    options = _Options(method, percentile, activations)
    options.check()
    if products not in PRODUCTS:
        raise InputError(f"products takes {' or '.join(map(repr, PRODUCTS))}, got {products!r}.")
    model = model if isinstance(model, Model) else load(model)
    editable = settle_model(model)
    chosen = _choose_products(editable.graph, products, keep)
    seen = _collect(model, editable, chosen, batches, backend, has_histogram=method != "max")
    scales = {value: scale for value, each in seen.items() if (scale := options.choose(each)) is not None}
    graph, quantized = quantize_products(editable.graph, chosen, scales, per_channel=per_channel)
    if not quantized:
        raise InputError(
            f"{model.graph.name!r} has nothing to quantise: of its {len(chosen)} products and convolutions none has"
            " weights that are finite and activations that are not always 0, both float32, half or bfloat16."
        )
    return remake(model, editable.with_graph(graph))


def _choose_products(graph: Graph, which: str, keep: Collection[str]) -> list[QuantizableProduct]:
    """Return the products to quantise.

    Raises:
        InputError: There are none, or a name to keep fits none.
    """
    if isinstance(keep, str) or not all(isinstance(name, str) for name in keep):
        raise InputError(f"keep takes names of nodes, as in {{'head', 'block.0.*'}}, got {keep!r:.100}.")
    found = [product for product in find_products(graph) if product.weights or which == "all"]
    if not found:
        more = "; those of two activations are by products='all'" if find_products(graph) else ""
        raise InputError(
            f"{graph.name!r} has nothing to quantise: it has no product or convolution of an activation and a constant"
            f" weight outside of loops and branches that is not quantised already{more}."
        )
    names = [product.node.name for product in found]
    unknown = [each for each in keep if not any(fnmatchcase(name, each) for name in names)]
    if unknown:
        raise InputError(
            f"keep: no product or convolution is called {unknown[0]!r}; there are {shorten(names)}.", node=unknown[0]
        )
    chosen = [product for product in found if not any(fnmatchcase(product.node.name, each) for each in keep)]
    if not chosen:
        raise InputError(f"{graph.name!r} has nothing to quantise: keep leaves out all of {shorten(names)}.")
    return chosen


def _collect(
    model: Model,
    editable: EditableModel,
    products: Sequence[QuantizableProduct],
    batches: Iterable[Inputs],
    backend: BackendLike,
    *,
    has_histogram: bool,
) -> dict[Value, Magnitudes]:
    """Return the magnitudes of the products' activations over all batches."""
    if isinstance(batches, (Mapping, str, np.ndarray)) or not isinstance(batches, Iterable):
        raise InputError(
            f"batches are inputs of several runs, as in [{{'x': array}}, ...], got a {type(batches).__name__}."
        )
    readers = {value: product.node for product in reversed(products) for value in product.list_activations()}
    observed, outputs = _observe(model, editable, list(readers))
    seen = {value: Magnitudes(has_histogram=has_histogram) for value in readers}
    number = 0
    with Worker(observed, backend=backend) as worker:
        for number, batch in enumerate(batches, 1):
            named = _name_batch(model, number, batch)
            try:
                arrays = worker.run(named)
            except InputError as error:
                raise InputError(f"Batch {number}: {error.message}", node=error.node, value=error.value) from error
            for value, name in outputs.items():
                array = np.asarray(arrays[name])
                if array.dtype in WIDE and not seen[value].add(array):
                    raise _blame(observed, outputs, named, number, value, readers[value], backend)
    if not number:
        raise InputError(f"Calibration of {model.graph.name!r} needs batches to run, got none.")
    return seen


def _observe(model: Model, editable: EditableModel, values: Sequence[Value]) -> tuple[Model, dict[Value, str]]:
    """Return a model whose outputs are copies of these values, and their names there; memories stay."""
    graph = editable.graph
    names, nodes = {value.name for value in graph.values()}, list(graph.nodes)
    outputs: dict[Value, Value] = {}
    for value in values:
        outputs[value] = made = Value(take_free(f"{value.name}.observed", names))
        nodes.append(Node(Identity(), (value,), (made,), made.name))
    carried = [memory.output for memory in editable.memories]
    kept = [value for value in graph.outputs if value.name in carried]
    graph = replace(graph, nodes=tuple(nodes), outputs=(*kept, *outputs.values()))
    return remake(model, editable.with_graph(graph)), {value: made.name for value, made in outputs.items()}


def _name_batch(model: Model, number: int, batch: Inputs) -> dict[str, Any]:
    """Return a batch's inputs by name.

    Raises:
        InputError: One is missing, or there are too many.
    """
    try:
        named = name_inputs(model, batch)
    except InputError as error:
        raise InputError(f"Batch {number}: {error.message}") from error
    missing = [port for port in model.inputs if port.name not in named]
    if missing:
        raise InputError(
            f"Batch {number} lacks input {missing[0]}; each batch holds all inputs of its run, here"
            f" {', '.join(port.name for port in model.inputs)}.",
            value=missing[0].name,
        )
    return named


def _blame(
    observed: Model,
    outputs: Mapping[Value, str],
    named: Mapping[str, Any],
    number: int,
    value: Value,
    reader: Node,
    backend: BackendLike,
) -> NonFiniteError:
    """Return the error for an activation that is not finite, after a run that is watched for the node at fault."""
    with Worker(observed, backend=backend, watch="report") as worker:
        found = worker.schedule(named).inspection.find_nonfinite()
    if found is None:
        message = f"{reader} multiplies {value.name!r}, which holds a NaN or an infinity that no node made of numbers."
        return NonFiniteError(f"Batch {number}: {message}", node=reader.name, value=value.name)
    # An output goes by its own name even where passes merged the value that it is a copy of with it.
    names = {name: each.name for each, name in outputs.items()}
    output, *inputs = [replace(each, value=names.get(each.value, each.value)) for each in (found.output, *found.inputs)]
    found = replace(found, output=output, inputs=tuple(inputs))
    return NonFiniteError(
        f"Batch {number}: {found}",
        operator=found.operator,
        kind=found.kind,
        count=found.count,
        index=found.index,
        node=found.node or None,
        value=found.output.value,
    )
