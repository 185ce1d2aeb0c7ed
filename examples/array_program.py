"""Array programs in plain NumPy around a trained net: pre- and post-processing that run where the net runs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from digits import Array, count_right, load_images, load_model

import gpuexec as gx

NET = load_model()


def read_digits(images: Any) -> dict[str, Any]:
    """Read pictures [batch, 8, 8] of bytes: the digits, how sure, and whose runner-up is close behind."""
    pictures = images.astype(np.float32)[:, np.newaxis]
    logits, _ = gx.fn.forward(NET, pictures)
    shifted = logits - np.max(logits, axis=-1, keepdims=True)
    odds = np.exp(shifted) / np.sum(np.exp(shifted), axis=-1, keepdims=True)
    best, places = gx.fn.top_k(odds, 2)
    return {"digits": places[:, 0], "odds": best[:, 0], "doubtful": np.flatnonzero(best[:, 1] > 0.25)}


def run(model: gx.Model, images: Array) -> gx.Outputs[Array]:
    """Return digits, odds and the doubtful ones."""
    with gx.Worker(model) as worker:
        return worker.run({"images": images})


def main() -> None:
    """Trace, run, save as ONNX, and run what was saved."""
    images, labels = load_images(360)
    images = images[:, 0].astype(np.uint8)
    program = gx.graph(read_digits, {"images": ("uint8", ("batch", 8, 8))})
    digits, odds, doubtful = run(program, images)
    print(f"traced: {count_right(np.eye(10)[digits], labels)}")
    print(f"{len(doubtful)} in doubt, the least sure at {odds.min():.2f}")
    with tempfile.TemporaryDirectory() as folder:
        program.save(Path(folder) / "read_digits.onnx")
        digits, *_ = run(gx.load(Path(folder) / "read_digits.onnx"), images)
    print(f"saved: {count_right(np.eye(10)[digits], labels)}")


if __name__ == "__main__":
    main()
