"""Activation functions and softmax."""

from __future__ import annotations

from typing import Any

from gpuexec.model.tracing.nodes import add_node
from gpuexec.model.tracing.promotion import as_float, as_symbolic
from gpuexec.model.tracing.shaping import find_axis
from gpuexec.model.tracing.symbolic import SymbolicArray

__all__ = [
    "celu", "elu", "gelu", "hard_sigmoid", "hard_swish", "leaky_relu", "log_softmax", "mish", "p_relu", "prelu", "relu",
    "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "swish",
]  # fmt: skip


def relu(x: Any) -> SymbolicArray:
    """Clamp each element at 0 from below."""
    return add_node("Relu", as_symbolic(x))


def relu6(x: Any) -> SymbolicArray:
    """Clamp each element between 0 and 6."""
    array = as_symbolic(x)
    low, high = (as_symbolic(n, array.dtype, array._tracer) for n in (0, 6))
    return add_node("Clip", array, low, high)


def sigmoid(x: Any) -> SymbolicArray:
    """Return the sigmoid, 1 / (1 + exp(-x))."""
    return add_node("Sigmoid", as_float(x))


def hard_sigmoid(x: Any, alpha: float = 1 / 6, beta: float = 0.5) -> SymbolicArray:
    """Return the hard sigmoid: alpha x + beta, clamped between 0 and 1."""
    return add_node("HardSigmoid", as_float(x), alpha=float(alpha), beta=float(beta))


def hard_swish(x: Any) -> SymbolicArray:
    """Return x times its hard sigmoid."""
    return add_node("HardSwish", as_float(x))


def swish(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Return x times the sigmoid of alpha x."""
    array = as_float(x)
    return array * sigmoid(array * alpha if alpha != 1 else array)


silu = swish


def elu(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Return alpha (exp(x) - 1) below 0."""
    return add_node("Elu", as_float(x), alpha=float(alpha))


def selu(x: Any) -> SymbolicArray:
    """Return the scaled exponential unit, with the constants of its paper."""
    return add_node("Selu", as_float(x))


def celu(x: Any, alpha: float = 1.0) -> SymbolicArray:
    """Return alpha (exp(x / alpha) - 1) below 0."""
    return add_node("Celu", as_float(x), alpha=float(alpha))


def leaky_relu(x: Any, alpha: float = 0.01) -> SymbolicArray:
    """Multiply by alpha below 0."""
    return add_node("LeakyRelu", as_float(x), alpha=float(alpha))


def prelu(x: Any, slope: Any) -> SymbolicArray:
    """Multiply by slopes below 0; they broadcast to the array."""
    array = as_float(x)
    return add_node("PRelu", array, as_symbolic(slope, array.dtype, array._tracer))


p_relu = prelu


def gelu(x: Any, approximate: str = "none") -> SymbolicArray:
    """Weigh by the Gaussian distribution, exactly or by ``"tanh"``."""
    return add_node("Gelu", as_float(x), approximate=approximate)


def mish(x: Any) -> SymbolicArray:
    """Return x tanh(softplus(x))."""
    return add_node("Mish", as_float(x))


def softsign(x: Any) -> SymbolicArray:
    """Return x / (1 + |x|)."""
    return add_node("Softsign", as_float(x))


def softplus(x: Any) -> SymbolicArray:
    """Return log(1 + exp(x))."""
    return add_node("Softplus", as_float(x))


def softmax(x: Any, axis: int = -1) -> SymbolicArray:
    """Return the softmax: exponentials of an axis divided by their sum."""
    array = as_float(x)
    return add_node("Softmax", array, axis=find_axis(array, axis))


def log_softmax(x: Any, axis: int = -1) -> SymbolicArray:
    """Return the logarithm of the softmax."""
    array = as_float(x)
    return add_node("LogSoftmax", array, axis=find_axis(array, axis))
