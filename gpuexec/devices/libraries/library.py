"""The library protocol: Library, which plans problems, and LibraryPlan, which solves one.

Both are called with their GPU current. A plan is asked for while a recording is made, by the library's own heuristics;
running it allocates nothing, waits for nothing, and may be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpuexec.ir.library_problem import Problem


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


class Library(Protocol):
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
