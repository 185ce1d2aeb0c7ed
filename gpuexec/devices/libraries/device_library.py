"""The library protocol: DeviceLibrary, which plans problems, LibraryPlan, which solves one, and opening by name.

Both are called with their GPU current. A plan is asked for while a recording is made, by the library's own heuristics;
running it allocates nothing, waits for nothing, and may be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuexec.errors import DeviceNotFoundError, InputError
from gpuexec.ir.library_problem import Problem
from gpuexec.ir.provider import CUBLASLT, CUDNN

# The extra of this package that installs what a library is called through.
EXTRAS = {CUBLASLT: "cublas", CUDNN: "cudnn"}


class LibraryPlan(Protocol):
    """How a library solves a problem.

    ``calling`` says what is done, for messages.
    """

    calling: str

    def run(self, addresses: Sequence[int], stream: int) -> None:
        """Put the work on a stream.

        Args:
            addresses: Of a, b, c, bias, y and the workspace, as in `gpuexec.ir.command.LibraryCall`; 0: there is none.
            stream: The native handle.

        Raises:
            DeviceError: The library refuses it.
        """


class DeviceLibrary(Protocol):
    """A library that is loaded, with its handle on the GPU that was current then.

    ``version`` is the library's own.
    """

    name: str
    version: str

    def plan(self, problem: Problem, workspace_nbytes: int) -> LibraryPlan:
        """Return how it solves a problem with so many bytes of scratch memory.

        Raises:
            UnsupportedError: It has no kernel for it.
            DeviceError: It failed.
        """

    def close(self) -> None:
        """Release the handle and all plans."""


def load_library(name: str) -> DeviceLibrary:
    """Import what a library is called through, and open it on the GPU that is current.

    Raises:
        DeviceNotFoundError: It is not installed, or does not load; names the extra.
        InputError: There is no such library.
    """
    if name not in EXTRAS:
        raise InputError(f"There is no library {name!r}; expected one of {', '.join(map(repr, EXTRAS))}.")
    try:
        if name == CUBLASLT:
            from gpuexec.devices.libraries.cublaslt import CublasLtLibrary

            return CublasLtLibrary()
        from gpuexec.devices.libraries.cudnn import CudnnLibrary

        return CudnnLibrary()
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, DeviceNotFoundError):
            raise
        raise DeviceNotFoundError(
            f"The provider {name!r} can't be used: {error}. Run: pip install 'gpuexec[{EXTRAS[name]}]', or leave it out"
            " of providers."
        ) from error
