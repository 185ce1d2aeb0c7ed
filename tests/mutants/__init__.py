"""Are the kernels' tests any good? Kernels with one plausible mistake each, and whether something notices.

    python -m tests.mutants             makes and tries them all, prints the list, writes results.txt
    python -m tests.mutants softmax.cu  those of some files

A mutant is caught where a test of operator cases fails on the simulator: by its result, by a fault, or by what check
mode finds. One that can't change what the kernel does is listed in equivalents.py with the reason, and not counted.
"""
