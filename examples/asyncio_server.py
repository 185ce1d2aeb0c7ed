"""An asyncio server with dynamic batching: requests of one picture each, run together as they arrive.

Nobody blocks the loop: the server awaits its answers, and collects the next batch while the device is busy.
"""

from __future__ import annotations

import asyncio

import numpy as np
from digits import Array, count_right, load_images, load_model

import gpuexec as gx

LARGEST_BATCH = 64
Request = tuple[Array, "asyncio.Future[Array]"]


class DigitServer:
    """Answers pictures of [1, 8, 8] with scores of [10]."""

    def __init__(self, worker: gx.Worker) -> None:
        self._worker = worker
        self._waiting: asyncio.Queue[Request] = asyncio.Queue()
        self.batches = 0

    async def ask(self, picture: Array) -> Array:
        """Return the scores of one picture, once its batch is through."""
        answer: asyncio.Future[Array] = asyncio.get_running_loop().create_future()
        await self._waiting.put((picture, answer))
        return await answer

    async def serve(self) -> None:
        """Take what is there, run it, tell everybody; until cancelled."""
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < LARGEST_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            self._worker.schedule(np.stack([picture for picture, _ in batch]))
            try:
                scores = await self._worker.peek_output().readback_and_clone_async()
            except gx.GpuexecError as error:
                for _, answer in batch:
                    answer.set_exception(error)
                continue
            self.batches += 1
            for (_, answer), row in zip(batch, scores, strict=True):
                answer.set_result(row)


async def serve_clients(worker: gx.Worker, pictures: Array) -> tuple[Array, int]:
    """Let one client for each picture ask at once; return their scores, and how many batches it took."""
    server = DigitServer(worker)
    serving = asyncio.create_task(server.serve())
    scores = await asyncio.gather(*(server.ask(picture) for picture in pictures))
    serving.cancel()
    return np.stack(scores), server.batches


def main() -> None:
    """Serve 360 clients."""
    images, labels = load_images(360)
    # The bound says how large batches get, so that one plan serves them all.
    model = load_model(dims={"batch": (1, LARGEST_BATCH)})
    with gx.Worker(model) as worker:
        scores, batches = asyncio.run(serve_clients(worker, images))
        print(f"  360 clients in {batches} batches, {worker.report().plans} plan")
        print("served:", count_right(scores, labels))


if __name__ == "__main__":
    main()
