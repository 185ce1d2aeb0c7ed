"""Detection on the frames of a video at a steady rate: the loop never waits, and drops what it has no time for."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from digits import Array

import gpuexec as gx

FRAMES, HEIGHT, WIDTH, BALL = 60, 96, 128, 8
RATE_HZ, IN_FLIGHT = 120, 2


@dataclass
class Played:
    """Corners ``(top, left, bottom, right)`` by frame, the frames left out, and how late each answer was seen."""

    boxes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)


def make_video(path: Path) -> list[tuple[int, ...]]:
    """Write a video, ``[frames, height, width, 3]`` of uint8, with a bright ball in noise; return where it is."""
    video = np.random.default_rng(5).integers(0, 90, (FRAMES, HEIGHT, WIDTH, 3), np.uint8)
    corners = [(4 * (n % 20), 4 * (n % 28)) for n in range(FRAMES)]
    for frame, (top, left) in zip(video, corners, strict=True):
        frame[top : top + BALL, left : left + BALL] += 120
    np.save(path, video)
    return [(top, left, top + BALL, left + BALL) for top, left in corners]


def trace_detector() -> gx.Model:
    """Return ``frame`` uint8 [height, width, 3] -> ``box`` int64 [4], the brightest square on a raster of 4 pixels."""

    def detect(frame: gx.SymbolicArray) -> dict[str, gx.SymbolicArray]:
        grey = frame.astype(np.float32).mean(axis=2)[None, None]
        heat = gx.fn.avg_pool(grey, BALL, stride=4)[0, 0]
        place = gx.fn.argmax(heat.reshape(-1), 0)
        top, left = 4 * (place // ((WIDTH - BALL) // 4 + 1)), 4 * (place % ((WIDTH - BALL) // 4 + 1))
        return {"box": gx.fn.stack([top, left, top + BALL, left + BALL])}

    return gx.graph(detect, {"frame": ("uint8", (HEIGHT, WIDTH, 3))})


def play(
    worker: gx.Worker,
    video: Array,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> Played:
    """Detect as the frames come, ``RATE_HZ`` a second. Nothing here waits for the device but for the last answers."""
    played, start = Played(), clock()
    waiting: dict[int, gx.ReadbackRequest] = {}

    def take_answers() -> None:
        for number in [number for number, request in waiting.items() if request.is_done()]:
            played.boxes[number] = tuple(waiting.pop(number).result().tolist())
            played.late_ms.append((clock() - start - number / RATE_HZ) * 1e3)

    for number, frame in enumerate(video):
        while (early_s := start + number / RATE_HZ - clock()) > 0:  # here others would draw, or read the camera
            sleep(min(early_s, 1e-3))
            take_answers()
        take_answers()
        # A frame is left out whose time is over, or that would stand behind others.
        if -early_s > 1 / RATE_HZ or len(waiting) == IN_FLIGHT:
            played.dropped.append(number)
            continue
        worker.schedule(frame)
        waiting[number] = worker.peek_output().readback_request()
    while waiting:
        next(iter(waiting.values())).wait()
        take_answers()
    return played


def main() -> None:
    """Play a video from its file, which is mapped and read frame by frame."""
    with tempfile.TemporaryDirectory() as folder, gx.Worker(trace_detector(), frames=IN_FLIGHT) as worker:
        path = Path(folder) / "video.npy"
        corners = make_video(path)
        worker.prepare((HEIGHT, WIDTH, 3))
        played = play(worker, np.load(path, mmap_mode="r"))
    p50, worst = np.percentile(played.late_ms, [50, 100])
    print(
        f"  {len(played.boxes)} frames, {len(played.dropped)} dropped; answers after {p50:.1f} ms, at most {worst:.1f}"
    )
    print(f"ball found: {0 in played.boxes and all(box == corners[number] for number, box in played.boxes.items())}")
    print(f"every frame answered or dropped: {sorted([*played.boxes, *played.dropped]) == [*range(FRAMES)]}")


if __name__ == "__main__":
    main()
