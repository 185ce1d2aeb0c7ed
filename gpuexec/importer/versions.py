"""ONNX operator versions: element types, and function bodies."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import defs

from gpuexec.ir.operator import qualified
from gpuexec.ir.spec import DTYPES, STRING, dtype_row

# Names of ONNX's types that differ from gpuexec's.
_NAMES = {"float32": "float", "float64": "double"}
_OURS = {f"tensor({_NAMES.get(row.name, row.name)})": row.name for row in (*DTYPES, dtype_row(STRING))}


@dataclass(frozen=True, slots=True)
class OperatorVersions:
    """ONNX operator with its versions and types.

    Attributes:
        name: With its domain.
        versions: Opsets of its domain at which its form changed, oldest first.
        types: Element types that the newest allows of any input or output, by our names in table order; with
            ``"sequence"``, ``"optional"`` or ``"map"`` where it takes or gives such.
        has_body: Whether it is a function of other operators.
        is_deprecated: Whether newer opsets have it no more.
    """

    name: str
    versions: tuple[int, ...]
    types: tuple[str, ...]
    has_body: bool
    is_deprecated: bool


@functools.cache
def list_forms() -> Mapping[str, OperatorVersions]:
    """Return every operator of the installed onnx's domains, by qualified name."""
    schemas: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        schemas.setdefault(qualified(schema.name, schema.domain), []).append(schema)
    return {name: _make_form(name, rows) for name, rows in sorted(schemas.items())}


def _make_form(name: str, schemas: list[Any]) -> OperatorVersions:
    schemas.sort(key=lambda schema: int(schema.since_version))
    newest = schemas[-1]
    return OperatorVersions(
        name,
        tuple(int(schema.since_version) for schema in schemas),
        _read_types(newest if not newest.deprecated or len(schemas) == 1 else schemas[-2]),
        bool(newest.has_function or newest.has_context_dependent_function),
        bool(newest.deprecated),
    )


def _read_types(schema: Any) -> tuple[str, ...]:
    said = {text for formal in (*schema.inputs, *schema.outputs) for text in formal.types}
    found = [name for text, name in _OURS.items() if text in said]
    containers = {"sequence": "seq(", "optional": "optional(", "map": "map("}
    return (*found, *(kind for kind, start in containers.items() if any(start in text for text in said)))
