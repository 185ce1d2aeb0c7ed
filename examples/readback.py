"""Readback of results three ways: poll, await, block."""

from __future__ import annotations

import asyncio

from digits import Array, count_right, load_images, load_model

import gpuexec as gx


def poll(worker: gx.Worker, x: Array) -> Array:
    """Ask for the result, do other things until it is there, and take it without waiting."""
    request = worker.schedule(x).peek_output().readback_request()
    others = 0
    while not request.is_done():
        others += 1
    print(f"  did {others} other things meanwhile")
    return request.result()


async def wait_in_loop(worker: gx.Worker, x: Array) -> Array:
    """Await the result; the loop serves others meanwhile."""
    return await worker.schedule(x).peek_output().readback_and_clone_async()


def block(worker: gx.Worker, x: Array) -> Array:
    """Wait for the result."""
    return worker.schedule(x).peek_output().readback_and_clone()


def main() -> None:
    """Read the same result all three ways."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        print("polled:", count_right(poll(worker, images), labels))
        print("awaited:", count_right(asyncio.run(wait_in_loop(worker, images)), labels))
        print("blocked for:", count_right(block(worker, images), labels))


if __name__ == "__main__":
    main()
