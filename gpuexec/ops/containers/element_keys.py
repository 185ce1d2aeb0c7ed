"""Random keys for each element of a SequenceMap whose body draws random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.ir.containers import hold, make_sequence, read_sequence
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.containers.sequence import HOST_REASON, SEQUENCE_SPEC, check_sequence
from gpuexec.ops.random.random_key import NextKey, check_key


@operator("ElementKeys", "gpuexec")
@dataclass(frozen=True, slots=True)
class ElementKeys(Operator):
    """A sequence of keys, one of its own for each element of another sequence; see `gpuexec.ops.random.random_key`."""

    tolerance = Tolerance.EXACT
    takes_containers = True
    host_reason = HOST_REASON
    flops_per_output = None

    def infer(self, key: TensorSpec, sequence: TensorSpec) -> tuple[TensorSpec, ...]:
        """Return a sequence."""
        check_key(key)
        check_sequence(self.name, sequence)
        return (SEQUENCE_SPEC,)

    def compute(self, key: Array, sequence: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Mix the key with the number of each element."""
        numbers = (np.asarray(number, np.int64) for number in range(len(read_sequence(sequence))))
        return (make_sequence([hold(NextKey().compute(key, number)[0]) for number in numbers]),)
