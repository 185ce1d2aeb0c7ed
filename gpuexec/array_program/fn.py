"""Functions of array programs under NumPy's names and those of network layers: `gpuexec.fn`.

Arrays may be symbolic, NumPy's, numbers or nests of them; results are symbolic. dtypes are NumPy's, with Python scalars
weak. The modules of this package list these functions in ``__all__``; the functional methods of Sentis are mapped to
them in `methods`.
"""

# ruff: noqa: F403
from __future__ import annotations

from numpy import e, inf, nan, newaxis, pi

from gpuexec.array_program import (
    activations,
    assigning,
    control,
    creation,
    drawing,
    elementwise,
    finding,
    ignoring,
    indexing,
    joining,
    network,
    normalizing,
    norms,
    products,
    reducing,
    sampling,
    selecting,
    shaping,
    signal,
)
from gpuexec.array_program.activations import *
from gpuexec.array_program.assigning import *
from gpuexec.array_program.control import *
from gpuexec.array_program.creation import *
from gpuexec.array_program.drawing import *
from gpuexec.array_program.elementwise import *
from gpuexec.array_program.finding import *
from gpuexec.array_program.forward import forward
from gpuexec.array_program.ignoring import *
from gpuexec.array_program.indexing import *
from gpuexec.array_program.joining import *
from gpuexec.array_program.network import *
from gpuexec.array_program.normalizing import *
from gpuexec.array_program.norms import *
from gpuexec.array_program.products import *
from gpuexec.array_program.reducing import *
from gpuexec.array_program.sampling import *
from gpuexec.array_program.selecting import *
from gpuexec.array_program.shaping import *
from gpuexec.array_program.signal import *

__all__ = ["e", "forward", "inf", "nan", "newaxis", "pi"]
__all__ += activations.__all__
__all__ += assigning.__all__
__all__ += control.__all__
__all__ += creation.__all__
__all__ += drawing.__all__
__all__ += elementwise.__all__
__all__ += finding.__all__
__all__ += ignoring.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += network.__all__
__all__ += normalizing.__all__
__all__ += norms.__all__
__all__ += products.__all__
__all__ += reducing.__all__
__all__ += sampling.__all__
__all__ += selecting.__all__
__all__ += shaping.__all__
__all__ += signal.__all__
