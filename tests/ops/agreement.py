"""Agreement of an operator's infer, compute and lower on arbitrary inputs: equal results, or errors.

1. ``infer`` accepts the inputs or says what it expected and got, and ``compute`` returns what was inferred. Only what
   depends on content may ``compute`` alone refuse, and it warns about nothing.
2. The CPU's plan of the operator gives the bits of ``compute``.
3. Its kernels are within its tolerance of ``compute``. Of inputs that ``compute`` refuses they make something, and
   touch nothing but what is theirs (check mode).

An operator that others make up is held to ``compute`` part by part.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from gpuexec.errors import InputError, NeedsHostValue
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import Array, Operator, decomposition_for
from gpuexec.ir.spec import STRING, TensorSpec, is_container
from gpuexec.passes.decompose import decompose
from tests.devices.opening import open_living
from tests.ops.harness import GENERATING, Case, GivenCase, compile_generated, run_on
from tests.ops.odd import Inputs
from tests.ops.tolerance import assert_close, to_bits

SAYS = re.compile(r"\bgot\b|expect|must|out of range|does not broadcast to")
# Operators whose outputs are sums that kernels add up in another order than NumPy, by products with 0 or without: where
# an infinity enters, what is infinite, NaN or what it would be without it is free. ONNX says nothing of either. So it
# is where one stands in what kernels multiply by the zeros of padding (`Operator.padded_factors`).
FREE = {
    "DFT": "a fast transform and a sum differ in the products with 0 that they leave out",
    "STFT": "a fast transform and a sum differ in the products with 0 that they leave out",
    "Det": "elimination divides by whatever pivot comes first",
}


def check_agreement(op: Operator, inputs: Inputs, devices: Sequence[str], held: set[Hashable] | None = None) -> None:
    """Check what an operator makes of inputs on the host, and on these devices.

    Args:
        op: The operator.
        inputs: Its inputs; None: left out.
        devices: Names, as of `open_living`.
        held: The calls of parts that were held before, by what plans know of them, which are not held again; it grows.

    Raises:
        AssertionError: Two of its forms differ, or it fails otherwise than in words.
    """
    known = find_known(op, inputs)
    if known is None:
        return
    specs = op.infer(*_specs(inputs))
    computed = compute(op, inputs)
    if computed is not None:
        check_specs(specs, computed)
    if any(is_held(x.dtype) for x in (*inputs, *specs) if x is not None):
        return
    if decomposition_for(op.name) is None:
        check_devices(op, inputs, known, specs, computed, devices)
    elif computed is not None:
        check_parts(op, inputs, computed, devices, set() if held is None else held)


def compile_texts(calls: Iterable[tuple[Operator, Inputs]]) -> None:
    """Compile the kernels of generated text that operators launch in check mode, one object for each file."""
    found: list[GivenCase] = []
    for op, inputs in calls:
        known = find_known(op, inputs)
        if known is not None:
            specs = op.infer(*_specs(inputs, known))
            found.append((Case("generated", op.name, inputs, outputs=(True,) * len(specs)), op, inputs, known))
    compile_generated(found, open_living("check"))


def has_text(op: Operator) -> bool:
    """Return whether kernels of an operator are of generated text."""
    return any(field.name in GENERATING for field in fields(op))  # type: ignore[arg-type]


def find_known(op: Operator, inputs: Inputs) -> set[int] | None:
    """Return the positions of the inputs whose content ``infer`` asks for; None where it refuses the inputs."""
    known: set[int] = set()
    if decomposition_for(op.name) is not None:  # of whose parts it may ask
        known = {i for i, x in enumerate(inputs) if x is not None}
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                op.infer(*_specs(inputs, known))
        except NeedsHostValue as error:
            if error.index in known:
                raise AssertionError(f"the content of input {error.index} is asked for though it is known") from error
            known.add(error.index)
        except InputError as error:
            _check_words(error)
            return None
        else:
            return known


def compute(op: Operator, inputs: Inputs) -> tuple[Array | None, ...] | None:
    """Return what ``compute`` makes; None where it refuses the content."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return op.compute(*inputs)
        except InputError as error:
            _check_words(error)
            return None


def check_specs(specs: Sequence[TensorSpec], computed: Sequence[Array | None]) -> None:
    """Check that what was computed is what was inferred."""
    for index, (spec, y) in enumerate(zip(specs, computed, strict=False)):
        if y is not None:
            assert isinstance(y, np.ndarray), f"output {index} is {type(y).__name__}, not an array"
            assert (y.shape, y.dtype) == (spec.shape, spec.dtype), f"output {index} is {TensorSpec.of(y)}, not {spec}"


