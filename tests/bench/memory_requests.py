"""Benchmark of what kernels ask of memory, as count mode of the simulator counts it, and of what counting takes.

Each case is a node as BERT-base, ResNet-50, MobileNetV2 or a decoding GPT-2 have it, or a product with large tiles,
planned for sm_90. Figures of requests are the same on any machine; times and memory are those of a process that runs
the plan once in a mode.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.ir.command import Launch
from gpuexec.ir.target import Target
from gpuexec.planner.launch_work import describe_work, list_operands
from gpuexec.planner.template import plan_graph
from tests.bench.tables import Figures
from tests.devices.execute import LoadedPlan, specs_of
from tests.ops.counted_launch import CountedCase, find_graph, floats, make_model

F16 = np.float16
MODES = ("plain", "check", "count")
_COLUMNS = (
    "kernel",
    "node",
    "sectors / ideal",
    "wavefronts / least",
    "lanes off",
    "L2 bytes / operands",
    *(f"{mode} s" for mode in MODES),
    *(f"{mode} MiB" for mode in MODES),
)
_MIB = 1 << 20


def weights(*shape: int) -> np.ndarray[Any, Any]:
    return floats(*shape)


CASES: tuple[CountedCase, ...] = (
    CountedCase("MatMul", "simt_gemm", {"x": (2048, 64)}, {"w": weights(64, 2048)}),
    CountedCase("MatMul", "simt_gemm", {"x": (128, 768)}, {"w": weights(768, 768)}),
    CountedCase("MatMul", "gemv_along_columns", {"x": (1, 768), "w": (768, 3072)}),
    CountedCase("Gemm", "gemv_along_k", {"x": (1, 768), "w": (3072, 768)}, attributes={"transB": 1}),
    CountedCase("Conv", "simt_conv", {"x": (1, 64, 56, 56)}, {"w": weights(64, 64, 3, 3)}, {"pads": [1] * 4}),
    CountedCase(
        "Conv", "simt_conv", {"x": (1, 3, 224, 224)}, {"w": weights(64, 3, 7, 7)}, {"pads": [3] * 4, "strides": [2, 2]}
    ),
    CountedCase(
        "Conv",
        "conv_few",
        {"x": (1, 3, 224, 224)},
        {"w": weights(64, 3, 7, 7)},
        {"pads": [3] * 4, "strides": [2, 2]},
        precision="fp16",
    ),
    CountedCase("Conv", "simt_conv", {"x": (1, 256, 56, 56)}, {"w": weights(64, 256, 1, 1)}),
    CountedCase(
        "Conv", "conv_depthwise", {"x": (1, 144, 56, 56)}, {"w": weights(144, 1, 3, 3)}, {"group": 144, "pads": [1] * 4}
    ),
    CountedCase("MaxPool", "max_pool", {"x": (1, 64, 112, 112)}, {}, {"kernel_shape": [3, 3], "strides": [2, 2]}),
    CountedCase("Attention", "attend", dict.fromkeys("qkv", (1, 12, 128, 64))),
    CountedCase("Softmax", "softmax_short", {"x": (1, 12, 128, 128)}),
    CountedCase(
        "LayerNormalization", "normalize_short_rows", {"x": (128, 768)}, {"s": weights(768), "b": weights(768)}
    ),
    CountedCase("Gelu", "unary", {"x": (128, 3072)}),
    CountedCase("Add", "binary", {"x": (128, 768)}, {"b": weights(768)}),
    CountedCase("Transpose", "copy_strided", {"x": (1, 128, 12, 64)}, {}, {"perm": [0, 2, 1, 3]}),
    CountedCase("Transpose", "copy_strided", {"x": (1, 128, 12, 64)}, {}, {"perm": [0, 2, 3, 1]}),
    CountedCase("Transpose", "copy_strided", {"x": (1, 768, 14, 14)}, {}, {"perm": [0, 2, 3, 1]}),
    CountedCase("Transpose", "copy_strided", {"x": (512, 1024)}, {}, {"perm": [1, 0]}),
    CountedCase("Transpose", "copy_strided", {"x": (1024, 1024)}, {}, {"perm": [1, 0]}, F16),
    CountedCase("Add", "tiled", {"x": (512, 1024), "z": (1024, 512)}, turned={"x": (1, 0)}),
    CountedCase("Add", "tiled", {"x": (1024, 1024), "z": (1024, 1024)}, dtype=F16, turned={"x": (1, 0)}),
    CountedCase("Add", "tiled", {"x": (1, 56, 56, 96), "z": (1, 96, 56, 56)}, turned={"x": (0, 3, 1, 2)}),
    CountedCase("Add", "tiled", {"x": (197, 768), "z": (768, 197)}, turned={"x": (1, 0)}),
)


NUMBERS: Sequence[int] = range(len(CASES))  # of the cases to run


def measure_requests() -> list[Figures]:
    """Run each case in each mode, in a process of its own, so that its memory is its own."""
    figures = Figures("What kernels ask of memory, and what counting it takes", _COLUMNS)
    for number in NUMBERS:
        runs = {mode: _run_apart(number, mode) for mode in MODES}
        counted = runs["count"]
        figures.add(
            counted["kernel"],
            counted["node"],
            *(counted[name] for name in ("sectors", "wavefronts", "lanes_off", "l2")),
            *(runs[mode]["seconds"] for mode in MODES),
            *(runs[mode]["peak_nbytes"] / _MIB for mode in MODES),
        )
    figures.notes.append(
        "Operands: each read or written once. Seconds: of processors, for a run of the plan whose kernels are loaded."
    )
    return [figures]


def run_case(case: CountedCase, mode: str) -> dict[str, Any]:
    """Run a case in this process; return processor time, the most memory and, if counted, its figures."""
    arrays = {name: floats(*shape, dtype=case.dtype) for name, shape in case.inputs.items()}
    graph = find_graph(case, make_model(case), arrays)
    template = plan_graph(graph, specs_of(arrays), Target.named("sm_90"))
    plan = template.plan
    device = SimulatorDevice(
        lambda source: [kernel.expression for kernel in plan.kernels() if kernel.source == source],
        "sm_90",
        check_kernels=mode == "check",
        count_kernels=mode == "count",
    )
    constants = {value.name: array for value, array in graph.constants.items()}
    with LoadedPlan(plan, constants, device) as loaded:
        begun = time.process_time()
        loaded.run(arrays)
        seconds = time.process_time() - begun
    found: dict[str, Any] = {
        "seconds": seconds,
        "peak_nbytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }
    if mode == "count":
        commands = plan.segment.commands
        (command,) = [each for each in commands if isinstance(each, Launch) and _is_of(str(each.kernel), case)]
        (counts,) = [each for each in device.counts if _is_of(each.kernel, case)]
        operand_nbytes = sum(nbytes for _, _, nbytes in list_operands(command, describe_work(command)))
        found |= {"kernel": counts.kernel, "node": _spell_node(case), **_summarise(counts, operand_nbytes)}
    device.close()
    return found


def _is_of(kernel: str, case: CountedCase) -> bool:
    return kernel.partition(":")[2].partition("<")[0] == case.kernel


def _spell_node(case: CountedCase) -> str:
    shapes = (*case.inputs.values(), *map(np.shape, case.weights.values()))
    attributes = [f"{name}={value}" for name, value in case.attributes.items()]
    attributes += [f"{name} turned by {list(perm)}" for name, perm in case.turned.items()]
    attributes += [] if case.dtype is np.float32 else [np.dtype(case.dtype).name]
    return " ".join((case.operator, ", ".join("x".join(map(str, shape)) for shape in shapes), *attributes))


def _summarise(counts: LaunchCounts, operand_nbytes: int) -> Mapping[str, float]:
    in_global, shared = counts.total("global"), counts.total("shared")
    l2_nbytes = counts.l2_read_nbytes + counts.l2_written_nbytes
    return {
        "sectors": in_global.ratio,
        "wavefronts": shared.ratio,
        "lanes_off": (in_global + shared).lanes_off,
        "l2": l2_nbytes / operand_nbytes,
    }


def _run_apart(number: int, mode: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.memory_requests", str(number), mode],
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: Sequence[str]) -> None:
    """Run a case by its number in a mode, and print what was found as JSON."""
    print(json.dumps(run_case(CASES[int(arguments[0])], arguments[1])))


if __name__ == "__main__":
    main(sys.argv[1:])
