"""Moving arguments: parameters of kernels that a launch can take from device memory, as they change with the sizes.

Beside the code that launches a kernel stands which of its parameters it reads from a copy of its argument block, where
its last parameter, a pointer, is not null:

    declare_moving("attention_few.cu", "attend_few", MovingArgument(9), MovingArgument(11, 188, "i"))

Plans pass a null pointer. A graph gives such launches copies of their blocks, so that another size leaves their nodes
as they are (`gpuexec.devices.device_sizes`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuexec.ir.command import Kernel

# What stores the numbers of a size in the copies (`gpuexec.ops.tensor.store_sizes`).
STORE_SIZES = Kernel("store_sizes.cu", "store_sizes")
MOVING_WIDTHS = {"q": 8, "Q": 8, "i": 4, "I": 4}  # by form
_DECLARED: dict[tuple[str, str], frozenset[MovingArgument]] = {}


@dataclass(frozen=True, slots=True, order=True)
class MovingArgument:
    """A pointer among a kernel's parameters, or a number in one of them.

    Attributes:
        position: Of the parameter.
        at: Bytes into it.
        form: The type, as `struct` spells it: of 4 or 8 bytes.
    """

    position: int
    at: int = 0
    form: str = "Q"


def declare_moving(source: str, kernel: str, *arguments: MovingArgument) -> None:
    """Declare all parameters that a kernel reads from a copy of its block, whatever its template arguments."""
    _DECLARED[source, kernel] = frozenset(arguments)


def find_moving(kernel: Kernel) -> frozenset[MovingArgument]:
    """Return what a kernel reads from a copy of its block; nothing where it takes none."""
    return _DECLARED.get((kernel.source, kernel.expression.partition("<")[0]), frozenset())
