"""Contents of a program as JSON and bytes, and back.

    {"format": [major, minor], "writer": ..., "plans": form of plans, "arrays": [[dtype, shape, offset]],
     "methods": {name: ...}, "code": [...]}

Arrays lie one after the other in ``weights``, equal ones once, over all methods; kernels in ``code``. What is read is
believed in nothing: every number is held against what is there before anything is made of it.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.kernels.stored_code import StoredCode, StoredKernel
from gpuexec.errors import GpuexecError, InputError, ModelError, PlanError, locate
from gpuexec.importer.load import ImportedModel
from gpuexec.ir.command import Kernel
from gpuexec.ir.containers import describe
from gpuexec.ir.graph_json import decode_graph, encode_graph, is_dim
from gpuexec.ir.graphs import Array, Graph, check
from gpuexec.ir.plan import Plan
from gpuexec.ir.plan_json import FORM, FORMS_READ, decode_plan, encode_plan
from gpuexec.ir.precision import DEFAULT_PRECISION, Precision
from gpuexec.ir.spec import STRING, UNKNOWN, check_size, dtype_row, is_container, is_host_object
from gpuexec.ir.validate import is_of_type
from gpuexec.model.model import Model
from gpuexec.model.state_spec import Memory, make_memory
from gpuexec.ops.control.control import check_arity
from gpuexec.passes import AT_LOAD, AT_PLAN
from gpuexec.planner.classes import check_declared
from gpuexec.planner.verify import verify
from gpuexec.program.contents import FORMAT, Allowance, Bound, Contents, StoredCase, StoredMethod, Verification
from gpuexec.system.mapped import hash_content, read_content, read_small_content, read_view, view_bytes

ALIGNMENT = 256
_HEX = re.compile(r"[0-9a-f]{64}")
_SYMBOL = re.compile(r"[A-Za-z_$][\w$]*")
_KERNEL_NUMBERS = ("registers", "shared_bytes", "max_threads")
_MEMORY = {"input": str, "output": str, "axis": int | None, "capacity": int | None, "is_implicit": bool}
_INFO = {
    "source": str,
    "ir_version": int,
    "producer": str,
    "description": str,
    "opsets": dict,
    "metadata": dict,
    "operators": dict,
}


def encode_contents(contents: Contents) -> tuple[dict[str, Any], list[memoryview], list[memoryview]]:
    """Return a program as JSON data, and the chunks of its weights and of its code.

    Raises:
        InputError: Something can't be stored; names the method, and the node or value.
    """
    store = _ArrayStore()
    methods = {}
    for name, method in contents.methods.items():
        try:
            methods[name] = _encode_method(method, store.add)
        except GpuexecError as error:
            raise locate(error, f"Method {name!r}", error.node) from None
    code, offset = [], 0
    chunks: list[memoryview] = []
    for kernel in contents.code.kernels:
        code.append(_encode_kernel(kernel, offset))
        chunks += pad(kernel.image)
        offset += kernel.image.nbytes + -kernel.image.nbytes % ALIGNMENT
    program = {
        "format": list(FORMAT),
        "writer": contents.writer,
        "plans": FORM,
        "arrays": store.rows,
        "methods": methods,
        "code": code,
    }
    return program, store.chunks, chunks


def decode_contents(
    data: Any,
    weights: memoryview,
    code: memoryview,
    version: tuple[int, int],
    verification: Verification,
) -> Contents:
    """Return the program that `encode_contents` described; its arrays are windows on ``weights``.

    Raises:
        ModelError: The data is of another form, or contradicts itself.
        UnsupportedError: Operators that are not registered here.
    """
    is_full = verification is Verification.FULL
    if _take(data, "format", list, "The program") != list(version):
        raise ModelError(f"The program says it is of format {str(data['format'])[:40]}, its header {list(version)}.")
    writer = _take(data, "writer", str, "The program")
    arrays = [decode_array(row, weights, is_full) for row in _take(data, "arrays", list, "The program")]
    stored = StoredCode(tuple([_decode_kernel(row, code) for row in _take(data, "code", list, "The program")]))
    has_plans = data.get("plans") in FORMS_READ
    slabs: dict[Any, Any] = {}
    lock = threading.Lock()
    methods = {}
    for name, row in _take(data, "methods", dict, "The program").items():
        where = f"Method {name!r}"
        try:
            method = _decode_method(row, arrays, is_full, has_plans)
        except ModelError as error:
            raise locate(error, where, error.node) from None
        except GpuexecError as error:
            raise ModelError(f"{where}: {error.message}", node=error.node, value=error.value) from error
        # Equal constants are one array, so what lies on a device of them may be one too.
        method.model._slabs, method.model._lock, method.model._code = slabs, lock, stored
        methods[name] = method
    notes = () if has_plans else ("The plans are of another release's form; they are made anew.",)
    return Contents(methods, stored, version, writer, notes)


def pad(chunk: memoryview, filler: bytes = b"\0") -> list[memoryview]:
    """Return the chunk, and what fills it up to a multiple of the alignment."""
    missing = -chunk.nbytes % ALIGNMENT
    return [chunk, memoryview(filler * missing)] if missing else [chunk]


def decode_array(row: Any, weights: memoryview, is_full: bool) -> Array:
    """Return the array of a row, as a window on the weights, or strings; ``is_full``: what a bool may be is checked.

    Raises:
        ModelError: The row is of another form, or outside the weights.
    """
    has_size = is_of_type(row, list) and len(row) == 4 and row[0] == "string"  # strings say how long they are
    if not is_of_type(row, list) or len(row) != 3 + has_size:
        raise ModelError(f"An array is {str(row)[:60]!r}, expected [dtype, shape, offset].")
    name, shape, offset, *size = row
    if not (
        isinstance(name, str) and isinstance(shape, list) and all(is_of_type(n, int) for n in (*shape, offset, *size))
    ):
        raise ModelError(f"An array is {str(row)[:60]!r}, expected [dtype, shape, offset].")
    try:
        dtype = dtype_row(name).numpy
        check_size(shape, dtype)
    except InputError as error:
        raise ModelError(f"An array is of no type or size: {error}") from None
    if is_host_object(dtype) != has_size:
        raise ModelError(f"An array is {str(row)[:60]!r}, which is no tensor that a file holds.")
    nbytes = size[0] if size else math.prod(shape) * dtype.itemsize
    if offset < 0 or nbytes < 0 or offset % ALIGNMENT or offset + nbytes > weights.nbytes:
        raise ModelError(f"An array of {nbytes} bytes at {offset} is outside the {weights.nbytes} of the weights.")
    if has_size:
        return _decode_strings(bytes(read_view(weights[offset : offset + nbytes])), shape)
    raw = np.frombuffer(weights, np.uint8, nbytes, offset) if nbytes else np.empty(0, np.uint8)
    raw = read_content(raw) if dtype == np.bool_ else read_small_content(raw)
    if is_full and dtype == np.bool_ and nbytes and int(raw.max()) > 1:
        raise ModelError(f"An array of bool at {offset} has bytes other than 0 and 1.")
    array = raw.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _encode_method(method: StoredMethod, keep: Callable[[Array, str], int]) -> dict[str, Any]:
    model = method.model
    info = {key: getattr(model.info, key) for key in _INFO}
    info["opsets"], info["metadata"] = dict(model.info.opsets), dict(model.info.metadata)
    info["operators"] = dict(model.info.operators)
    return {
        "graph": encode_graph(model._source_graph, keep),
        "info": info,
        "dims": {name: _encode_bound(bound) for name, bound in model.dims.items()},
        "disabled_passes": sorted(model.disabled_passes),
        **_encode_precision(model.precision),
        "memories": [
            {**{key: getattr(memory, key) for key in _MEMORY}, "shape": list(memory.shape)} for memory in model.memories
        ],
        "plans": {target: [encode_plan(plan) for plan in method.plans[target]] for target in sorted(method.plans)},
        "cases": [_encode_case(case, keep) for case in method.cases],
        "gaps": list(method.gaps),
    }


def _decode_method(data: Any, arrays: Sequence[Array], is_full: bool, has_plans: bool) -> StoredMethod:
    graph = decode_graph(_take(data, "graph", dict, "It"), arrays)
    check(graph)
    check_arity(graph)
    described = _take(data, "info", dict, "It")
    info = {key: _take(described, key, kind, "Its description") for key, kind in _INFO.items()}
    for key, kind in (("opsets", int), ("metadata", str), ("operators", int)):
        if not all(is_of_type(value, kind) for value in info[key].values()):
            raise ModelError(f"What its description says of {key} is no {kind.__name__}.")
    dims = {name: _decode_bound(bound) for name, bound in _take(data, "dims", dict, "It").items()}
    check_declared(graph, dims)
    known = {each.name for each in (*AT_LOAD, *AT_PLAN)}
    disabled = [name for name in _take(data, "disabled_passes", list, "It") if isinstance(name, str) and name in known]
    memories = [_decode_memory(row, graph, dims) for row in _take(data, "memories", list, "It")]
    for names in ([memory.input for memory in memories], [memory.output for memory in memories]):
        if len(set(names)) != len(names):
            raise ModelError(f"Two memories share an end: {', '.join(names)[:100]}.")
    precision = _decode_precision(data)
    model = Model(ImportedModel(graph=graph, **info), graph, dims, frozenset(disabled), memories, precision)
    plans = _take(data, "plans", dict, "It") if has_plans else {}
    model._plans = {
        target: tuple([_decode_plan(each, target, is_full) for each in _take(plans, target, list, "Its plans")])
        for target in plans
    }
    cases = tuple([_decode_case(row, model, arrays) for row in _take(data, "cases", list, "It")])
    gaps = _take(data, "gaps", list, "It") if "gaps" in data else []
    if not all(isinstance(each, str) for each in gaps):
        raise ModelError(f"Its gaps are {str(gaps)[:60]}, expected sentences.")
    return StoredMethod(model, model._plans, cases, tuple(gaps))


def _encode_precision(precision: Precision) -> dict[str, Any]:
    """Return what says a precision, which is not in files of the default one."""
    if precision == DEFAULT_PRECISION:
        return {}
    fused = {"fuse_rounding": True} if precision.fuse_rounding else {}
    return {"precision": {"name": precision.name, "keep": sorted(precision.keep), **fused}}


def _decode_precision(data: Any) -> Precision:
    if "precision" not in data:
        return DEFAULT_PRECISION
    row = _take(data, "precision", dict, "It")
    name, keep = _take(row, "name", str, "Its precision"), _take(row, "keep", list, "Its precision")
    try:
        return Precision.of(name, keep, row.get("fuse_rounding", False))
    except InputError as error:
        raise ModelError(f"Its precision is none: {error}") from None


def _decode_memory(row: Any, graph: Graph, dims: Mapping[str, Bound]) -> Memory:
    if not isinstance(row, dict) or not all(is_of_type(row.get(key), hint) for key, hint in _MEMORY.items()):
        raise ModelError(f"A memory is {str(row)[:80]}, expected its input, output, axis and capacity.")
    inputs, outputs = ({value.name: value for value in values} for values in (graph.inputs, graph.outputs))
    name, output, axis, capacity = row["input"], row["output"], row["axis"], row["capacity"]
    known = {each.name for each in (inputs.get(name), outputs.get(output)) if each is not None and each.declared}
    if known != {name, output}:
        raise ModelError(
            f"A memory leads from {output!r} to {name!r}, which are no output and input of known types.", value=name
        )
    memory = make_memory(inputs[name], outputs[output], dims, is_implicit=row["is_implicit"])
    rank = len(memory.shape)
    if (axis is not None and not 0 <= axis < rank) or (capacity is not None and (axis is None or capacity < 1)):
        raise ModelError(f"A memory of {rank} axes grows along axis {axis}, up to {capacity}.", value=name)
    # The shape may be known beyond what is declared: that of a layer's state follows from the inputs.
    shape = _take(row, "shape", list, "A memory")
    if len(shape) != rank or not all(is_dim(dim) for dim in shape):
        raise ModelError(f"A memory of {rank} axes has the shape {str(shape)[:60]}.", value=name)
    return dataclasses.replace(memory, axis=axis, capacity=capacity, shape=tuple(shape))


def _decode_plan(data: Any, target: str, is_full: bool) -> Plan:
    try:
        plan = decode_plan(data)
        if plan.target != target:
            raise PlanError(f"it is for {plan.target!r}")
        if is_full:
            verify(plan)
    except (PlanError, LookupError, ValueError, TypeError) as error:
        raise ModelError(f"A plan for {target} does not hold: {error}") from error
    return plan


def _encode_bound(bound: Bound) -> Any:
    return list(bound) if isinstance(bound, tuple) else bound


def _decode_bound(bound: Any) -> Bound:
    low, high = bound if isinstance(bound, list) and len(bound) == 2 else (bound, bound)
    if is_of_type(low, int) and is_of_type(high, int) and 0 <= low <= high < 2**63:
        return (low, high) if isinstance(bound, list) else int(bound)
    raise ModelError(f"{str(bound)[:60]!r} is no extent, nor a range of extents.")


def _encode_case(case: StoredCase, keep: Callable[[Array, str], int]) -> dict[str, Any]:
    return {
        "origin": case.origin,
        "inputs": {name: keep(array, f"input {name!r} of a case") for name, array in case.inputs.items()},
        "outputs": {name: keep(array, f"output {name!r} of a case") for name, array in case.outputs.items()},
        "allowances": {name: dataclasses.astuple(each) for name, each in case.allowances.items()},
    }


def _decode_case(data: Any, model: Model, arrays: Sequence[Array]) -> StoredCase:
    origin = _take(data, "origin", str, "A case")
    given = {port.name: port.spec.dtype for port in model.inputs}
    made = {port.name: port.spec.dtype for port in model.outputs}
    inputs = _pick_arrays(_take(data, "inputs", dict, "A case"), given, arrays)
    outputs = _pick_arrays(_take(data, "outputs", dict, "A case"), made, arrays)
    allowances = {}
    for name, row in _take(data, "allowances", dict, "A case").items():
        if not (isinstance(row, list) and is_of_type(tuple(row), tuple[float, float, str])) or name not in outputs:
            raise ModelError(f"What a case allows of {name!r} is {str(row)[:60]!r}, expected [rtol, atol, reason].")
        allowances[name] = Allowance(float(row[0]), float(row[1]), row[2])
    if inputs.keys() != given.keys() or allowances.keys() != outputs.keys() or not outputs:
        raise ModelError("A case lacks an input, or what is allowed of an output.")
    return StoredCase(inputs, outputs, allowances, origin)


def _pick_arrays(
    numbers: Mapping[str, Any], ports: Mapping[str, np.dtype[Any]], arrays: Sequence[Array]
) -> dict[str, Array]:
    for name, number in numbers.items():
        if name not in ports or not is_of_type(number, int) or not 0 <= number < len(arrays):
            raise ModelError(f"A case names {name!r}, which is none of the model's, or an array that is not there.")
        if ports[name] not in (UNKNOWN, arrays[number].dtype):
            raise ModelError(f"A case has {name!r} as {arrays[number].dtype}, the model as {ports[name]}.", value=name)
    return {name: arrays[number] for name, number in numbers.items()}


class _ArrayStore:
    """Numbers arrays, equal ones alike."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self.chunks: list[memoryview] = []
        self._numbers: dict[object, int] = {}
        self._same: dict[int, tuple[int, Array]] = {}
        self._end = 0

    def add(self, array: Array, name: str) -> int:
        """Return the number of an array."""
        known = self._same.get(id(array))
        if known is None:
            known = self._same[id(array)] = self._add(array, name), array
        return known[0]

    def _add(self, array: Array, name: str) -> int:
        try:
            row = dtype_row(array.dtype)
        except InputError as error:
            raise InputError(f"{name} can't be stored: {error}", value=name.lstrip("%")) from None
        if is_container(array.dtype):
            raise InputError(f"{name} can't be stored: it is {describe(array)}.", value=name.lstrip("%"))
        content = _encode_strings(array) if array.dtype == STRING else view_bytes(array)
        key = (row.name, array.shape, hash_content(content))
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append([row.name, list(array.shape), self._end])
            if array.dtype == STRING:
                self.rows[-1].append(content.nbytes)
            self.chunks += pad(content)
            self._end += content.nbytes + -content.nbytes % ALIGNMENT
        return self._numbers[key]


