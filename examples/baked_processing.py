"""Pre- and post-processing baked into a model, which is saved as ONNX, and run with weights from another file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from digits import Array, load_images, load_model

import gpuexec as gx


def bake() -> gx.Model:
    """Return the net with scans of bytes, 8 x 8 of 0 to 255, in front, and the digit itself as what comes out."""
    before = gx.graph(lambda scan: scan.astype(np.float32) / 15, {"scan": ("uint8", ("n", 1, 8, 8))})
    after = gx.graph(lambda scores: scores.argmax(axis=1), {"scores": ("float32", ("n", 10))})
    net = load_model().keep_outputs(["logits"])
    return net.prepend(before).append(after)


def main() -> None:
    """Read scans by the model, by its file, and by a Worker that changes its weights between runs."""
    images, labels = load_images(360)
    scans = (15 * images).astype(np.uint8)
    model = bake()
    with gx.Worker(model) as worker:
        print_accuracy("baked in", worker.run(scans)[0], labels)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.onnx"
        model.save(path)
        with gx.Worker(gx.load(path)) as worker:
            print_accuracy("from the file", worker.run(scans)[0], labels)

        # Weights by the names they have in the file; here all that are floats, first lost, then found again.
        weights: dict[str, Any] = {
            name: data for name, data in gx.NamedDataMap.load(path).items() if data.dtype == np.float32
        }
        np.savez(Path(folder) / "weights.npz", **weights)
        lost = model.with_weights({name: np.zeros_like(data) for name, data in weights.items()})
        with gx.Worker(lost) as worker:
            worker.run(scans)
            worker.replace_weights(Path(folder) / "weights.npz")
            print_accuracy("with weights exchanged", worker.run(scans)[0], labels)


def print_accuracy(way: str, digits: object, labels: Array) -> None:
    """Print how many digits were read right."""
    print(f"{way}: {int(np.sum(np.asarray(digits) == labels))} of {len(labels)} digits read right")


if __name__ == "__main__":
    main()
