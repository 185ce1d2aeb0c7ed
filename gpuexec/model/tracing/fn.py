"""Functions of array programs under NumPy's names and those of network layers: `gpuexec.fn`.

Arrays may be symbolic, NumPy's, numbers or nests of them; results are symbolic. dtypes are NumPy's, with Python scalars
weak. The modules of this package list these functions in ``__all__``; the functional methods of Sentis are mapped to
them in `methods`.

Example:
    >>> norm = gx.graph(lambda a: gx.fn.sqrt(gx.fn.sum(a * a, axis=-1)), {"a": ("float32", ("n", 2))})
    >>> with gx.Worker(norm, backend="cpu") as worker:
    ...     worker.run(np.float32([[3, 4]]))[0].tolist()
    [5.0]
"""

# ruff: noqa: F403
from __future__ import annotations

from numpy import e, inf, nan, newaxis, pi

from gpuexec.model.tracing import (
    activations,
    assigning,
    control,
    creation,
    drawing,
    elementwise,
    finding,
    indexing,
    joining,
    matrix_products,
    network,
    normalizing,
    norms,
    reducing,
    selecting,
    shaping,
    signal,
)
from gpuexec.model.tracing.activations import *
from gpuexec.model.tracing.assigning import *
from gpuexec.model.tracing.control import *
from gpuexec.model.tracing.creation import *
from gpuexec.model.tracing.drawing import *
from gpuexec.model.tracing.elementwise import *
from gpuexec.model.tracing.finding import *
from gpuexec.model.tracing.forward import forward
from gpuexec.model.tracing.indexing import *
from gpuexec.model.tracing.joining import *
from gpuexec.model.tracing.matrix_products import *
from gpuexec.model.tracing.network import *
from gpuexec.model.tracing.normalizing import *
from gpuexec.model.tracing.norms import *
from gpuexec.model.tracing.reducing import *
from gpuexec.model.tracing.selecting import *
from gpuexec.model.tracing.shaping import *
from gpuexec.model.tracing.signal import *

__all__ = ["e", "forward", "inf", "nan", "newaxis", "pi"]
__all__ += activations.__all__
__all__ += assigning.__all__
__all__ += control.__all__
__all__ += creation.__all__
__all__ += drawing.__all__
__all__ += elementwise.__all__
__all__ += finding.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += network.__all__
__all__ += normalizing.__all__
__all__ += norms.__all__
__all__ += matrix_products.__all__
__all__ += reducing.__all__
__all__ += selecting.__all__
__all__ += shaping.__all__
__all__ += signal.__all__
