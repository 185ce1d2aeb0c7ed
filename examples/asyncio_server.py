"""An asyncio server with dynamic batching: connections of one picture at a time, answered from runs that they share.

The Batcher joins what waits; nobody blocks the loop. `examples/fastapi_server.py` is the same over HTTP.
"""

from __future__ import annotations

import asyncio

import numpy as np
from digits import Array, count_right, load_images, load_model

import gpuexec as gx

LARGEST_BATCH = 64
PICTURE, SCORES = 8 * 8 * 4, 10 * 4  # bytes of a request and of its answer, floats


class DigitServer:
    """Answers pictures of [8, 8] with scores of [10], as often as a connection asks."""

    def __init__(self, batcher: gx.Batcher) -> None:
        self._batcher = batcher

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        try:
            while picture := await read_or_end(reader, PICTURE):
                answer = await self._batcher.run_async(np.frombuffer(picture, np.float32).reshape(1, 1, 8, 8))
                writer.write(answer["logits"].tobytes())
                await writer.drain()
        finally:
            writer.close()


async def read_or_end(reader: asyncio.StreamReader, nbytes: int) -> bytes:
    """Return so many bytes, or none where the connection ended."""
    try:
        return await reader.readexactly(nbytes)
    except asyncio.IncompleteReadError:
        return b""


async def ask(port: int, pictures: Array) -> Array:
    """Return the scores of pictures, asked for one after the other over one connection."""
    reader, writer = await asyncio.open_connection("localhost", port)
    scores = []
    for picture in pictures:
        writer.write(picture.tobytes())
        scores.append(np.frombuffer(await reader.readexactly(SCORES), np.float32))
    writer.close()
    return np.stack(scores)


async def serve_clients(worker: gx.Worker, pictures: Array, clients: int) -> Array:
    """Let several clients ask for parts of the pictures at once; return all scores."""
    async with gx.Batcher(worker, max_batch=LARGEST_BATCH, max_delay_ms=1) as batcher:
        server = await asyncio.start_server(DigitServer(batcher).serve, "localhost", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return np.concatenate(await asyncio.gather(*(ask(port, part) for part in np.split(pictures, clients))))


def main() -> None:
    """Serve 60 clients of six pictures each."""
    images, labels = load_images(360)
    # The range says how large batches get, so that one plan serves them all.
    model = load_model(dims={"batch": (1, LARGEST_BATCH)})
    with gx.Worker(model) as worker:
        scores = asyncio.run(serve_clients(worker, images, clients=60))
        report = worker.report()
        print(f"  360 pictures of 60 clients in {report.runs} runs, {report.plans} plans")
        print("served:", count_right(scores, labels))


if __name__ == "__main__":
    main()
