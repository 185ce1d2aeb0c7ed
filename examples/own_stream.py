"""Foreign streams: CuPy and torch make the input and take the result, without a host wait.

Without a GPU the same is shown on the simulator, whose streams run as asynchronously.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from digits import Array, count_right, load_images, load_model

import gpuexec as gx
from gpuexec.devices.backend import open_backend


def run_with_cupy(worker: gx.Worker, images: Array) -> Array:
    """Make the pictures on a CuPy stream, run in its order, and go on with the result there."""
    import cupy

    with cupy.cuda.Stream(non_blocking=True) as stream:
        x = cupy.asarray(images * 2) / 2
        worker.schedule(x, stream=stream)
        shares = cupy.exp(cupy.asarray(worker.peek_output("logits")))
        shares /= shares.sum(axis=1, keepdims=True)
        return np.asarray(cupy.asnumpy(shares))  # the one wait


def run_with_torch(worker: gx.Worker, images: Array) -> Array:
    """Do the same with torch."""
    import torch

    with torch.cuda.stream(torch.cuda.Stream()):
        x = torch.from_numpy(images * 2).cuda() / 2
        worker.schedule(x, stream=torch.cuda.current_stream())
        shares = torch.softmax(torch.from_dlpack(worker.peek_output("logits")), dim=1)
        return np.asarray(shares.cpu())


def run_on_simulator(images: Array) -> Array:
    """Put copies and a run on one stream of the simulator's, in order."""
    backend = open_backend(gx.BackendType.SIMULATOR)
    stream = backend.device.create_stream()
    with gx.Worker(load_model(), backend=backend) as worker:
        worker.schedule(images, stream=stream)
        y = worker.peek_output("logits")
        staging = backend.device.allocate_pinned(y.nbytes)
        assert staging.array is not None
        # What is put on the stream now comes after the run.
        stream.copy_to_host(staging.array, y.__cuda_array_interface__["data"][0])
        stream.synchronize()
        return staging.array.view(np.float32).reshape(y.shape).copy()


def main() -> None:
    """Run the net among other work, with what is here."""
    images, labels = load_images(360)
    with gx.Worker(load_model()) as worker:
        if worker.backend_type is gx.BackendType.GPU_COMPUTE:
            print("in a CuPy stream:", count_right(run_with_cupy(worker, images), labels))
            if find_spec("torch") is not None:
                print("in a torch stream:", count_right(run_with_torch(worker, images), labels))
            return
        print(f"  no GPU ({worker.backend_reason})")
    print("in a simulated stream:", count_right(run_on_simulator(images), labels))


if __name__ == "__main__":
    main()
