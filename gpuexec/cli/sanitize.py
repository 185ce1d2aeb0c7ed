"""gpuexec sanitize: a CUDA kernel in the simulator's check or count mode, without a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuexec.cli.count_tables import encode_counts, print_counts
from gpuexec.cli.kernel_arguments import SYNTAX, parse_argument
from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.kernels.kernel_source import find_kernels, list_files
from gpuexec.devices.simulator.counts import LaunchCounts
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.findings import Finding, Party, why_no_lines
from gpuexec.devices.simulator.library import Extent, Schedule
from gpuexec.errors import CheckError, GpuexecError, InputError
from gpuexec.execution.profiling.terminal import open_console
from gpuexec.ir.command import Kernel, LaunchConfig

if TYPE_CHECKING:
    from typing import Any

_DESCRIPTION = """\
Run a kernel of a CUDA source on the CPU, in check mode, and show what it does wrong, with lines and threads: races
within a block and between blocks, accesses out of bounds, misaligned or to freed memory, reads of uninitialised shared
memory, divergent barriers, asynchronous copies without a wait, wrong masks. No GPU is needed, but g++ or clang++.

A race is found whether or not it shows in this run, if the accesses are made at all. Other seeds give other orders of
threads, for what depends on them.

With --count, show instead what the kernel asks of memory, by line: requests of warps, the sectors of 32 bytes of global
memory that they touch beside as many as their bytes fill (ideal), wavefronts of shared memory beside the least, bytes
asked for, lanes that are off, and the bytes that go through L2; and the arithmetic that warps issue for 32 lanes each,
beside what lanes take part in: fused multiply-adds that are written as calls (fmaf, __dp4a), and instructions for
special functions (expf, sqrtf). It assumes that lanes of a warp run in lockstep between barriers. Operators like
a * b + c, constants and kernel arguments are not counted.

The file holds device code; what is for the host alone stands under #ifndef GPUEXEC_SIM. Local includes are read;
cuda_fp16.h, cuda_bf16.h and cuda_pipeline.h are there, cooperative_groups.h and libraries are not. A kernel that spins
until another thread writes does not end here."""
_EPILOG = f"""\
{SYNTAX}

exit status: 0 nothing found, or counted; 1 something found; 2 the kernel could not be run as asked

examples:
  gpuexec sanitize sum.cu --grid 4 --block 64 --arg 'float[1000]=random' --arg 'float[4]=zeros' --arg int=1000
  gpuexec sanitize --count sum.cu --grid 4 --block 64 --arg 'float[1000]' --arg 'float[4]=zeros' --arg int=1000"""


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "sanitize",
        help="find races and invalid accesses of a CUDA kernel, or count its requests and arithmetic, without a GPU",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="the .cu file")
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help="which kernel; a template as an instance, like 'scale<float>' (default: if one)",
    )
    parser.add_argument("--grid", default="1", metavar="X[,Y,Z]", help="blocks (default: 1)")
    parser.add_argument("--block", default="256", metavar="X[,Y,Z]", help="threads of a block (default: 256)")
    parser.add_argument("--shared", type=int, default=0, metavar="BYTES", help="dynamic shared memory (default: 0)")
    parser.add_argument("--cooperative", action="store_true", help="launch so that blocks may wait for each other")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="SPEC", dest="arguments", help="an argument; see below"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of orders and random contents (default: 0)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="seeds to try, from --seed on (default: 1)")
    parser.add_argument("--target", default="sm_90", metavar="ARCH", help="whose limits and L2 hold (default: sm_90)")
    parser.add_argument(
        "--count", action="store_true", help="count memory requests and arithmetic by line, in place of checks"
    )
    parser.add_argument("--json", action="store_true", help="with --count, print what was counted as JSON alone")
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the subcommand."""
    try:
        path = Path(options.source).resolve()
        kernel = Kernel(str(path), options.kernel or _choose_kernel(path))
        if options.json and not options.count:
            raise InputError("--json prints what --count counts. Add --count.")
        if options.json:
            print(json.dumps(encode_counts(count(kernel, options)), indent=1))
            return 0
        if options.count:
            print_counts(open_console(), count(kernel, options), {each.name: each for each in list_files(path)})
            print(why_no_lines(), end="\n" * bool(why_no_lines()))
            return 0
        for seed in range(options.seed, options.seed + options.repeat):
            findings = check(kernel, options, seed)
            if findings:
                _show(findings, {each.name: each for each in list_files(path)}, kernel, seed)
                return 1
    except GpuexecError as error:
        print(f"gpuexec sanitize: {error}", file=sys.stderr)
        return 2
    last = options.seed + options.repeat - 1
    seeds = f"seed {last}" if options.repeat == 1 else f"seeds {options.seed} to {last}"
    print(f"{path.name}:{kernel.expression}: nothing found with {seeds}.")
    return 0


