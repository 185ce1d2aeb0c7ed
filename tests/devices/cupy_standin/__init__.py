"""Stand-in for CuPy and ``cuda.bindings.driver``, as far as gpuexec calls them, over another device.

So the code for real GPUs runs, with its handles, addresses and statuses, where there is no GPU. What is under it
answers through gpuexec's own device protocol only. Statuses are CUDA's; a handle is an int, as there. The parameters of
graph nodes are the real classes of cuda.bindings, and a graph runs in a random order that its edges allow.
"""

from tests.devices.cuda_wheels import require

require()  # whoever imports the stand-in is skipped without the wheels

from tests.devices.cupy_standin.standin import Standin, install  # noqa: E402

__all__ = ["Standin", "install"]
