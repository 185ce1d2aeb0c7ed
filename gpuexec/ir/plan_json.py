"""JSON form of a plan: serialization and parsing.

Plans are stored and sent in it, and it proves that they are data alone. Calls of libraries are not stored: a file is
read by later releases on other machines, where a library of that version need not be, and its bits are not ours to
keep.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from typing import Any

import numpy as np

from gpuexec.errors import GpuexecError, PlanError
from gpuexec.ir.command import Copy, Fill, HostCall, Kernel, Launch, LibraryCall, Slot
from gpuexec.ir.plan import ArenaLayout, Buffer, KeptOnHost, Plan, Port, Read, Role, Segment, Variant
from gpuexec.ir.spec import MAX_BYTES, TensorSpec, check_size, dtype_row
from gpuexec.ir.validate import find_invalid_field
from gpuexec.ir.weight_forms import PackedForm

_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (Plan, Buffer, ArenaLayout, Segment, Port, Read, KeptOnHost, Variant)
    + (Slot, Kernel, Launch, Copy, Fill, HostCall, PackedForm)
}
# Fields that stand in the text only where they are set, by type.
_OPTIONAL: dict[str, frozenset[str]] = {
    "Buffer": frozenset({"form"}),
    "PackedForm": frozenset({"after"}),
    "HostCall": frozenset({"scratch"}),
}


def _hash_types(left_out: str = "", optional: dict[str, frozenset[str]] | None = None) -> str:
    """Return a hash of the names and fields of all types, but for a type and fields that are left out."""
    rows = [
        (name, [(f.name, str(f.type)) for f in dataclasses.fields(cls) if f.name not in (optional or {}).get(name, ())])
        for name, cls in _TYPES.items()
        if name != left_out
    ]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


# Version of the form; it changes with the fields of a plan. Stored plans are read of this version, of the one without
# scratch of host calls, of the one in which packed weights were packed once, and of the one without them; others are
# not.
FORM = _hash_types()
FORMS_READ = (
    FORM,
    _hash_types(optional={"HostCall": _OPTIONAL["HostCall"]}),
    _hash_types(optional={key: _OPTIONAL[key] for key in ("HostCall", "PackedForm")}),
    _hash_types(PackedForm.__name__, _OPTIONAL),
)


def to_json(plan: Plan) -> str:
    """Return the plan as JSON text; equal plans give equal text."""
    return json.dumps(encode_plan(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode_plan(plan: Plan) -> Any:
    """Return the plan as JSON data."""
    return encode(plan)


def from_json(text: str) -> Plan:
    """Parse the JSON text of a plan that `to_json` wrote.

    Raises:
        PlanError: The text is not such a plan.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"The text is not a plan: {type(error).__name__}: {str(error)[:200]}.") from error
    return decode_plan(data)


def decode_plan(data: Any) -> Plan:
    """Rebuild a plan from the data of `encode_plan`; every field is checked against its declared type.

    Raises:
        PlanError: The data is not such a plan.
    """
    try:
        plan = _decode(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, GpuexecError) as error:
        raise PlanError(f"The text is not a plan: {type(error).__name__}: {str(error)[:200]}.") from error
    if not isinstance(plan, Plan):
        raise PlanError(f"The text is not a plan: its top is {type(plan).__name__}.")
    misfit = find_invalid_field(plan)
    if misfit is not None:
        raise PlanError(f"The text is not a plan: {misfit} is of another type.")
    if not all(0 <= buffer.nbytes <= MAX_BYTES for buffer in plan.buffers):
        raise PlanError("The text is not a plan: a buffer is of a size that can't be.")
    return plan


def encode(item: Any) -> Any:
    """Return a part of a plan as JSON data."""
    match item:
        case None | bool() | str():
            return item
        case Role():
            return {"$": "role", "v": item.value}
        case np.generic():
            return {"$": "scalar", "t": dtype_row(item.dtype).name, "v": np.asarray(item).tobytes().hex()}
        case float() if not math.isfinite(item):
            return {"$": "float", "v": repr(item)}
        case int() | float():
            return item
        case bytes():
            return {"$": "bytes", "v": item.hex()}
        case np.dtype():
            return {"$": "dtype", "v": dtype_row(item).name}
        case np.ndarray():
            return {"$": "array", "t": dtype_row(item.dtype).name, "s": list(item.shape), "v": item.tobytes().hex()}
        case TensorSpec():
            return {"$": "spec", "s": list(item.shape), "t": dtype_row(item.dtype).name}
        case tuple() | list():
            return [encode(part) for part in item]
    name = type(item).__name__
    if isinstance(item, LibraryCall):
        raise PlanError(f"A plan that calls {item.library} is not stored: make it without providers.")
    if name not in _TYPES:
        raise PlanError(f"A plan holds a {name}, which is not data.")
    optional = _OPTIONAL.get(name, frozenset())
    values = [(f.name, getattr(item, f.name)) for f in dataclasses.fields(item)]
    kept = [(key, value) for key, value in values if key not in optional or (value is not None and value != ())]
    return {"$": name, **{key: encode(value) for key, value in kept}}


def _decode(item: Any) -> Any:
    if isinstance(item, list):
        return tuple(_decode(part) for part in item)
    if not isinstance(item, dict):
        return item
    match item["$"]:
        case "role":
            return Role(item["v"])
        case "bytes":
            return bytes.fromhex(item["v"])
        case "dtype":
            return dtype_row(item["v"]).numpy
        case "float":
            return float(item["v"])
        case "spec":
            spec = TensorSpec(tuple(item["s"]), dtype_row(item["t"]).numpy)
            check_size(spec.shape, spec.dtype)
            return spec
        case "scalar":
            return np.frombuffer(bytes.fromhex(item["v"]), dtype_row(item["t"]).numpy)[0]
        case "array":
            array = np.frombuffer(bytes.fromhex(item["v"]), dtype_row(item["t"]).numpy).reshape(item["s"])
            array.flags.writeable = False
            return array
        case name:
            return _TYPES[name](**{key: _decode(value) for key, value in item.items() if key != "$"})