def _encode_strings(array: Array) -> memoryview:
    """Return strings as a JSON list, in ASCII: as many bytes say nothing of how many they are."""
    return memoryview(json.dumps(array.reshape(-1).tolist()).encode("ascii"))


def _decode_strings(raw: bytes, shape: list[int]) -> Array:
    try:
        items = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"An array of strings can't be read: {error}") from error
    if (
        not is_of_type(items, list)
        or len(items) != math.prod(shape)
        or not all(isinstance(each, str) for each in items)
    ):
        raise ModelError(f"An array of strings is {str(items)[:60]!r}, expected {math.prod(shape)} texts.")
    array = np.array(items, STRING).reshape(shape)
    array.flags.writeable = False
    return array


def _encode_kernel(kernel: StoredKernel, offset: int) -> dict[str, Any]:
    """Return a kernel as a row; its bytes lie at ``offset`` of the code."""
    return {
        "key": kernel.key,
        "source": kernel.kernel.source,
        "expression": kernel.kernel.expression,
        "architecture": kernel.architecture,
        "compiler": kernel.compiler,
        "symbol": kernel.lowered_name,
        **{name: getattr(kernel, name) for name in _KERNEL_NUMBERS},
        "offset": offset,
        "nbytes": kernel.image.nbytes,
    }


