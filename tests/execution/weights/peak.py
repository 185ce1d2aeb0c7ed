"""Peak host memory of loading a model and uploading its weights, printed as one line.

The device writes down and holds no bytes, so all that is resident is the host's own. Run by test_host_memory.py.

    python -m tests.execution.weights.peak MODEL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpuexec as gx
from gpuexec.devices.backend import Backend
from gpuexec.devices.recorder.tracer import TracerDevice
from tests.execution.weights.models import SIDE, make_chain


def read_status() -> dict[str, int]:
    """Return the bytes resident now (VmRSS), and the most there were (VmHWM)."""
    rows = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if row and row[0] in ("VmRSS:", "VmHWM:")}


def main(path: str) -> None:
    """Print ``{"extra": bytes, "uploaded": bytes}``."""
    backend = Backend(TracerDevice(is_writing=False), gx.BackendType.GPU_COMPUTE, "a test")
    seen: list[gx.Progress] = []
    with gx.Worker(gx.load(make_chain(2)), backend=backend) as worker:  # what any first run loads and makes
        worker.prepare({"x": (1, SIDE)})
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    before = read_status()["VmRSS"]
    if path.endswith(".gxp"):
        method = gx.Program.load(path, backend=backend).load_method("forward", progress=seen.append)
        method.close()
    else:
        with gx.Worker(gx.load(path), backend=backend, progress=seen.append) as worker:
            worker.prepare()
    print(json.dumps({"extra": read_status()["VmHWM"] - before, "uploaded": seen[-1].done_nbytes}))


if __name__ == "__main__":
    main(sys.argv[1])
