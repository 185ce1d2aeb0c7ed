"""Operators on strings, which run on the host; n-grams of integers are counted on the device."""

from gpuexec.ops.text import normalizer as normalizer
from gpuexec.ops.text import parts as parts
from gpuexec.ops.text import regex as regex
from gpuexec.ops.text import tfidf as tfidf
