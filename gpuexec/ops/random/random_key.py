"""Random keys, from which every run draws other numbers.

A *key* is two words, the seed and the number of the run. Loading a model gives each node that draws one as a further
input behind those that ONNX knows (`gpuexec.passes.add_random_key`), and a ``stream`` by its place in the model;
without a key it is 0 and 0. A node with a seed of its own takes only the number of the run from its key, and no stream:
it gives the same sequence in any model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Kernel, Slot
from gpuexec.ir.instances import instantiate
from gpuexec.ir.operator import Array, Emitter, Operator, Out, Slots, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.random.philox import Draw

KEY_DTYPE = np.dtype(np.uint64)

instantiate("random.cu", ["next_key<i64>"])


@operator("NextKey", "gpuexec")
@dataclass(frozen=True, slots=True)
class NextKey(Operator):
    """Key of the next run; with an index, such as the number of a trip, one for this run and that index."""

    tolerance = Tolerance.EXACT
    flops_per_output = None
    keeps_dtype = True
    has_blits = True

    def infer(self, key: TensorSpec, index: TensorSpec | None = None) -> tuple[TensorSpec, ...]:
        """Return the key's spec."""
        check_key(key)
        if index is not None and (index.size != 1 or index.dtype != np.int64):
            raise InputError(f"NextKey expects an index of one int64, got {index}.")
        return (TensorSpec((2,), KEY_DTYPE),)

    def compute(self, key: Array, index: Array | None = None, *, out: Out = None) -> tuple[Array, ...]:
        """Count on, or mix."""
        seed, run = (int(number) for number in key)
        if index is None:
            return (np.array([seed, (run + 1) % 2**64], KEY_DTYPE),)
        words = Draw(run, 0).blocks(None, 1, int(index.reshape(())) % 2**64)[0]
        return (np.array([seed, int(words[1]) << 32 | int(words[0])], KEY_DTYPE),)

    def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None:
        """Launch one thread."""
        key, index = take_key(emit, inputs, 0), take_key(emit, inputs, 1)
        emit.launch(Kernel("random.cu", "next_key<i64>"), (1, 1, 1), (32, 1, 1), [key, index, outputs[0]], writes=[2])


def check_key(key: TensorSpec | None) -> None:
    """Check that a key is none, or two words.

    Raises:
        InputError: It is something else.
    """
    if key is not None and (key.shape, key.dtype) != ((2,), KEY_DTYPE):
        raise InputError(f"a key is uint64[2], seed and number of the run, got {key}.")


def take_key(emit: Emitter, inputs: Slots, index: int) -> Slot | None:
    """Return an optional input as dense memory; None where it is absent."""
    slot = inputs[index] if len(inputs) > index else None
    return None if slot is None else emit.contiguous(slot)
