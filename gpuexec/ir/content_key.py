"""Equality of specs including content, to skip inference, computation and lowering."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from gpuexec.ir.spec import HostValue, SymbolicValue, TensorSpec, is_host_object
from gpuexec.system.mapped import read_content

# The largest value, in bytes, that is propagated and may become part of a launch.
HOST_VALUE_LIMIT = 2048


def is_same_spec(a: TensorSpec, b: TensorSpec) -> bool:
    """Return whether specs are equal, content included."""
    if a is b:
        return True
    if a != b:
        return False
    first, second = a.value, b.value
    if first is None or second is None:
        return first is second
    if isinstance(first, SymbolicValue) or isinstance(second, SymbolicValue):
        return first is second
    if first.array is second.array:
        return True
    # The bytes of a host object are addresses, not content.
    return not is_host_object(a.dtype) and read_content(first.array).tobytes() == read_content(second.array).tobytes()


def content_key(specs: Iterable[TensorSpec | None]) -> Hashable:
    """Return a key that is equal for specs of equal content; large content equals only itself."""
    return tuple([spec if spec is None or spec.value is None else _value_key(spec, spec.value) for spec in specs])


def _value_key(spec: TensorSpec, value: HostValue) -> Hashable:
    if isinstance(value, SymbolicValue):
        return spec, tuple(value.symbols.reshape(-1).tolist())
    is_compared = spec.nbytes <= HOST_VALUE_LIMIT and not is_host_object(spec.dtype)
    return spec, value.array.tobytes() if is_compared else id(value.array)


def are_same(a: Sequence[TensorSpec | None], b: Sequence[TensorSpec | None]) -> bool:
    """Return whether specs, of as many values, are equal one by one."""
    for first, second in zip(a, b, strict=True):
        if first is not second and (first is None or second is None or not is_same_spec(first, second)):
            return False
    return True
