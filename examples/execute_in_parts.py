"""Execution in parts: a few layers at a time are put on the stream, with other work in between."""

from __future__ import annotations

from digits import Array, count_right, load_images, load_model

import gpuexec as gx


def execute_in_parts(worker: gx.Worker, x: Array, sync_every_nth_layer: int = 5) -> gx.Tensor:
    """Schedule a run layer by layer, waiting for the device after every nth; return its first output."""
    for step in worker.schedule_iterable(x):
        if not step.waiting and (step.index + 1) % sync_every_nth_layer == 0:
            worker.wait_for_completion()
            print(f"  {worker.schedule_progress:4.0%} scheduled, up to {step.nodes[0]}")
    return worker.peek_output()


def main() -> None:
    """Run the net in parts of five layers."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        y = execute_in_parts(worker, images, sync_every_nth_layer=5)
        print("in parts:", count_right(y.readback_and_clone(), labels))


if __name__ == "__main__":
    main()
