"""ONNX Runtime code on gpuexec: only the import differs."""

from __future__ import annotations

import asyncio
from typing import Any

from digits import HERE, Array, count_right, load_images

import gpuexec.compat.onnxruntime as ort  # was: import onnxruntime as ort


def run(session: ort.InferenceSession, x: Array) -> Array:
    """Run and wait."""
    (logits,) = session.run(["logits"], {"image": x})
    return logits


def run_bound(session: ort.InferenceSession, x: Array) -> Array:
    """Leave the output on the device until it is wanted."""
    binding = session.io_binding()
    binding.bind_cpu_input("image", x)
    binding.bind_output("logits", *find_device(session))
    session.run_with_iobinding(binding)
    (logits,) = binding.copy_outputs_to_cpu()
    return logits


async def run_in_loop(session: ort.InferenceSession, x: Array) -> Array:
    """Run without blocking the loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def set_future(outputs: list[Array], _: object, error: str) -> None:
        if error:
            loop.call_soon_threadsafe(done.set_exception, RuntimeError(error))
        else:
            loop.call_soon_threadsafe(done.set_result, outputs)

    session.run_async(["logits"], {"image": x}, set_future, None)
    (logits,) = await done
    return logits  # type: ignore[no-any-return]


def find_device(session: ort.InferenceSession) -> tuple[str, int]:
    """Return name and ordinal of the device a session runs on."""
    return ("cuda" if "CUDAExecutionProvider" in session.get_providers() else "cpu"), 0


def main() -> None:
    """Read the digits three ways."""
    images, labels = load_images(360)
    session = ort.InferenceSession(HERE / "models" / "digits.onnx", providers=ort.get_available_providers())
    for arg in session.get_inputs():
        print(" ", arg)
    print("run:", count_right(run(session, images), labels))
    print("bound:", count_right(run_bound(session, images), labels))
    print("in a loop:", count_right(asyncio.run(run_in_loop(session, images)), labels))


if __name__ == "__main__":
    main()
