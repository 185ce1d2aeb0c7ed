"""Operator signatures: inputs and outputs of operators in domains that ONNX has no schemas for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_UNBOUNDED = 2**31 - 1  # as onnx writes it
_FORMS: dict[tuple[str, str], Signature] = {}


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of an operator.

    ``required`` are positions of inputs that can't be absent, in order; from ``variadic_from`` on an input may be
    repeated any number of times.
    """

    input_names: tuple[str, ...]
    required: tuple[int, ...]
    variadic_from: int
    max_inputs: int
    max_outputs: int


def declare_signatures(domain: str, forms: Mapping[str, tuple[str, str]]) -> None:
    """Declare inputs and outputs of operators by name, against which nodes are checked while a model is loaded.

    In ``"A B bias? rest*"`` a question mark means optional, and a star, at the end, any number.
    """
    _FORMS.update({(domain, name): _parse(*form) for name, form in forms.items()})


def find_signature(op_type: str, domain: str) -> Signature | None:
    """Return the declared form of an operator."""
    return _FORMS.get((domain, op_type))


def _parse(inputs: str, outputs: str) -> Signature:
    each = inputs.split()
    is_variadic = inputs.endswith("*")
    return Signature(
        input_names=tuple([name.rstrip("?*") for name in each]),
        required=tuple([index for index, name in enumerate(each) if not name.endswith(("?", "*"))]),
        variadic_from=len(each) - 1 if is_variadic else _UNBOUNDED,
        max_inputs=_UNBOUNDED if is_variadic else len(each),
        max_outputs=len(outputs.split()),
    )