def check_devices(
    op: Operator,
    inputs: Inputs,
    known: set[int],
    specs: Sequence[TensorSpec],
    computed: Sequence[Array | None] | None,
    devices: Sequence[str],
) -> None:
    """Check what plans make of an operator, on the CPU and by its kernels."""
    wanted = tuple(computed is None or (i < len(computed) and computed[i] is not None) for i in range(len(specs)))
    terms = max((x.size for x in inputs if x is not None), default=0) + 8
    case = Case("odd", op.name, inputs, outputs=wanted, terms=terms)
    for device in devices:
        if computed is None if device == "cpu" else not op.is_lowered(_specs(inputs)):
            continue
        made = _run(device, case, op, inputs, known)
        if computed is None:
            continue
        expected = [y for y in computed if y is not None]
        for index, got, y in zip(np.flatnonzero(wanted), made, expected, strict=True):
            label = f"output {index} on the {device}"
            if device == "cpu":
                np.testing.assert_array_equal(to_bits(got), to_bits(y), err_msg=label)
                continue
            if op.name in FREE or not all(_is_finite(x) for i, x in enumerate(inputs) if i in op.padded_factors):
                assert np.isfinite(y[np.isfinite(got)]).all(), f"{label} is finite where {op.name} is not"
                got, y = (np.where(np.isfinite(got), each, each.dtype.type(0)) for each in (got, y))
            with np.errstate(all="ignore"):
                assert_close(label, op, inputs, int(index), got, y, terms)


def check_parts(
    op: Operator, inputs: Inputs, computed: Sequence[Array | None], devices: Sequence[str], held: set[Hashable]
) -> None:
    """Check the parts of an operator, each on what the host makes of those before it, and each call of a part once."""
    values = [None if x is None else Value(f"x{i}") for i, x in enumerate(inputs)]
    outputs = [None if y is None else Value(f"y{i}") for i, y in enumerate(computed)]
    given = tuple(value for value in values if value is not None)
    made = tuple(value for value in outputs if value is not None)
    graph = decompose(Graph(given, made, (Node(op, tuple(values), tuple(outputs), "node"),), {}))
    content = {value: x for value, x in zip(values, inputs, strict=True) if value is not None}
    for node in graph.nodes:
        part, taken = node.operator, tuple(None if value is None else content[value] for value in node.inputs)
        known, results = find_known(part, taken), compute(part, taken)
        assert known is not None and results is not None, f"{part} refuses what {op.name} gives it"
        results = tuple(
            y if i < len(node.outputs) and node.outputs[i] is not None else None for i, y in enumerate(results)
        )
        specs = part.infer(*_specs(taken))
        check_specs(specs, results)
        call = (part, *devices, *(_describe(x, i in known) for i, x in enumerate(taken)))
        if call not in held:
            held.add(call)
            check_devices(part, taken, known, specs, results, devices)
        content.update((value, y) for value, y in zip(node.outputs, results, strict=False) if value is not None)
    for value, y in zip(outputs, computed, strict=True):
        if value is not None and y is not None:
            found = content[value]
            assert found is not None
            assert_close(f"{value.name} of the parts", op, inputs, 0, found, y, 64)


def is_held(dtype: np.dtype[Any]) -> bool:
    """Return whether only the host holds such elements: strings and containers."""
    return dtype == STRING or is_container(dtype)


def _run(device: str, case: Case, op: Operator, inputs: Inputs, known: set[int]) -> list[Array]:
    """Plan and run, with the content of further inputs known where ``lower`` asks for it."""
    while True:
        try:
            return run_on(device, case, op, inputs, known)
        except NeedsHostValue as error:
            if error.index in known:
                raise
            known = known | {error.index}


def _is_finite(x: Array | None) -> bool:
    return x is None or bool(np.isfinite(x.astype(np.float64)).all())


def _specs(inputs: Inputs, known: set[int] | None = None) -> list[TensorSpec | None]:
    return [
        None if x is None else TensorSpec.of(x) if known is None or i in known else TensorSpec(x.shape, x.dtype)
        for i, x in enumerate(inputs)
    ]


def _describe(x: Array | None, is_known: bool) -> Hashable:
    return None if x is None else (x.shape, x.dtype.name, x.tobytes() if is_known else None)


def _check_words(error: InputError) -> None:
    assert SAYS.search(str(error)), f"this says not what was expected and got: {error}"
