"""Basic execution: one input as it is, or inputs by name."""

from __future__ import annotations

from digits import count_right, load_images, load_model

import gpuexec as gx


def main() -> None:
    """Run the net both ways."""
    images, labels = load_images(360)
    model = load_model()
    with gx.Worker(model) as worker:
        print(f"on {worker.backend_type.name}: {worker.backend_reason}")

        # One input: nothing waits until the answer is asked for.
        worker.schedule(images)
        print("one input:", count_right(worker.peek_output().readback_and_clone(), labels))

        # Inputs by name; outputs by name too.
        worker.schedule({"image": images})
        print("by name:", count_right(worker.peek_output("probabilities").readback_and_clone(), labels))

        # The short way: blocks, and gives NumPy arrays.
        logits, _ = worker.run(images)
        print("blocking:", count_right(logits, labels))


if __name__ == "__main__":
    main()
