"""Host values required by operators: inputs whose content decides shapes or launches."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuexec.errors import NeedsHostValue
from gpuexec.ir.spec import TensorSpec
from gpuexec.system.mapped import read_content

Array = np.ndarray[Any, Any]


def require_const(spec: TensorSpec | None, role: str, index: int = -1) -> Array:
    """Return the content of an input that shapes or launches depend on, and record the read in the plan's key.

    Args:
        spec: The input's spec.
        role: Role of the input, as ONNX names it: ``"axes"``.
        index: Position of the input, for the message and for finding its producer.

    Raises:
        NeedsHostValue: The content is not known on the host.
    """
    if spec is None or spec.value is None:
        raise NeedsHostValue(
            f"the content of input {index} ({role}) is needed on the host while planning", index=index, role=role
        )
    if spec.value.log is not None:
        spec.value.log(role, None)
    return read_content(spec.value.array)


def require_at_least(spec: TensorSpec | None, role: str, index: int, minimum: int) -> int:
    """Return the number in a scalar input, or ``minimum`` where it is below; smaller values share one plan.

    So a plan made for one number up to ``minimum`` serves every other.

    Args:
        spec: The input's spec, of one element.
        role: Role of the input.
        index: Position of the input.
        minimum: The smallest result.

    Raises:
        NeedsHostValue: The content is not known on the host.
    """
    if spec is None or spec.value is None or spec.value.log is None:
        return max(minimum, int(require_const(spec, role, index).reshape(())))
    spec.value.log(role, minimum)
    return max(minimum, int(spec.value.array.reshape(())))
