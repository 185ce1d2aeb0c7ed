"""Activations named in attributes of other com.microsoft operators."""

from __future__ import annotations

from collections.abc import Sequence

from gpuexec.errors import InputError
from gpuexec.ir.graphs import Value
from gpuexec.ops.lib.composite import Sketch

DOMAIN = "com.microsoft"
# By name, the attributes that parameters stand for, in their order.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "Gelu": (),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
_CLIP = "Clip"


def check_activation(operator: str, activation: str, parameters: Sequence[float]) -> None:
    """Check that an activation is known, with no more parameters than it takes; ``""`` is none.

    Raises:
        InputError: It is not.
    """
    if activation in ("", _CLIP):
        expected = 2 if activation else 0
        fits = len(parameters) == expected
    elif activation in ACTIVATIONS:
        expected = len(ACTIVATIONS[activation])
        fits = len(parameters) <= expected
    else:
        known = ", ".join(sorted((*ACTIVATIONS, _CLIP)))
        raise InputError(f"{operator} expects activation to be one of {known}, got {activation!r}.")
    if not fits:
        raise InputError(
            f"{operator} expects {expected} parameters of {activation or 'no activation'}, got {parameters}."
        )


def activate(sketch: Sketch, x: Value, like: Value, activation: str, parameters: Sequence[float] = ()) -> Value:
    """Return an activation of ``x``.

    Args:
        sketch: Takes the nodes.
        x: The input.
        like: Of the type of x; best a constant, so that bounds are constants too.
        activation: Its name; ``""``: none.
        parameters: Those that are given, in order.
    """
    if not activation:
        return x
    if activation == _CLIP:
        lowest, highest = (sketch.add("gpuexec.NumberLike", like, value=bound) for bound in parameters)
        return sketch.add(_CLIP, x, lowest, highest)
    return sketch.add(activation, x, **dict(zip(ACTIVATIONS[activation], parameters, strict=False)))
