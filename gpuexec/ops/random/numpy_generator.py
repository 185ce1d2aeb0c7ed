"""NumPy's legacy random generator, for Dropout and Bernoulli with a seed, on the host.

So they give what onnx's evaluator gives for the seed, in every run the same.
"""

from __future__ import annotations

import math

import numpy as np

HOST_REASON = "with a seed it draws from NumPy's own generator"


def has_seed(seed: float | None) -> bool:
    """Return whether a numeric seed is given."""
    return seed is not None and not math.isnan(seed)


def make_generator(seed: float | None) -> np.random.RandomState:
    """Return the generator of a seed, of which the integer's low 32 bits count."""
    assert seed is not None
    return np.random.RandomState(int(seed) % 2**32 if math.isfinite(seed) else 0)
