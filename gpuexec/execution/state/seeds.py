"""Seeds of random operators: one for each state, drawn from the process's seed unless given."""

from __future__ import annotations

import secrets
import threading

import numpy as np

from gpuexec.errors import InputError
from gpuexec.execution.resources.fence import Fence
from gpuexec.execution.state.carried import Carried, StateEntry
from gpuexec.ir.spec import TensorSpec
from gpuexec.model.model import Model
from gpuexec.ops.random.random_key import KEY_DTYPE
from gpuexec.passes.add_random_key import find_keys

_WHOLE = 2**64 - 1
_lock = threading.Lock()
_seed: int | None = None
_drawn = 0


def set_seed(seed: int) -> None:
    """Set the seed from which states of Workers and Methods made from now on draw theirs, in order.

    Without, they begin with seeds of the system's. `State.seed`, and ``seed`` of a Worker, set one by itself.

    Raises:
        InputError: It is no whole number from 0 to 2**64 - 1.

    Example:
        >>> gx.set_seed(7)
    """
    global _seed, _drawn
    checked = check_seed(seed)
    with _lock:
        _seed, _drawn = checked, 0


def check_seed(seed: object, what: str = "A seed") -> int:
    """Return a seed, or what else it is, as it is.

    Raises:
        InputError: It is no whole number from 0 to 2**64 - 1.
    """
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or not 0 <= seed <= _WHOLE:
        raise InputError(f"{what} is a whole number from 0 to 2**64 - 1, got {seed!r}.")
    return int(seed)


def begin_keys(model: Model, seed: int | None = None, run: int = 0) -> StateEntry | None:
    """Return keys of a first run, for what a model draws from; None: it draws nothing.

    Args:
        model: Whose random operators.
        seed: Their seed; None: the process's next.
        run: The number of the first run.
    """
    names = find_keys(model.graph)
    if not names:
        return None
    start = draw_seed() if seed is None else seed
    spec = TensorSpec((2,), KEY_DTYPE)
    keys = [np.array([(start + index) & _WHOLE, run], KEY_DTYPE) for index in range(len(names))]
    rows = zip(names, keys, strict=True)
    return StateEntry(tuple([Carried((name,), spec, Fence.of(), array=key) for name, key in rows]), None)


def draw_seed() -> int:
    """Return the next seed: SplitMix64 of that of the process, or one of the system's."""
    global _drawn
    with _lock:
        if _seed is None:
            return secrets.randbits(64)
        _drawn += 1
        mixed = (_seed + _drawn * 0x9E3779B97F4A7C15) & _WHOLE
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _WHOLE
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _WHOLE
    return mixed ^ mixed >> 31
