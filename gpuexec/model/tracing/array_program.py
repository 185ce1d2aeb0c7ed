"""Tracing of a Python function into a model."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, InputError, locate
from gpuexec.importer.export import EXPORT_IR_VERSION, EXPORT_OPSET
from gpuexec.importer.load import ImportedModel
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.operator import build
from gpuexec.ir.spec import DeclaredSpec, Dim, TensorSpec, dtype_row
from gpuexec.model.model import Model
from gpuexec.model.tracing.lines import find_definition, find_raised
from gpuexec.model.tracing.promotion import as_symbolic, check_numbers
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import Tracer
from gpuexec.passes import AT_LOAD, run_passes
from gpuexec.passes.remove_dead import remove_dead
from gpuexec.planner.classes import check_declared
from gpuexec.system.version import VERSION

Spec = Any  # TensorSpec, DeclaredSpec, (dtype, shape), or an array with the spec


def graph(
    function: Callable[..., Any],
    specs: Sequence[Spec] | Mapping[str, Spec] | Model,
    *,
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    name: str | None = None,
    disabled_passes: Iterable[str] = (),
) -> Model:
    """Trace a function over symbolic arrays and return it as a model.

    The function is called once. Its calls of NumPy's operators, NumPy's functions or those of `gpuexec.fn` become
    operators; plain Python is executed now. The model runs, is planned and saved as one that was loaded.

    Args:
        function: Takes an array for each input; gives an array, a tuple or list of them, or a dict by output name.
        specs: dtype and shape of each input: ``("float32", ("n", 3))`` with names for free dimensions (None: a
            nameless one), a TensorSpec, or an array to be like. In a list they go by the function's parameters; a dict
            names the inputs; a model gives its own.
        dims: Free dimensions by name: an extent fixes one, a range bounds it, as for `load`.
        name: Of the model; None: the function's.
        disabled_passes: Names of passes to leave out.

    Raises:
        InputError: Something does not fit; the message begins with the function's line.

    Example:
        >>> scaled = gx.graph(lambda scan: scan.astype(np.float32) / 15, {"scan": ("uint8", ("n", 1, 8, 8))})
        >>> with gx.Worker(scaled.append(model), backend="cpu") as worker:
        ...     worker.run(np.zeros((2, 1, 8, 8), np.uint8))["logits"].shape
        (2, 10)
    """
    title = name or str(getattr(function, "__name__", "program"))
    fixed = {key: extent for key, extent in (dims or {}).items() if isinstance(extent, int)}
    tracer = Tracer()
    given = _read_specs(function, specs)
    for key, spec in given.items():
        check_numbers(f"input {key!r}", spec.dtype)
    inputs = [tracer.add_input(key, spec.dtype, _fix(spec.dims, fixed)) for key, spec in given.items()]
    with tracer.active():
        try:
            results = _name_results(_call(function, given, inputs), tracer)
            written = _finish(tracer, inputs, results, title)
        except GpuexecError as error:
            raise locate(error, find_raised(error.__traceback__) or find_definition(function)) from error.__cause__
    counts = Counter(node.operator.name for node in written.nodes)
    info = ImportedModel(
        graph=written,
        source=f"<function {title}>",
        ir_version=EXPORT_IR_VERSION,
        opsets={"": EXPORT_OPSET},
        producer=f"gpuexec {VERSION}",
        description=inspect.getdoc(function) or "",
        metadata={},
        operators=dict(counts.most_common()),
    )
    named = {dim for value in written.inputs for dim in _dims_of(value) if isinstance(dim, str)}
    # Fixed dimensions are extents now; names that no input has are refused.
    gone = {dim for spec in given.values() for dim in spec.dims or ()} - named
    wanted = {key: extent for key, extent in (dims or {}).items() if key not in gone}
    declared = check_declared(written, wanted)
    disabled = frozenset(disabled_passes)
    return Model(info, run_passes(written, AT_LOAD, disabled), declared, disabled)


def _read_specs(function: Callable[..., Any], specs: Any) -> dict[str, DeclaredSpec]:
    if isinstance(specs, Model):
        return {port.name: port.spec for port in specs.inputs}
    if isinstance(specs, Mapping):
        return {str(name): _read_spec(name, spec) for name, spec in specs.items()}
    if not isinstance(specs, (list, tuple)):
        raise InputError(f"specs takes a list or dict of specs, or a model, got {specs!r}.")
    names = [f"input_{index}" for index in range(len(specs))]
    for index, parameter in enumerate(_parameters(function)[: len(specs)]):
        names[index] = parameter
    return {name: _read_spec(name, spec) for name, spec in zip(names, specs, strict=True)}


def _parameters(function: Callable[..., Any], *, by_name: bool = False) -> list[str]:
    """Return the names of the parameters that take one argument each, by position or by name."""
    kind = inspect.Parameter
    other = kind.KEYWORD_ONLY if by_name else kind.POSITIONAL_ONLY
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [each.name for each in parameters if each.kind in (kind.POSITIONAL_OR_KEYWORD, other)]


def _read_spec(name: str, spec: Spec) -> DeclaredSpec:
    if isinstance(spec, TensorSpec):
        return DeclaredSpec(spec.dtype, spec.shape)
    if isinstance(spec, DeclaredSpec):
        return spec
    if isinstance(spec, np.ndarray):
        return DeclaredSpec(dtype_row(spec.dtype).numpy, spec.shape)
    if isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[1], (tuple, list)):
        dims = tuple(spec[1])
        if all(dim is None or isinstance(dim, str) or (isinstance(dim, int) and dim >= 0) for dim in dims):
            return DeclaredSpec(dtype_row(spec[0]).numpy, dims)
    raise InputError(
        f"Input {name!r}: expected a spec such as ('float32', ('n', 3)), a TensorSpec or an array, got {spec!r}.",
        value=str(name),
    )


def _fix(dims: tuple[Dim, ...] | None, fixed: Mapping[str, int]) -> tuple[Dim, ...] | None:
    return None if dims is None else tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in dims)


def _dims_of(value: Value) -> tuple[Dim, ...]:
    return (value.declared.dims or ()) if value.declared is not None else ()


def _call(function: Callable[..., Any], given: Mapping[str, DeclaredSpec], inputs: Sequence[SymbolicArray]) -> Any:
    own = [array.copy() for array in inputs]
    if list(given) != _parameters(function)[: len(given)] and set(given) <= set(_parameters(function, by_name=True)):
        return function(**dict(zip(given, own, strict=True)))
    return function(*own)


def _name_results(results: Any, tracer: Tracer) -> dict[str, SymbolicArray]:
    if isinstance(results, Mapping):
        named = {str(key): value for key, value in results.items()}
    elif isinstance(results, (tuple, list)):
        named = {f"output_{index}": value for index, value in enumerate(results)}
    else:
        named = {"output": results}
    if not named or any(value is None for value in named.values()):
        raise InputError(f"the function must return an array, a tuple of them or a dict, got {results!r}.")
    return {key: as_symbolic(value, None, tracer) for key, value in named.items()}


def _finish(tracer: Tracer, inputs: Sequence[SymbolicArray], results: Mapping[str, SymbolicArray], title: str) -> Graph:
    """Return the graph with its outputs named and unused nodes removed."""
    given = tuple(array._value for array in inputs)
    clash = {value.name for value in given}.intersection(results)
    if clash:
        raise InputError(f"{', '.join(sorted(clash))} is the name of an input and of an output; name them apart.")
    stands_for: dict[Value, Value] = {}
    outputs = []
    for name, array in results.items():
        value, declared = tracer.take(array), DeclaredSpec(array.dtype, array.dims)
        if value in given or value in tracer.scope.constants or value in stands_for:
            given_back, value = value, Value(tracer.number_name("identity"))
            tracer.add_node(Node(build("Identity", {}), (given_back,), (value,), tracer.name_node("Identity")))
        stands_for[value] = Value(name, declared)
        outputs.append(stands_for[value])
    nodes = tracer.scope.nodes
    made = (value for node in nodes for value in node.outputs)
    for each in (*tracer.scope.constants, *made):
        if each is not None and each.name in results and each not in stands_for:
            stands_for[each] = replace(each, name=tracer.unique_name(f"{each.name}.inner"))

    def name_all(values: Sequence[Value | None]) -> tuple[Value | None, ...]:
        return tuple(None if value is None else stands_for.get(value, value) for value in values)

    renamed = tuple(Node(n.operator, name_all(n.inputs), name_all(n.outputs), n.name) for n in nodes)
    constants = {stands_for.get(value, value): array for value, array in tracer.scope.constants.items()}
    return remove_dead(Graph(given, tuple(outputs), renamed, constants, title))
