"""Kernel instance table: the template instantiations that lowerings may launch.

So they can be compiled and measured beforehand. Each lowering lists the instances that it launches, once for each name
expression:

    instantiate("norm.cu", [f"layer_norm<{dtype_row(dtype).cuda}>" for dtype in dtypes_of("float")])
"""

from __future__ import annotations

from collections.abc import Iterable

_INSTANCES: dict[str, dict[str, None]] = {}


def instantiate(source: str, expressions: Iterable[str]) -> None:
    """Add instances of the kernels in ``source`` to the table; entries that exist stay."""
    _INSTANCES.setdefault(source, {}).update(dict.fromkeys(expressions))


def instantiations(source: str) -> tuple[str, ...]:
    """Return the instances of one kernel file; none where the file is not in the table."""
    return tuple(_INSTANCES.get(source, ()))


def kernel_table() -> dict[str, tuple[str, ...]]:
    """Return every kernel instance a lowering can launch, by source file. Complete once `gpuexec.ops` is imported."""
    return {source: tuple(expressions) for source, expressions in sorted(_INSTANCES.items())}
