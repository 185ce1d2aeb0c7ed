"""Manual scheduling beside a frame loop: one layer a frame, printed every 4 frames."""

from __future__ import annotations

from digits import count_right, load_images, load_model

import gpuexec as gx

FRAMES_PER_LINE = 4


def main() -> None:
    """Draw frames; in each of them, let the net go one layer on."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        schedule = worker.schedule_iterable(images)
        frame, has_more = 0, True
        while has_more:
            frame += 1  # here a game would draw
            has_more = next(schedule, None) is not None
            if frame % FRAMES_PER_LINE == 0:
                print(f"  frame {frame}: {worker.schedule_progress:4.0%} scheduled")
        request = worker.peek_output().readback_request()
        while not request.is_done():
            frame += 1
        print("frame by frame:", count_right(request.result(), labels))


if __name__ == "__main__":
    main()
