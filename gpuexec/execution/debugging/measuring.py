"""Numeric gap by layer: accumulated along the chain, and of each layer by itself."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpuexec.devices.backend import Backend, BackendLike, BackendType, find_backend, open_backend
from gpuexec.errors import InputError
from gpuexec.execution.debugging.observing import name_inputs, observe
from gpuexec.execution.debugging.references import (
    EngineReference,
    FloatReference,
    ModelReference,
    NumpyReference,
    Reference,
)
from gpuexec.execution.inspection.gaps import ATOL, RTOL, Gap, gap_of
from gpuexec.execution.results.given import Inputs
from gpuexec.ir.graphs import Node, Value
from gpuexec.ir.precision import LARGEST_FP16, OVERFLOWING
from gpuexec.ir.spec import dtype_row, eps_of
from gpuexec.model.model import Model, choose_precision
from gpuexec.system.records import Record

Array = np.ndarray[Any, Any]
_ROUNDINGS = 16  # rounding of half and bfloat16, which may accumulate in a correct model
_COLUMNS = (
    *("layer", "operator", "value", "max abs", "max rel", "mean rel", "L1", "MSE", "SNR dB", "ulp", "share"),
    "share alone",
)


@dataclass(frozen=True, slots=True)
class GapRow(Record):
    """The gap of one value from its reference.

    Attributes:
        node, operator, value: Its node and operator, and its name.
        accumulated: Where both sides went their own way from the model's inputs on; None where the other side has no
            value of that name and shape.
        alone: Where the layer was given the same inputs on both sides; None where the reference can't compute it.

    Example:
        >>> row = gx.measure_gap(model, x, backend="cpu", precision="bf16").worst()[0]
        >>> row.node in {node.name for node in model.graph.nodes}
        True
    """

    node: str
    operator: str
    value: str
    accumulated: Gap | None
    alone: Gap | None


@dataclass(frozen=True, slots=True)
class GapReport(Record):
    """The gaps of all layers, in the order they ran, and of the outputs; those of a precision the worst first.

    Attributes:
        backend: The backend that was measured.
        against: The reference.
        rows: A layer's values; those of a loop's body once for each trip.
        outputs: The model's outputs, by name.
        precision: The precision that was measured, where one was.
        overflows: Names of the nodes that multiply a number, in float, which fp16 does not have: what ``keep`` takes so
            that no result is lost. What a loop carries into its body is not looked at.

    Example:
        >>> report = gx.measure_gap(model, x, backend="cpu", against="onnxruntime")
        >>> report.is_close, list(report.outputs)
        (True, ['logits', 'probabilities'])
    """

    backend: str
    against: str
    rows: tuple[GapRow, ...]
    outputs: Mapping[str, Gap]
    precision: str = ""
    overflows: frozenset[str] = frozenset()
    _FOUND: ClassVar = ("is_close",)

    def worst(self, count: int = 1) -> tuple[GapRow, ...]:
        """Return the layers with the largest gaps of their own, relative to the tolerance, the worst first.

        Of a precision it is those that lose most by themselves: their names are what ``keep`` takes.
        """
        if self.precision:
            return self.rows[:count]
        known = [row for row in self.rows if row.alone is not None]
        return tuple(sorted(known, key=lambda row: -row.alone.share if row.alone else 0.0)[:count])

    @property
    def is_close(self) -> bool:
        """True if all outputs are within the tolerance."""
        return all(gap.is_close for gap in self.outputs.values())

    def table(self) -> list[tuple[str, ...]]:
        """Return the rows as text, below a head."""
        return [_COLUMNS, *(_write(row) for row in self.rows)]

    def __str__(self) -> str:
        rows = self.table()
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines += [f"output {name}: {gap}" for name, gap in self.outputs.items()]
        measured = f" in {self.precision}" if self.precision else ""
        if self.overflows:
            lines.append(f"beyond {OVERFLOWING}'s largest number, {LARGEST_FP16}: {', '.join(sorted(self.overflows))}")
        return "\n".join([f"{self.backend}{measured} against {self.against}", *lines])


def measure_gap(
    model: Model,
    inputs: Inputs,
    backend: BackendLike = BackendType.AUTO,
    against: BackendType | str | Model = BackendType.CPU,
    *,
    precision: str | None = None,
    keep: Collection[str] = (),
    rtol: float | None = None,
    atol: float | None = None,
) -> GapReport:
    """Measure the gaps of a model's layers from a reference, or what a precision loses.

    The other side's values are all kept on the host meanwhile.

    Args:
        model: The model to measure, without memories.
        inputs: As for `gpuexec.Worker.schedule`, of the host.
        backend: Where it runs.
        against: ``BackendType.CPU``: NumPy. ``"onnxruntime"`` or ``"reference"`` (onnx's evaluator): that engine, given
            the model as it was read, before passes. A Model: values of the same name, on the same backend; what it
            makes of a layer's inputs is computed by NumPy.
        precision: As for `Worker`: measures what it loses, against the same model in float on the same backend. Rows
            are the layers, in the order of how much of their own results is noise, the worst first. Layers to keep in
            float are mostly those of ``worst(3)``, say: ``keep={row.node for row in report.worst(3)}``; and of fp16 all
            of ``overflows``.
        keep: Names of nodes that stay in float in it, or patterns of them.
        rtol: The relative tolerance that gaps are a share of; None: RTOL, or, behind a layer that gave half or
            bfloat16, as many of their roundings as may add up.
        atol: The same, absolute; None: ATOL, or likewise, of the largest element.

    Raises:
        InputError: ``against`` is none of these or not installed, or given beside a precision; there is no such
            precision or node to keep; or the model has memories.
        ModelError: The engine does not run the model.

    Example:
        >>> report = gx.measure_gap(model, x, backend="cpu", precision="bf16")
        >>> keep = {row.node for row in report.worst(1)}
        >>> with gx.Worker(model, backend="cpu", precision="bf16", keep=keep) as worker:
        ...     worker.report().precision.startswith("bf16, but for ")
        True
    """
    chosen, _ = find_backend(backend, None)
    feeds = name_inputs(model, inputs)
    reference: Reference | FloatReference
    if precision is None:
        if keep:
            raise InputError("keep goes with a precision: measure_gap(..., precision='fp16', keep=...).")
        reference = _choose(model, chosen, against)
    else:
        if against is not BackendType.CPU:
            raise InputError(f"A precision is measured against the same model in float; leave out against={against!r}.")
        measured = choose_precision(model, precision, keep)
        model, reference = measured, FloatReference(model, chosen)
    expected = reference.run(feeds)
    rows: list[GapRow] = []
    times: Counter[str] = Counter()
    coarsest = 0.0

    def measure(wanted: Array | None, got: Array) -> Gap | None:
        if wanted is None or wanted.shape != got.shape:
            return None
        relative, absolute = _allow(wanted, coarsest)
        return gap_of(wanted, got, rtol=relative if rtol is None else rtol, atol=absolute if atol is None else atol)

    def look(node: Node, arrays: Mapping[Value, Array]) -> None:
        nonlocal coarsest
        if isinstance(reference, FloatReference) and not reference.is_layer(node):
            return
        alone = reference.compute(node, arrays)
        made = [arrays[value].dtype for value in node.outputs if value is not None]
        coarsest = max([coarsest, *(eps_of(dtype) for dtype in made if dtype_row(dtype).kind == "float")])
        for position, value in enumerate(node.outputs):
            if value is None:
                continue
            history, time = expected.get(value.name, ()), times[value.name]
            times[value.name] += 1
            wanted = history[time] if time < len(history) else None
            single = None if alone is None else measure(alone[position], arrays[value])
            rows.append(GapRow(node.name, node.operator.name, value.name, measure(wanted, arrays[value]), single))

    outputs = observe(model, feeds, chosen, look)
    gaps = {name: measure(expected[name][-1], array) for name, array in outputs.items() if name in expected}
    kept = {name: gap for name, gap in gaps.items() if gap is not None}
    if not isinstance(reference, FloatReference):
        return GapReport(chosen.device.name, reference.name, tuple(rows), kept)
    rows.sort(key=lambda row: math.inf if row.alone is None else row.alone.snr_db)
    overflows = reference.find_overflows(model.precision, feeds, expected)
    return GapReport(chosen.device.name, reference.name, tuple(rows), kept, str(model.precision), overflows)


def _allow(expected: Array, eps: float) -> tuple[float, float]:
    """Return the tolerance for an array computed with roundings of ``eps``."""
    share = _ROUNDINGS * eps
    if eps <= eps_of(np.dtype(np.float32)):
        return RTOL, ATOL
    with np.errstate(all="ignore"):
        wide = np.abs(expected.astype(np.float64))
    return share, share * float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def _choose(model: Model, backend: Backend, against: BackendType | str | Model) -> Reference:
    if isinstance(against, Model):
        return ModelReference(against, backend)
    if against is BackendType.CPU or (isinstance(against, str) and against.lower() == BackendType.CPU.value):
        return NumpyReference(model, open_backend(BackendType.CPU))
    if isinstance(against, str):
        return EngineReference(model.info.graph, against)
    raise InputError(f"against takes BackendType.CPU, 'onnxruntime', 'reference' or a Model, got {against!r}.")


def _write(row: GapRow) -> tuple[str, ...]:
    alone = "" if row.alone is None else f"{row.alone.share:.3g}"
    gap = row.accumulated
    if gap is None:
        return (row.node, row.operator, row.value, *[""] * 8, alone)
    numbers: Sequence[float] = (gap.max_abs, gap.max_rel, gap.mean_rel, gap.l1, gap.mse)
    cells = [*(f"{number:.3g}" for number in numbers), f"{gap.snr_db:.1f}", f"{gap.max_ulp:.3g}", f"{gap.share:.3g}"]
    return (row.node, row.operator, row.value, *cells, alone)
