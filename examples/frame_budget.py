"""A time budget for every frame: as many layers of the net are scheduled as fit."""

from __future__ import annotations

from digits import count_right, load_images, load_model

import gpuexec as gx

BUDGET_MS = 0.5


def main() -> None:
    """Run the net three times beside a loop of frames: layers are timed as they run, and later frames are packed."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        for attempt in range(3):
            frames = 0
            for step in worker.schedule_iterable(images, budget_ms=BUDGET_MS):
                frames += not step.waiting  # here a game would draw
            print(f"  run {attempt}: {frames} frames")
        print("within the budget:", count_right(worker.read_output(), labels))


if __name__ == "__main__":
    main()
