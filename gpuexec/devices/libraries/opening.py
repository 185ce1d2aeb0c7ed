"""Opening of libraries by the names of their providers."""

from __future__ import annotations

from gpuexec.devices.libraries.library import Library
from gpuexec.errors import DeviceNotFoundError, InputError
from gpuexec.ir.provider import CUBLASLT, CUDNN

# The extra of this package that installs what a library is called through.
EXTRAS = {CUBLASLT: "cublas", CUDNN: "cudnn"}


def load_library(name: str) -> Library:
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
