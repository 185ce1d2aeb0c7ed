"""Ceilings of a GPU: what libraries reach in copies and in large matrix products, by dtype."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.bench.gpu_contenders import Budget, Contender, Turns, noting, open_torch, take_turns
from tests.bench.measure import percentile
from tests.bench.tables import Figures

COLUMNS = ("what", "by", "size", "p50 (ms)", "p10", "p90", "reached", "unit")
COPY, PRODUCT = "copy", "product fp32"


def measure_ceilings(turns: Turns, budget: Budget, *, megabytes: int = 1024, extent: int = 8192) -> list[Figures]:
    """Measure what each library that is here reaches.

    Args:
        turns: Of each.
        budget: Seconds to use.
        megabytes: Of the copies.
        extent: Of the square products.
    """
    figures = Figures("Ceilings", COLUMNS)
    ways = {"torch": _open_torch_ways, "cupy": _open_cupy_ways, "triton": _open_triton_ways, "jax": _open_jax_ways}
    for by, open_ways in ways.items():
        with noting(by, figures.notes):
            for what, contender in open_ways(megabytes, extent):
                _measure(figures, what, by, contender, turns, budget, megabytes, extent)
    figures.notes.append(
        "Copies count bytes read and written. Products are of random numbers. Three in a row each turn."
    )
    return [figures]


def read_ceilings(tables: list[dict[str, Any]]) -> dict[str, float]:
    """Return the best GB/s of a copy and TFLOP/s of each product, by what was measured, from tables as JSON."""
    best: dict[str, float] = {}
    for table in tables:
        if table["title"] == "Ceilings":
            for row in table["rows"]:
                best[row["what"]] = max(best.get(row["what"], 0.0), row["reached"])
    return best


def _measure(
    figures: Figures,
    what: str,
    by: str,
    contender: Contender,
    turns: Turns,
    budget: Budget,
    megabytes: int,
    extent: int,
) -> None:
    taken = take_turns([contender], Turns(turns.count, 0, 3), budget)[contender.name].in_a_row
    p50, p10, p90 = (percentile(taken, share) for share in (0.5, 0.1, 0.9))
    if what == COPY:
        figures.add(what, by, f"{megabytes} MiB", p50, p10, p90, 2 * megabytes * 2**20 / p50 / 1e6, "GB/s")
    else:
        figures.add(what, by, f"{extent} cubed", p50, p10, p90, 2 * extent**3 / p50 / 1e9, "TFLOP/s")


def _make(submit: Callable[[], object], wait: Callable[[], object]) -> Contender:
    return Contender("measured", submit, wait, lambda: np.zeros(0))


def _open_torch_ways(megabytes: int, extent: int) -> Iterator[tuple[str, Contender]]:
    torch = open_torch()
    wait = torch.cuda.synchronize
    source = torch.randn(megabytes << 18, device="cuda")
    target = torch.empty_like(source)
    yield COPY, _make(lambda: target.copy_(source), wait)
    dtypes = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    for name, dtype in dtypes.items():
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        a, b = (torch.randn(extent, extent, device="cuda", dtype=dtype) for _ in range(2))
        c = torch.empty_like(a)
        yield f"product {name}", _make(lambda a=a, b=b, c=c: torch.matmul(a, b, out=c), wait)  # type: ignore[misc]


def _open_cupy_ways(megabytes: int, extent: int) -> Iterator[tuple[str, Contender]]:
    cupy = importlib.import_module("cupy")
    wait = cupy.cuda.runtime.deviceSynchronize
    source = cupy.random.standard_normal(megabytes << 18, dtype=np.float32)
    target = cupy.empty_like(source)
    yield COPY, _make(lambda: cupy.copyto(target, source), wait)
    a = cupy.random.standard_normal((extent, extent), dtype=np.float32)
    yield PRODUCT, _make(lambda: cupy.matmul(a, a), wait)


def _open_triton_ways(megabytes: int, extent: int) -> Iterator[tuple[str, Contender]]:
    copy = importlib.import_module("tests.bench.triton_copy").copy
    torch = open_torch()
    source = torch.randn(megabytes << 18, device="cuda")
    target = torch.empty_like(source)
    yield COPY, _make(lambda: copy(source, target), torch.cuda.synchronize)


def _open_jax_ways(megabytes: int, extent: int) -> Iterator[tuple[str, Contender]]:
    # It would take three quarters of the GPU's memory.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    jax = importlib.import_module("jax")
    if jax.default_backend() != "gpu":
        raise ImportError(f"its backend is {jax.default_backend()}")
    kinds = {"fp32": ("float32", "highest"), "tf32": ("float32", "default"), "bf16": ("bfloat16", None)}
    for name, (dtype, precision) in kinds.items():
        a = jax.random.normal(jax.random.key(0), (extent, extent), dtype)
        multiply = jax.jit(lambda x, y, precision=precision: jax.numpy.matmul(x, y, precision=precision))
        held = [multiply(a, a)]

        def submit(multiply: Any = multiply, a: Any = a, held: list[Any] = held) -> None:
            held[0] = multiply(a, a)

        yield f"product {name}", _make(submit, lambda held=held: held[0].block_until_ready())  # type: ignore[misc]
