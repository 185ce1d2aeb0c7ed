"""10,000 pictures through four actors of Ray Data, each with a Worker of its own, in the order of the dataset.

    pip install "gpuexec[ray]"
    python examples/ray_batch.py

On a cluster with four GPUs or more each actor has one; else they run on the CPU. Ray shows how far they are.
"""

from __future__ import annotations

import os
import time

import ray
from digits import HERE, Array, load_images

from gpuexec.compat.ray import Predictor

PICTURES, ACTORS = 10_000, 4


def load_pictures(batch: dict[str, Array]) -> dict[str, Array]:
    """Return pictures and digits of these rows; stands for files that would be read here."""
    images, labels = load_images(360)
    number = batch["id"] % len(images)
    return {"id": batch["id"], "image": images[number], "label": labels[number]}


def main() -> None:
    """Read the digits, and print how long it took, and whether they are in order and read right."""
    if not ray.is_initialized():
        ray.init(num_cpus=max(2 * ACTORS, os.cpu_count() or 1))
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    dataset = ray.data.range(PICTURES, override_num_blocks=4 * ACTORS).map_batches(load_pictures)
    has_gpus = ray.cluster_resources().get("GPU", 0) >= ACTORS
    read = dataset.map_batches(
        Predictor,
        fn_constructor_args=[HERE / "models" / "digits.onnx"],  # every node has it; else ray.put(gpuexec.load(path))
        batch_size=256,
        num_gpus=1 if has_gpus else None,
        compute=ray.data.ActorPoolStrategy(size=ACTORS),
    )
    start = time.perf_counter()
    rows = read.take_all()
    seconds = time.perf_counter() - start
    right = sum(int(row["logits"].argmax()) == row["label"] for row in rows)
    print(f"{len(rows)} pictures in {seconds:.1f} s, starting {ACTORS} actors included")
    print(f"in order: {[row['id'] for row in rows] == [*range(PICTURES)]}")
    print(f"read right: {right >= 0.97 * PICTURES}")


if __name__ == "__main__":
    main()