def _decode_kernel(row: Any, code: memoryview) -> StoredKernel:
    """Return the kernel of a row, with a window on the code.

    Raises:
        ModelError: The row is of another form, or outside the code.
    """
    texts = {
        name: _take(row, name, str, "A kernel")
        for name in ("key", "source", "expression", "architecture", "compiler", "symbol")
    }
    numbers = {name: _take(row, name, int, "A kernel") for name in (*_KERNEL_NUMBERS, "offset", "nbytes")}
    offset, nbytes = numbers.pop("offset"), numbers.pop("nbytes")
    if offset < 0 or nbytes < 0 or offset + nbytes > code.nbytes:
        raise ModelError(f"A kernel of {nbytes} bytes at {offset} is outside the {code.nbytes} of the code.")
    if not _HEX.fullmatch(texts["key"]) or not _SYMBOL.fullmatch(texts["symbol"]):
        raise ModelError(f"The key or symbol of a kernel is none: {texts['key'][:64]!r}, {texts['symbol'][:64]!r}.")
    return StoredKernel(
        key=texts["key"],
        kernel=Kernel(texts["source"], texts["expression"]),
        architecture=texts["architecture"],
        compiler=texts["compiler"],
        lowered_name=texts["symbol"],
        image=code[offset : offset + nbytes],
        **numbers,
    )


def _take(data: Any, key: str, kind: type, where: str) -> Any:
    """Return an entry of a JSON object.

    Raises:
        ModelError: It is missing, or of another type.
    """
    value = data.get(key) if isinstance(data, dict) else None
    if not is_of_type(value, kind):
        raise ModelError(f"{where} has no {key!r}, or one that is no {kind.__name__}.")
    return value
