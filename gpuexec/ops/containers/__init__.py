"""Operators on sequences and optionals, which run on the host because containers lie there."""

from gpuexec.ops.containers import element_keys as element_keys
from gpuexec.ops.containers import optional as optional
from gpuexec.ops.containers import sequence as sequence
from gpuexec.ops.containers import sequence_map as sequence_map
from gpuexec.ops.containers import split_concat as split_concat
