"""Operator signatures: inputs and outputs of operators in domains that ONNX has no schemas for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_UNBOUNDED = 2**31 - 1  # as onnx writes it
_FORMS: dict[tuple[str, str], Signature] = {}


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of an operator, by name.

    In ``"A B bias? rest*"`` a question mark means optional, and a star any number.
    """

    inputs: str
    outputs: str

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, without their marks."""
        return tuple(each.rstrip("?*") for each in self.inputs.split())

    @property
    def required(self) -> tuple[int, ...]:
        """Positions of inputs that can't be absent."""
        return tuple(index for index, each in enumerate(self.inputs.split()) if not each.endswith(("?", "*")))

    @property
    def variadic_from(self) -> int:
        """Position of the input that may be repeated any number of times."""
        return next((i for i, each in enumerate(self.inputs.split()) if each.endswith("*")), _UNBOUNDED)

    @property
    def max_inputs(self) -> int:
        """Largest number of inputs."""
        return _UNBOUNDED if self.inputs.endswith("*") else len(self.inputs.split())

    @property
    def max_outputs(self) -> int:
        """Largest number of outputs."""
        return len(self.outputs.split())


def declare_signatures(domain: str, forms: Mapping[str, tuple[str, str]]) -> None:
    """Declare inputs and outputs of operators by name, against which nodes are checked while a model is loaded."""
    _FORMS.update({(domain, name): Signature(*form) for name, form in forms.items()})


def find_signature(op_type: str, domain: str) -> Signature | None:
    """Return the declared form of an operator."""
    return _FORMS.get((domain, op_type))
