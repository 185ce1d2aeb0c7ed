"""A plan as JSON text and back: to store it, to send it, and to prove that it is data alone."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np

from gpuexec.command import Copy, Fill, HostCall, Kernel, Launch, Slot
from gpuexec.errors import PlanError
from gpuexec.plan import ArenaLayout, Buffer, KeptOnHost, Plan, Port, Read, Role, Segment, Variant
from gpuexec.spec import TensorSpec, dtype_row

_TYPES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (Plan, Buffer, ArenaLayout, Segment, Port, Read, KeptOnHost, Variant)
    + (Slot, Kernel, Launch, Copy, Fill, HostCall)
}


def to_json(plan: Plan) -> str:
    """Return the plan as JSON text; equal plans give equal text."""
    return json.dumps(_encode(plan), sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> Plan:
    """Return the plan that `to_json` wrote.

    Raises:
        PlanError: The text is not such a plan.
    """
    try:
        plan = _decode(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(f"The text is not a plan: {type(error).__name__}: {error}.") from error
    if not isinstance(plan, Plan):
        raise PlanError(f"The text is not a plan: its top is {type(plan).__name__}.")
    return plan


def _encode(item: Any) -> Any:
    match item:
        case None | bool() | str():
            return item
        case Role():
            return {"$": "role", "v": item.value}
        case np.generic():
            return {"$": "scalar", "t": dtype_row(item.dtype).name, "v": np.asarray(item).tobytes().hex()}
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
            return [_encode(part) for part in item]
    name = type(item).__name__
    if name not in _TYPES:
        raise PlanError(f"A plan holds a {name}, which is not data.")
    return {"$": name, **{f.name: _encode(getattr(item, f.name)) for f in dataclasses.fields(item)}}


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
        case "spec":
            return TensorSpec(tuple(item["s"]), dtype_row(item["t"]).numpy)
        case "scalar":
            return np.frombuffer(bytes.fromhex(item["v"]), dtype_row(item["t"]).numpy)[0]
        case "array":
            array = np.frombuffer(bytes.fromhex(item["v"]), dtype_row(item["t"]).numpy).reshape(item["s"])
            array.flags.writeable = False
            return array
        case name:
            return _TYPES[name](**{key: _decode(value) for key, value in item.items() if key != "$"})
