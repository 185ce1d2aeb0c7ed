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
from gpuexec.model.tracing.promotion import FLOAT32, INT64, as_symbolic, cast
from gpuexec.model.tracing.shaping import as_dims, ravel, reshape, size
from gpuexec.model.tracing.symbolic import SymbolicArray
from gpuexec.model.tracing.tracer import find_tracer

__all__ = [
    "bernoulli", "multinomial", "normal", "normal_like", "rand", "rand_like", "randint", "randint_like", "randn",
    "randn_like", "random_choice", "sample_token",
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


def sample_token(
    logits: Any,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    *,
    tokens: Any = None,
    penalty: Any = 1.0,
    places: Any = None,
    seed: float | None = None,
) -> SymbolicArray:
    """Draw the next token of each sequence, by its probability among the likeliest.

    Settings are numbers, or arrays of one element or one for each sequence, which may be inputs and change from run to
    run. As a state of the model the token is the next run's input, and never touches the host:

        def step(ids, past):
            logits, present = gx.fn.forward(decoder, ids, past)
            token = gx.fn.sample_token(logits[:, -1:], 0.8, top_p=0.9)
            return {"token": token, "next": token, "present": present}

        model = gx.graph(step, decoder).bind_state({"next": "ids", "present": "past"}, capacity=1024)

    Args:
        logits: ``[sequences, classes]``, or several rows of each, ``[sequences, rows, classes]``.
        temperature: What logits are divided by; 0 takes the likeliest.
        top_k: How many of the likeliest there are to choose from; 0: all.
        top_p: The probability that the likeliest to choose from make up together.
        tokens: ``[sequences, count]`` of those that were there, for the penalty; of several rows, each but the last
            sees one less than the next.
        penalty: What their logits are divided by, or multiplied if they are negative; 1 changes nothing.
        places: As many as tokens are drawn. A place draws the same number for a seed, in any run; None: every run
            draws new numbers.
        seed: Of its own; None: that of the state, see `Worker`.

    Returns:
        int64 ``[sequences]``, or ``[sequences, rows]``.
    """
    array = as_symbolic(logits)
    is_penalised = not (_is_number(penalty) and penalty == 1)
    inputs = [
        cast(array, FLOAT32) if array.dtype == np.float64 else array,
        _set(temperature, 1, FLOAT32, array),
        _set(top_k, 0, INT64, array),
        _set(top_p, 1, FLOAT32, array),
        _set(tokens if is_penalised else None, None, INT64, array),
        _set(penalty, 1, FLOAT32, array),
        _set(places, None, INT64, array),
    ]
    otherwise = [(INT64, array._known_dims()[:-1])]
    return array._tracer.apply("gpuexec.SampleToken", inputs, attributes={"seed": seed}, otherwise=otherwise)[0]


def _set(value: Any, default: float | None, dtype: np.dtype[Any], like: SymbolicArray) -> SymbolicArray | None:
    """Return a setting as an array; None where it is the default, or not given."""
    if value is None or (_is_number(value) and value == default):
        return None
    return as_symbolic(value, dtype, like._tracer)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


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
