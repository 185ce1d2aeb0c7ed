"""The simulator: a device that executes CUDA C++ sources on the CPU, to prove GPU code without a GPU."""
