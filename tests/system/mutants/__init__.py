"""Mutation testing of kernels: one plausible mistake each, and the tests that notice it.

    python -m tests.system.mutants             makes and tries them all, which takes hours
    python -m tests.system.mutants softmax.cu  those of some files
    python -m tests.system.mutants --left      those that results.txt does not say were caught

Each prints its list, and its rows take their place in results.txt, part by part. Rounds of ever more tests try what
those before let pass, the last one the test files that launch a kernel file themselves; `--rounds 2` ends before.

A mutant is caught where a test of kernels fails on the simulator: by its result, by a fault, or by what check mode
finds. One that can't change what the kernel does is listed in equivalents.py with the reason, and not counted.
"""