def check(kernel: Kernel, options: argparse.Namespace, seed: int) -> tuple[Finding, ...]:
    """Run the kernel once, with a seed's order of threads; return the findings.

    Raises:
        GpuexecError: It does not compile, or the launch does not fit it.
    """
    schedule = Schedule("random", seed)
    device = SimulatorDevice(
        lambda _: (kernel.expression,), options.target, schedule=schedule, check_kernels=True, check_order=False
    )
    try:
        _launch(device, kernel, options, seed)
    except CheckError as error:
        return tuple(each for each in error.findings if isinstance(each, Finding))
    finally:
        device.close()
    return ()


def count(kernel: Kernel, options: argparse.Namespace) -> LaunchCounts:
    """Run the kernel once; return its memory requests and arithmetic.

    Raises:
        GpuexecError: It does not compile, the launch does not fit it, or it breaks a rule.
    """
    device = SimulatorDevice(lambda _: (kernel.expression,), options.target, count_kernels=True, check_order=False)
    try:
        _launch(device, kernel, options, options.seed)
        return device.counts[0]
    finally:
        device.close()


def _launch(device: SimulatorDevice, kernel: Kernel, options: argparse.Namespace, seed: int) -> None:
    rng = np.random.default_rng(seed)
    arguments = [parse_argument(text, rng) for text in options.arguments]
    device.load([kernel])
    stream, memories = device.create_stream(), []
    packed = PackedArguments([a.value if isinstance(a.value, bytes | np.generic) else None for a in arguments])
    for position, argument in enumerate(arguments):
        if isinstance(argument.value, np.ndarray):
            memory = device.allocate(argument.value.nbytes)
            stream.copy_to_device(memory.address, argument.value.reshape(-1).view(np.uint8))
            packed.set_pointer(position, memory.address)
            memories.append(memory)
    grid, block = _parse_extent("--grid", options.grid), _parse_extent("--block", options.block)
    config = LaunchConfig(grid, block, options.shared, options.cooperative)
    stream.launch(device.function(kernel), config, packed)
    stream.synchronize()


def _choose_kernel(path: Path) -> str:
    """Return the only kernel of a file that is no template.

    Raises:
        InputError: There is not exactly one.
    """
    kernels = find_kernels(path)
    plain = [name for name, is_template in kernels.items() if not is_template]
    if len(kernels) == 1 and plain:
        return plain[0]
    names = ", ".join(f"{name}<...>" if is_template else name for name, is_template in kernels.items())
    raise InputError(
        f"{path.name} has {len(kernels) or 'no'} kernels{f': {names}' if names else ''}. Name one by --kernel, a"
        " template with its arguments."
    )


def _parse_extent(option: str, text: str) -> Extent:
    parts = text.replace("x", ",").split(",")
    if not 1 <= len(parts) <= 3 or not all(part.strip().isdigit() for part in parts):
        raise InputError(f"{option} {text!r} is not X, X,Y or X,Y,Z, as in 16,16.")
    x, y, z = (*(int(part) for part in parts), 1, 1)[:3]
    return x, y, z


def _show(findings: Sequence[Finding], files: Mapping[str, Path], kernel: Kernel, seed: int) -> None:
    for finding in findings:
        print(f"{finding.kind}: {finding.detail}" if finding.detail else finding.kind)
        for party in (finding.party, finding.other):
            if party is not None:
                _show_party(party, files)
        print()
    count = f"{len(findings)} mistake{'s' if len(findings) > 1 else ''}"
    print(f"{Path(kernel.source).name}:{kernel.expression}: {count} found with seed {seed}.")
    if missing := why_no_lines():
        print(missing)


def _show_party(party: Party, files: Mapping[str, Path]) -> None:
    thread, block = (", ".join(map(str, each)) for each in (party.thread, party.block))
    print(f"  {party.access or 'here'} by thread ({thread}) of block ({block})")
    for number, (file, line) in enumerate(((party.file, party.line), *party.within)):
        if file:
            source = files[file].read_text(encoding="utf-8").splitlines() if file in files else []
            text = source[line - 1].strip() if 0 < line <= len(source) else ""
            print(f"    {'in ' if number else ''}{file}:{line}  {text}".rstrip())
