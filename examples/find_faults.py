"""Debugging of results: statistics of layers, the first NaN, and each layer's gap from NumPy's."""

from __future__ import annotations

import numpy as np
from digits import count_right, load_images, load_model

import gpuexec as gx


def main() -> None:
    """Watch a net read digits, spoil one image, and measure the layers."""
    images, labels = load_images(360)
    model = load_model()
    with gx.Worker(model, watch="report") as worker:
        layer = model.graph.nodes[0].name
        worker.tap({layer: ["mean", "std", "absmax"]})
        run = worker.schedule(images)
        print("watched:", count_right(run.peek_output().readback_and_clone(), labels))
        for row in run.inspection.statistics().values():
            print(f"  {row}")
        print(f"  made a NaN: {run.inspection.find_nonfinite() is not None}")
        spoilt = images.copy()
        spoilt[7, 0, 3, 3] = np.nan
        print(f"  {worker.schedule(spoilt).inspection.find_nonfinite()}")
    worst = gx.measure_gap(model, images[:4]).worst()[0]
    print(f"  furthest from NumPy: {worst.operator} {worst.node!r}, {worst.alone}")


if __name__ == "__main__":
    main()
