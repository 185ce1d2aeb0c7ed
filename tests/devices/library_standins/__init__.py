"""Stand-ins for nvmath-python and cuDNN's frontend, as far as gpuexec calls them, over the stand-in for CUDA.

Each function has the parameters that it has in the library, under their names, so a call that does not fit fails; they
were copied from nvmath-python 1.0 and nvidia-cudnn-frontend 1.32, and `tests/devices/libraries/test_signatures.py`
compares them where these are installed. What they compute, they compute with NumPy from what they were told, when the
stream gets there. They have no kernels, so nothing here says how fast a library is, or that it takes what it is told.
"""

from tests.devices.library_standins.installing import install_libraries

__all__ = ["install_libraries"]
