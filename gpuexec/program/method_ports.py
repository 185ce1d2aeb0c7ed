"""Inputs and outputs of a method by index or name; the index goes first."""

from __future__ import annotations

import operator

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import is_host_object
from gpuexec.model.ports import ModelPort

# An input or output, by index or name.
Key = int | str


def find_port(method: str, ports: tuple[ModelPort, ...], index: object, what: str) -> ModelPort:
    """Return an input or output (``what``) of a method.

    Raises:
        InputError: There is none of that index or name.
    """
    if isinstance(index, str):
        found = next((port for port in ports if port.name == index), None)
        if found is None:
            names = ", ".join(port.name for port in ports)
            raise InputError(f"Method {method!r} has no {what} {index!r}; it has {names}.", value=index)
        return found
    try:
        number = operator.index(index)  # type: ignore[arg-type]
    except TypeError:
        raise InputError(f"An {what} has an index or a name, not a {type(index).__name__}.") from None
    if not 0 <= number < len(ports):
        raise InputError(f"Method {method!r} has {len(ports)} {what}s, got index {number}.")
    return ports[number]


def check_has_bytes(what: str, port: ModelPort) -> None:
    """Check that an input or output (``what``) lies in memory of a device.

    Raises:
        InputError: It is strings or a container.
    """
    if is_host_object(port.spec.dtype):
        raise InputError(f"{what} {port.name!r} is {port.spec}, which has no memory to write to.", value=port.name)


def check_order(call: str, index: object, value: object) -> None:
    """Check that the index comes before the array.

    Raises:
        InputError: The two were swapped.
    """
    is_array = hasattr(index, "shape") or hasattr(index, "__dlpack__") or isinstance(index, (list, tuple))
    if is_array and not isinstance(index, np.integer):
        raise InputError(f"{call} takes the index first: {call}({value!r}, array).")
