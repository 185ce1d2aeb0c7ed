"""ONNX's own backend tests, strictly compared and counted: ``make conformance``.

What passes stands in ``passing_cpu.txt`` and ``passing_simulator.txt``, which only grow.
"""
