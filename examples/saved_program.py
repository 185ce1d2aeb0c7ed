"""A program file: built once with weights, plans and a test case, then run without the model."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from digits import HERE, count_right, load_images, load_model

import gpuexec as gx


def main() -> None:
    """Save the net, let the file verify itself, and run it the easy way."""
    images, labels = load_images(360)
    with tempfile.TemporaryDirectory() as folder:
        path, case = Path(folder) / "digits.gxp", Path(folder) / "case.npz"
        np.savez(case, image=images[:8])

        # From a terminal: gpuexec compile digits.onnx -o digits.gxp --dim batch=1..360 --case case.npz
        model = HERE / "models" / "digits.onnx"
        gpuexec("compile", str(model), "-o", str(path), "--dim", "batch=1..360", "--case", str(case))
        gpuexec("verify", str(path), "--backend", "cpu")

        # Module is the easy form: nothing is loaded before it is needed.
        with gx.Module(path) as module:
            logits = module.forward(images)[0]
        print("from the file:", count_right(logits, labels))

        with gx.Worker(load_model()) as worker:
            print("from the model:", count_right(worker.run(images)[0], labels))


def gpuexec(*arguments: str) -> None:
    """Run the command line and show what it says."""
    said = subprocess.run([sys.executable, "-m", "gpuexec", *arguments], capture_output=True, text=True, check=True)
    print("".join(f"  {line}\n" for line in said.stdout.splitlines()), end="")


if __name__ == "__main__":
    main()
