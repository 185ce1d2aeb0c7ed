"""Contents of a program file as data: methods with their models, plans and cases, and kernels.

    Contents     = methods: {name: StoredMethod}, code, version, writer
    StoredMethod = model, plans: {target: Plan*}, cases, gaps

The models of one file share their weights: equal constants are one array, and so is what lies on a device of them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from gpuexec.devices.kernels.stored_code import StoredCode
from gpuexec.errors import InputError
from gpuexec.ir.graphs import walk
from gpuexec.ir.plan import Plan
from gpuexec.model.model import Model

Array = np.ndarray[Any, Any]
# An extent that is fixed, or an inclusive range of extents.
Bound = int | tuple[int, int]

# 1.1: the gaps of a method.
FORMAT = (1, 1)


def check_allowed(name: str, number: Any) -> None:
    """Check how far something may be off, by the name of the option.

    Raises:
        InputError: It is no finite number from 0 on, so that everything or nothing would pass.
    """
    plain = number.item() if isinstance(number, np.generic) else number
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if not is_number or not 0 <= plain <= sys.float_info.max:
        raise InputError(f"{name} is a finite number from 0 on, got {str(number)[:40]}.")


class Verification(Enum):
    """Checks of a program when it is read.

    FULL: the hash of every part, and that graphs, plans and cases are whole. MINIMAL: the format, and that all sizes
    fit the file; for files whose content one vouches for.

    Example:
        >>> gx.Program.build({"forward": model}, backend="cpu").save("digits.gxp")
        >>> gx.Program.load("digits.gxp", verification=gx.Verification.MINIMAL).method_names
        ('forward',)
    """

    FULL = "full"
    MINIMAL = "minimal"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Error allowed of an output of a case: ``|got - expected| <= atol + rtol * |expected|``, anywhere.

    ``reason`` says where the numbers come from: the tolerance class of the operators, or the user.

    Raises:
        InputError: A number is negative or not finite.
    """

    rtol: float
    atol: float
    reason: str

    def __post_init__(self) -> None:
        check_allowed("rtol", self.rtol)
        check_allowed("atol", self.atol)


@dataclass(frozen=True, slots=True, eq=False)
class StoredCase:
    """Inputs and the outputs expected for them. ``origin`` says who made those: ``"given"``, or ``"cpu"``."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    allowances: Mapping[str, Allowance]
    origin: str


@dataclass(frozen=True, slots=True, eq=False)
class StoredMethod:
    """A model with what was made for it beforehand.

    Attributes:
        model: The graph after the load passes, with the bounds of its dimensions; it has the plans and the code too,
            so whoever runs it finds them.
        plans: By name of the target; laid out at the upper ends of the bounds. Those of parts that only a run can plan
            are not among them, but their kernels are in the code.
        cases: To test with.
        gaps: Which kernels a run may need are not in the code, and why, in whole sentences.
    """

    model: Model
    plans: Mapping[str, tuple[Plan, ...]] = field(default_factory=dict)
    cases: tuple[StoredCase, ...] = ()
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Contents of a program file; see the module docstring.

    ``notes`` say what was found in a file and left aside, in whole sentences.
    """

    methods: Mapping[str, StoredMethod]
    code: StoredCode = field(default_factory=StoredCode)
    version: tuple[int, int] = FORMAT
    writer: str = ""
    notes: tuple[str, ...] = ()

    @property
    def weights_nbytes(self) -> int:
        """Bytes of the constants of all methods, shared ones counted once."""
        arrays = {
            id(array): array.nbytes
            for method in self.methods.values()
            for graph in walk(method.model.graph)
            for array in graph.constants.values()
        }
        return sum(arrays.values())

    def to_dict(self) -> dict[str, Any]:
        """Return a description as JSON data: methods with their models and plans, bytes of weights and of code."""
        kernels = self.code.kernels
        return {
            "format": ".".join(map(str, self.version)),
            "writer": self.writer,
            "notes": list(self.notes),
            "methods": {name: _describe_method(method) for name, method in self.methods.items()},
            "weights_nbytes": self.weights_nbytes,
            "code": {
                name: {
                    "kernels": sum(each.architecture == name for each in kernels),
                    "nbytes": sum(each.image.nbytes for each in kernels if each.architecture == name),
                    "compilers": sorted({each.compiler for each in kernels if each.architecture == name}),
                }
                for name in self.code.architectures
            },
        }


def _describe_method(method: StoredMethod) -> dict[str, Any]:
    """Return a method as JSON data; a target without plans is planned when it is run."""
    plans = {
        target: [
            {
                "commands": len(plan.segment.commands),
                "arena_nbytes": plan.layout.nbytes,
                "arena_lower_bound": plan.layout.lower_bound,
            }
            for plan in rows
        ]
        for target, rows in method.plans.items()
    }
    dims = {name: list(bound) if isinstance(bound, tuple) else bound for name, bound in method.model.dims.items()}
    described = {"dims": dims, "plans": plans, "cases": len(method.cases), "gaps": list(method.gaps)}
    return {**method.model.to_dict(), **described}
