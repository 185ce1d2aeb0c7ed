"""Profiling: time by layer and operator of a net, and a trace for Perfetto."""

from __future__ import annotations

import tempfile
from pathlib import Path

from digits import count_right, load_images, load_model

import gpuexec as gx

RUNS = 20


def main() -> None:
    """Run the net under a profiler, print what its operators and slowest layer take, and write a trace."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        worker.run(images)  # the first run plans and compiles
        with gx.Profiler() as profiler:
            for _ in range(RUNS):
                worker.run(images)
        print("profiled:", count_right(worker.read_output(), labels))
    profiler.table("operator")
    slowest = profiler.summarise()[0]
    print(f"  {slowest.name} takes {slowest.p50_ms:.3f} ms of {sum(each.p50_ms for each in profiler.summarise()):.3f}")
    print(f"  the host waited without having been asked to {profiler.count_syncs()} times")
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.save_chrome_trace(trace)
        print(f"  {trace.stat().st_size} bytes of trace, to be opened at ui.perfetto.dev")


if __name__ == "__main__":
    main()
