"""Random numbers, new in every run, or a repeatable sequence with a seed."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.spec import dtype_row
from gpuexec.model.tracing.creation import full
from gpuexec.model.tracing.elementwise import floor, log
from gpuexec.model.tracing.finding import topk
from gpuexec.model.tracing.indexing import take
from gpuexec.model.tracing.promotion import FLOAT32, as_symbolic, cast
from gpuexec.model.tracing.shaping import as_dims, ravel, reshape, size
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "bernoulli", "multinomial", "normal", "normal_like", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random_choice",
]  # fmt: skip


def rand(shape: Any, dtype: Any = FLOAT32, seed: float | None = None) -> SymbolicArray:
    """Draw numbers from 0 to before 1, all equally likely."""
    return _draw("RandomUniform", shape, dtype, {"low": 0.0, "high": 1.0, "seed": seed})


def rand_like(a: Any, seed: float | None = None) -> SymbolicArray:
    """Draw numbers from 0 to before 1, as many as another array has, in its dtype if that is one of floats."""
    return rand(*_like(a), seed=seed)


def randn(shape: Any, dtype: Any = FLOAT32, seed: float | None = None) -> SymbolicArray:
    """Draw numbers of the normal distribution of mean 0 and deviation 1."""
    return normal(0.0, 1.0, shape, dtype, seed)


def randn_like(a: Any, seed: float | None = None) -> SymbolicArray:
    """Draw as `randn`, as many as another array has."""
    return randn(*_like(a), seed=seed)


def normal(
    mean: float = 0.0, std: float = 1.0, shape: Any = (), dtype: Any = FLOAT32, seed: float | None = None
) -> SymbolicArray:
    """Draw numbers of a normal distribution."""
    return _draw("RandomNormal", shape, dtype, {"mean": float(mean), "scale": float(std), "seed": seed})


def normal_like(a: Any, mean: float = 0.0, std: float = 1.0, seed: float | None = None) -> SymbolicArray:
    """Draw as `normal`, as many as another array has."""
    shape, dtype = _like(a)
    return normal(mean, std, shape, dtype, seed)


def randint(low: int, high: int, shape: Any, dtype: Any = np.int64, seed: float | None = None) -> SymbolicArray:
    """Draw integers from ``low`` to before ``high``, uniformly as far as float64 tells them apart."""
    if high <= low:
        raise InputError(f"randint draws from low to before high, got low={low}, high={high}.")
    drawn = rand(shape, np.float64, seed)
    return cast(floor(drawn * float(high - low) + float(low)), dtype)


def randint_like(a: Any, low: int, high: int, seed: float | None = None) -> SymbolicArray:
    """Draw as `randint`, as many as another array has, in its dtype."""
    array = as_symbolic(a)
    return randint(low, high, array.shape, array.dtype, seed)


def bernoulli(p: Any, dtype: Any = None, seed: float | None = None) -> SymbolicArray:
    """Draw 1 with the probabilities given, else 0."""
    array = as_symbolic(p)
    code = None if dtype is None else dtype_row(np.dtype(dtype)).code
    attributes = {"dtype": code, "seed": seed}
    otherwise = [(np.dtype(dtype or array.dtype), array.dims)]
    return array._tracer.apply("Bernoulli", [array], attributes=attributes, otherwise=otherwise)[0]


def multinomial(p: Any, num_samples: int, dtype: Any = np.int64, seed: float | None = None) -> SymbolicArray:
    """Draw classes by their probabilities [classes] or [batch, classes], which need not add up to 1."""
    array = as_symbolic(p)
    if array.ndim not in (1, 2) or array.dtype.kind in "iub":
        raise InputError(f"multinomial takes probabilities [classes] or [batch, classes], got {array!r}.")
    rows = array if array.ndim == 2 else array[None]
    attributes = {"sample_size": num_samples, "dtype": dtype_row(np.dtype(dtype)).code, "seed": seed}
    otherwise = [(np.dtype(dtype), (rows._known_dims()[0], num_samples))]
    (drawn,) = array._tracer.apply("Multinomial", [log(rows)], attributes=attributes, otherwise=otherwise)
    return drawn if array.ndim == 2 else drawn[0]


def random_choice(a: Any, num_samples: int, replace: bool = True, seed: float | None = None) -> SymbolicArray:
    """Draw elements, each as likely as any other; without ``replace`` none twice."""
    array = ravel(a)
    count = size(array)
    if not replace:
        if isinstance(count, int) and num_samples > count:
            raise InputError(f"{num_samples} elements of {count} can't be drawn without drawing one twice.")
        return take(array, topk(rand((count,), seed=seed), num_samples)[1], 0)
    places = floor(rand((num_samples,), np.float64, seed) * as_symbolic(count, np.float64, array._tracer))
    return take(array, cast(places, np.int64), 0)


def _like(a: Any) -> tuple[Any, Any]:
    array = as_symbolic(a)
    return array.shape, FLOAT32 if array.dtype.kind in "iub" else array.dtype


def _draw(name: str, shape: Any, dtype: Any, attributes: dict[str, Any]) -> SymbolicArray:
    tracer, kind = find_tracer(shape), dtype_row(np.dtype(dtype))
    if kind.kind != "float":
        raise InputError(f"random numbers are drawn as floats, got {kind.name}; use randint, or convert by astype.")
    dims = as_dims(shape)
    if dims and all(isinstance(dim, int) for dim in dims):
        return tracer.apply(name, [], attributes={**attributes, "dtype": kind.code, "shape": dims})[0]
    like = full(shape if dims else (1,), 0, kind.numpy)
    (drawn,) = tracer.apply(f"{name}Like", [like], attributes=attributes, otherwise=[(kind.numpy, dims)])
    return drawn if dims else reshape(drawn, ())
