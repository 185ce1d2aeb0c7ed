"""Mutation testing of kernels: one plausible mistake each, and the tests that notice it.

    python -m tests.system.mutants             makes and tries them all, which takes hours
    python -m tests.system.mutants softmax.cu  those of some files
    python -m tests.system.mutants --left      those that results.txt does not say were caught

Each prints its list, and its rows take their place in results.txt, file by file.

A mutant is caught where a test of operator cases fails on the simulator: by its result, by a fault, or by what check
mode finds. One that can't change what the kernel does is listed in equivalents.py with the reason, and not counted.
"""
