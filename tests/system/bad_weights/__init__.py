"""Fuzzing with bad files of weights and states, reproducible by number, in child processes."""
