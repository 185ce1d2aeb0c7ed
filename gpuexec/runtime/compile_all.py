"""The gate of kernel sources: compile every instantiation for real architectures, with budgets, without a GPU.

    python -m gpuexec.runtime.compile_all --arch sm_80 sm_90

Fails on a compile error, on spilled registers and on static shared memory that no block may have. Instances of one file
are compiled many to a program, which is several times faster than one by one; results are kept in the kernel cache, so
a second run takes as long as it takes to read them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpuexec import knobs
from gpuexec.errors import DeviceNotFoundError, KernelError
from gpuexec.operator import kernel_table
from gpuexec.runtime import nvrtc
from gpuexec.runtime.kernel_cache import KernelCache, make_key
from gpuexec.runtime.kernel_library import default_cache
from gpuexec.runtime.kernel_source import flatten, kernels_dir
from gpuexec.target import Target

CHUNK = 32  # instances per program: parallel enough for one large file, and an edit of the table recompiles little
MAX_STATIC_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """Instances of one file compiled together."""

    source: str
    architecture: str
    expressions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What compiling a program gave: its kernels, or why there are none. ``seconds`` is 0 if the cache had it."""

    program: Program
    kernels: tuple[nvrtc.CompiledKernel, ...]
    error: str
    seconds: float


def split_table(table: Mapping[str, Sequence[str]], architectures: Sequence[str]) -> list[Program]:
    """Return the programs that cover a table of instantiations for all architectures."""
    return [
        Program(source, architecture, tuple(expressions[first : first + CHUNK]))
        for architecture in architectures
        for source, expressions in table.items()
        for first in range(0, len(expressions), CHUNK)
    ]


def compile_programs(programs: Sequence[Program], cache: KernelCache) -> list[Outcome]:
    """Compile programs in parallel; a program that fails is an outcome, so that one run shows all errors."""
    with ThreadPoolExecutor(knobs.build_jobs(), "gpuexec-nvrtc") as pool:
        return list(pool.map(lambda program: _compile(program, cache), programs))


def find_problems(outcome: Outcome) -> list[str]:
    """Return what breaks the budgets, one line per kernel and reason."""
    if outcome.error:
        return [outcome.error]
    program, problems = outcome.program, []
    for kernel in outcome.kernels:
        where = f"{program.source}:{kernel.expression} ({program.architecture})"
        if kernel.spill_bytes:
            problems.append(
                f"{where} spills {kernel.spill_bytes} bytes with {kernel.registers} registers; expected none."
            )
        if kernel.shared_bytes > MAX_STATIC_SHARED_BYTES:
            problems.append(
                f"{where} has {kernel.shared_bytes} bytes of static shared memory; at most {MAX_STATIC_SHARED_BYTES}."
            )
    return problems


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Return a line per file and architecture: instances, the most that any of them takes, and compile time."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.program.source, outcome.program.architecture), []).append(outcome)
    lines = [f"{'file':28} {'arch':7} {'kernels':>7} {'registers':>9} {'spills B':>8} {'shared B':>8} {'seconds':>8}"]
    for (source, architecture), members in sorted(groups.items()):
        kernels = [kernel for member in members for kernel in member.kernels]
        registers = max((kernel.registers for kernel in kernels), default=0)
        spills = max((kernel.spill_bytes for kernel in kernels), default=0)
        shared = max((kernel.shared_bytes for kernel in kernels), default=0)
        seconds = sum(member.seconds for member in members)
        lines.append(
            f"{source:28} {architecture:7} {len(kernels):7} {registers:9} {spills:8} {shared:8} {seconds:8.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all kernels; return 0 if every one is within its budget, else 1."""
    import gpuexec.ops  # noqa: F401  fills the table

    parser = argparse.ArgumentParser(prog="python -m gpuexec.runtime.compile_all", description="Compile all kernels.")
    parser.add_argument(
        "--arch", nargs="+", default=["sm_80", "sm_90"], help="architectures, like sm_90 (default: sm_80 sm_90)"
    )
    architectures = [Target.named(name).name for name in parser.parse_args(arguments).arch]
    started = time.perf_counter()
    programs = split_table(kernel_table(), architectures)
    try:
        compiler = nvrtc.compiler_version()
    except DeviceNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    if not programs:
        print("The table of kernel instances is empty, so nothing would be checked.", file=sys.stderr)
        return 1
    outcomes = compile_programs(programs, default_cache())
    problems = [problem for outcome in outcomes for problem in find_problems(outcome)]
    compiled = sum(outcome.seconds > 0 for outcome in outcomes)
    print(format_table(outcomes))
    print(
        f"{compiler}: {sum(len(program.expressions) for program in programs)} kernels in {len(programs)} programs,"
        f" {compiled} of them compiled and the others cached, {time.perf_counter() - started:.1f} s"
    )
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _compile(program: Program, cache: KernelCache) -> Outcome:
    started = time.perf_counter()
    try:
        text = flatten(kernels_dir() / program.source)
        key = make_key(text, program.expressions, program.architecture, nvrtc.OPTIONS, nvrtc.compiler_version())
        entry = cache.get(
            key,
            lambda: nvrtc.compile_cubin(
                text, program.expressions, program.architecture, nvrtc.OPTIONS, source=program.source
            ),
        )
    except KernelError as error:
        return Outcome(program, (), str(error), time.perf_counter() - started)
    seconds = time.perf_counter() - started if entry.was_compiled else 0.0
    return Outcome(program, entry.cubin.kernels, "", seconds)


if __name__ == "__main__":
    sys.exit(main())
