"""A method in user memory, step by step: load, query its needs, allocate, set, execute, read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from digits import count_right, load_images, load_model

import gpuexec as gx


def main() -> None:
    """Save the net as a program, then run it from there in arenas of ours."""
    images, labels = load_images(360)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.gxp"
        # A batch of up to 128 pictures; planned once, for all sizes.
        gx.Program.build({"forward": load_model()}, shapes={"forward": {"image": ((1, 128), 1, 8, 8)}}).save(path)

        # The program, from wherever its bytes are.
        loader = gx.FileDataLoader(path)
        program = gx.Program.load(loader)
        print("  methods:", ", ".join(program.method_names))

        # What the method needs is known before it is loaded.
        meta = program.method_meta("forward")
        for index in range(meta.num_memory_planned_buffers):
            nbytes, device = meta.memory_planned_buffer_size(index), meta.memory_planned_buffer_device(index)
            print(f"  buffer {index}: {nbytes} bytes on {device}")
        arenas = meta.allocate()  # or arrays of your own: CuPy, torch, NumPy, pinned memory

        # The arenas are ours, and so is the memory manager; the method holds them while it lives.
        planned = gx.HierarchicalAllocator(arenas)
        memory = gx.MemoryManager(planned_memory=planned)

        # All initialisation is here: kernels are compiled, weights uploaded, nothing can be missing later.
        with program.load_method("forward", memory) as method:
            scores = []
            for start in range(0, len(images), 128):
                method.set_input(0, images[start : start + 128])
                method.execute()
                scores.append(method.get_output(0).readback_and_clone())
            print("in our own memory:", count_right(np.concatenate(scores), labels))


if __name__ == "__main__":
    main()
