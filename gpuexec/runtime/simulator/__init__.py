"""CUDA C++ sources executed on the CPU: a device to prove GPU code on where there is no GPU."""
