"""Benchmark of many callers in one process: a Batcher over our Worker, the same over onnxruntime, onnxruntime alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import gpuexec as gx
from gpuexec.model.outputs import Outputs
from tests.bench.cpu_models import open_onnxruntime
from tests.bench.measure import percentile
from tests.bench.tables import Figures, beside

Array = np.ndarray[Any, Any]
Ask = Callable[[Array], Awaitable[Any]]
DIGITS = Path(__file__).parents[2] / "examples" / "models" / "digits.onnx"
VIT = "arch/vit__d18.onnx"
CLIENTS, LARGEST_BATCH, BOUND = 64, 32, 0.9
_COLUMNS = ("model", "batched", "ort batched", "ort alone", "batched / ort batched", "batched / ort alone", "bound", "")
# Answers to each client in a turn.
QUESTIONS = {"digits": 40, "vit": 10}
_PAUSE_S = 0.06  # idle threads of onnxruntime and OpenBLAS spin for as long


class OnnxruntimeWorker(gx.Worker):
    """A Worker that has onnxruntime compute its runs, so that a Batcher joins requests for that."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, backend=gx.BackendType.CPU)
        self._run = open_onnxruntime(path.read_bytes(), 1)

    def run(self, inputs: Any = None, **_: Any) -> Outputs[Any]:
        """Run by onnxruntime."""
        names = [port.name for port in self.model.outputs]
        return Outputs(dict(zip(names, self._run(inputs))))


def measure_batching(folder: Path | None, repeats: int) -> list[Figures]:
    """Measure answers a second to 64 tasks that ask one row after another, by turns."""
    figures = Figures(f"Answers a second to {CLIENTS} clients in one process", _COLUMNS)
    paths = {"digits": DIGITS} | ({} if folder is None else {"vit": folder / VIT})
    for name, path in paths.items():
        asyncio.run(_measure_model(figures, name, path, max(3, repeats // 4)))
    if folder is None:
        figures.notes.append("Not measured: vit, since GPUEXEC_MODELS names no folder with " + VIT + ".")
    figures.notes.append(
        f"Medians of turns, and of their ratios. Batched: a Batcher of up to {LARGEST_BATCH} rows, over our Worker or"
        " onnxruntime's session with one thread. Alone: that session with a row a call, from as many threads as cores."
    )
    return [figures]


async def _measure_model(figures: Figures, name: str, path: Path, turns: int) -> None:
    session = open_onnxruntime(path.read_bytes(), 1)
    loop = asyncio.get_running_loop()
    with gx.Worker(path, backend=gx.BackendType.CPU) as ours, OnnxruntimeWorker(path) as theirs:
        port = ours.model.inputs[0]
        rows = np.random.default_rng(0).random((CLIENTS, 1, *(port.spec.dims or ())[1:]), np.float32)  # type: ignore[arg-type]
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            async with (
                gx.Batcher(ours, max_batch=LARGEST_BATCH) as batcher,
                gx.Batcher(theirs, max_batch=LARGEST_BATCH) as other,
            ):
                ways: dict[str, Ask] = {
                    "batched": batcher.run_async,
                    "ort batched": other.run_async,
                    "ort alone": lambda row: loop.run_in_executor(threads, session, {port.name: row}),
                }
                samples: dict[str, list[float]] = {way: [] for way in ways}
                for turn in range(turns + 1):
                    for way, ask in ways.items():
                        time.sleep(_PAUSE_S)
                        rate = await count_answers(ask, rows, QUESTIONS[name])
                        if turn:  # the first plans
                            samples[way].append(rate)
    found = {way: percentile(rates, 0.5) for way, rates in samples.items()}
    ratio, alone = (
        percentile([ours / theirs for ours, theirs in zip(samples["batched"], samples[way])], 0.5)
        for way in ("ort batched", "ort alone")
    )
    figures.add(name, *found.values(), ratio, alone, BOUND, beside(-ratio, -BOUND))


async def count_answers(ask: Ask, rows: Array, questions: int) -> float:
    """Return how many answers a second tasks get that ask each for a row of theirs, so many times in a row."""

    async def be_client(row: Array) -> None:
        for _ in range(questions):
            await ask(row)

    start = time.perf_counter()
    await asyncio.gather(*map(be_client, rows))
    return len(rows) * questions / (time.perf_counter() - start)
