"""Third-party operator packages: entry points by ONNX domain, imported when the domain is first used.

[project.entry-points."gpuexec.operators"]
"com.example" = "example_operators"
"""

from __future__ import annotations

import functools
from importlib import metadata

from gpuexec.errors import UnsupportedError

GROUP = "gpuexec.operators"


@functools.cache
def load_domain(domain: str) -> None:
    """Import the installed packages that announce operators of an ONNX domain, if there are any.

    Raises:
        UnsupportedError: One of them can't be imported.
    """
    for entry in metadata.entry_points(group=GROUP, name=domain):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.value
            raise UnsupportedError(
                f"Domain {domain!r}: {entry.value} of the package {package} can't be imported: {error!r}."
            ) from error
