"""Launch costs of the host, by launch path: the figures that decide between launches and a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LaunchCosts:
    """Upper bounds of the host's microseconds for each part of a submission.

    Attributes:
        stream_us: A submission as a stream of launches, of any content.
        launch_us: One command of such a submission.
        graph_us: A submission as a graph that is up to date.
        patch_us: Update of one node of a graph.
        node_us: Creation of one node of a graph.
    """

    stream_us: float
    launch_us: float
    graph_us: float
    patch_us: float
    node_us: float = 10.0

    def find_worth(self, commands: int) -> float:
        """Return the number of patched nodes up to which a graph costs less than launches; below 0: never."""
        return (self.stream_us + self.launch_us * commands - self.graph_us) / self.patch_us


# A GPU, by launch path. The Python part was measured with CuPy 14.2 and cuda-bindings 13.5 over a driver whose calls
# return at once (CPython 3.11, x86-64, best of 60): 0.4 us a packed launch within a submission, of which CuPy's call is
# 0.3; 3.4 us of arrays for RawKernel, to which CuPy adds up to 7 to take them apart; 1.3 us a graph launch; 1.2 us a
# node update; a dependent launch takes 0.5 us more than a packed one. Each submission, in either form, adds at most 5
# us before that. The driver's part is estimated until tests/bench/run_gpu.py has measured it: 2.5 us a launch, 4 us a
# graph launch, 1.5 us a node update, its upload included, and 1 us to make the GPU current and to restore the one
# before.
PACKED_COSTS = LaunchCosts(stream_us=6.0, launch_us=3.0, graph_us=12.0, patch_us=3.0)
RAW_KERNEL_COSTS = LaunchCosts(stream_us=6.0, launch_us=13.0, graph_us=12.0, patch_us=3.0)
