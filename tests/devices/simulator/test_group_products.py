"""Products of groups of warps on the simulator: what they give, and mistakes that it finds in how they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import FindingsError, load_file
from gpuexec.devices.simulator.toolchain import Mode
from gpuexec.errors import KernelError

Array = np.ndarray[Any, Any]
SOURCE = Path(__file__).parent / "kernels" / "group_products.cu"
# In the order of the kernel's enum Mistake, with what is said of each; None: the sums are wrong.
MISTAKES = {
    "none": "",
    "no fence": "no fence.proxy.async stands behind",
    "no wait": "written before it was waited for",
    "read early": None,
    "torn row": "operands that begin at 16 numbers of a row",
}
NAMES = [f"multiply_slabs<{bug}>" for bug in range(len(MISTAKES))]


def lay(matrix: Array) -> Array:
    """Return rows of 64 halves, in the order of chunks of wgmma.cuh."""
    chunks = matrix.reshape(*matrix.shape[:-1], 8, 8)
    row = np.arange(matrix.shape[-2])[:, None]
    return np.ascontiguousarray(chunks[:, row, np.arange(8) ^ row % 8].reshape(matrix.shape))


def run(mode: Mode, bug: str) -> tuple[Array, Array]:
    """Return the sums of all threads, and what they are to be."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (2, 64, 64)).astype(np.float16) for _ in range(2))
    y = np.full((128, 32), np.nan, np.float32)
    function = load_file(SOURCE, NAMES, mode=mode)[NAMES[list(MISTAKES).index(bug)]]
    function.launch_arrays(1, 128, lay(a), lay(b), y, schedule=Schedule("random", 1))
    product = np.einsum("srk,sck->rc", a.astype(np.float32), b.astype(np.float32))
    thread, i = np.arange(128)[:, None], np.arange(32)
    rows = thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8
    return y, product[rows, i // 4 * 8 + thread % 4 * 2 + i % 2]


@pytest.mark.parametrize("mode", ["plain", "check"])
def test_two_slabs_are_multiplied(mode: Mode) -> None:
    y, expected = run(mode, "none")
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("bug", list(MISTAKES)[1:])
def test_mistakes_are_found_in_check_mode(bug: str) -> None:
    said = MISTAKES[bug]
    if said is None:
        y, expected = run("check", bug)
        assert (y != expected).any()
    else:
        with pytest.raises((KernelError, FindingsError), match=said):
            run("check", bug)
