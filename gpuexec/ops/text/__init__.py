"""Operators on strings, which run on the host."""

from gpuexec.ops.text import normalizer as normalizer
from gpuexec.ops.text import parts as parts
from gpuexec.ops.text import regex as regex
