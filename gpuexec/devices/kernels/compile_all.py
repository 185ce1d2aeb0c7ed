"""Offline compilation of every kernel instance for real architectures, with budgets, without a GPU.

    python -m gpuexec.devices.kernels.compile_all --arch sm_80 sm_90

Fails on a compile error, on spilled registers, on what breaks a budget (`gpuexec.devices.kernels.budgets`), and on
machine code that does not pass its gates (`gpuexec.devices.kernels.gates`). Reading that takes nvdisasm; without it a
line says that the gates were not held. With ``--launches`` it knows what plans launch: each architecture then gets the
kernels that its plans launch, with the shared memory they ask for; and an instance that is listed and never launched,
or the reverse, is an error.

Instances of one file are compiled many to a program, which is several times faster than one by one; results are kept
in the kernel cache, figures of machine code beside them, so a second run takes as long as it takes to read them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.budgets import KernelUse, find_excess, shared_limit
from gpuexec.devices.kernels.code_files import cache_folder
from gpuexec.devices.kernels.gates import find_violations, seconds_limit
from gpuexec.devices.kernels.kernel_cache import KernelCache, make_key
from gpuexec.devices.kernels.kernel_library import default_cache
from gpuexec.devices.kernels.kernel_source import find_source, find_waiting_kernels, read_text
from gpuexec.devices.kernels.machine_code import CodeFigures, find_nvdisasm, read_figures
from gpuexec.errors import DeviceNotFoundError, KernelError
from gpuexec.ir.command import Kernel
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.target import Target
from gpuexec.system import knobs

# Architectures compiled for: the first and the last of each kind of multiprocessor that differs in its code.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
CHUNK = 32  # instances per program: parallel enough for one large file, and an edit of the table recompiles little

Table = Mapping[str, Sequence[str]]
Uses = Mapping[Kernel, KernelUse]


@dataclass(frozen=True, slots=True)
class CompileUnit:
    """Instances of one file compiled together, with the text that was generated for them."""

    source: str
    architecture: str
    expressions: tuple[str, ...]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of compiling a program: its kernels with figures of their code by symbol, or the error.

    ``seconds`` are processor time, 0 for a cache hit; ``figures`` are empty without a disassembler.
    """

    program: CompileUnit
    kernels: tuple[nvrtc.CompiledKernel, ...]
    error: str
    seconds: float
    figures: Mapping[str, CodeFigures] = field(default_factory=dict)


def split_table(table: Table, architectures: Sequence[str], uses: Uses | None = None) -> list[CompileUnit]:
    """Return the programs that cover a table of instantiations for all architectures.

    Where ``uses`` says what plans launch, instances that they don't launch on an architecture are left out.
    """
    programs = []
    for architecture in architectures:
        for source, listed in table.items():
            expressions = [e for e in listed if uses is None or _is_used(uses, Kernel(source, e), architecture)]
            programs += [
                CompileUnit(source, architecture, tuple(expressions[first : first + CHUNK]))
                for first in range(0, len(expressions), CHUNK)
            ]
    return programs


def split_generated(uses: Uses, architectures: Sequence[str]) -> list[CompileUnit]:
    """Return the programs that cover the launched kernels of generated text, for all architectures."""
    programs = []
    for architecture in architectures:
        kernels = sorted((each for each in uses if each.text and _is_used(uses, each, architecture)), key=str)
        for source in dict.fromkeys(kernel.source for kernel in kernels):
            own = [kernel for kernel in kernels if kernel.source == source]
            for part in (own[first : first + CHUNK] for first in range(0, len(own), CHUNK)):
                text = "".join(dict.fromkeys(kernel.text for kernel in part))
                programs.append(CompileUnit(source, architecture, tuple(each.expression for each in part), text))
    return programs


def compile_programs(programs: Sequence[CompileUnit], cache: KernelCache, figures: Path | None = None) -> list[Outcome]:
    """Compile programs in parallel; a program that fails is an outcome, so that one run shows all errors.

    Args:
        programs: What to compile.
        cache: Where compiled kernels are kept.
        figures: Folder that figures of machine code are kept in; None: they are not asked for.
    """
    with ThreadPoolExecutor(knobs.build_jobs(), "gpuexec-nvrtc") as pool:
        return list(pool.map(lambda program: _compile(program, cache, figures), programs))


def find_problems(outcome: Outcome, uses: Uses | None = None) -> list[str]:
    """Return the budgets that kernels exceed and the gates that they don't pass, one line per kernel and reason."""
    if outcome.error:
        return [outcome.error]
    source, architecture = outcome.program.source, outcome.program.architecture
    problems = []
    for kernel in outcome.kernels:
        use = None if uses is None else uses[Kernel(source, kernel.expression)]
        found = [*find_excess(kernel, source, architecture, use)]
        if figures := outcome.figures.get(kernel.lowered_name):
            is_waiting = kernel.expression.partition("<")[0] in find_waiting_kernels(find_source(source))
            found += find_violations(kernel, figures, source, architecture, use, is_waiting=is_waiting)
        problems += [f"{source}:{kernel.expression} ({architecture}) {each}" for each in found]
    limit = seconds_limit(source, outcome.program.expressions)
    if outcome.seconds > limit:
        first, count = outcome.program.expressions[0], len(outcome.program.expressions)
        problems.append(
            f"{source}:{first} and the {count - 1} compiled with it ({architecture}) take {outcome.seconds:.1f} s of"
            f" processor time; at most {limit:.1f}."
        )
    return problems


def find_strays(table: Table, uses: Uses) -> list[str]:
    """Return a line for each instance that is listed but never launched, or launched but not listed."""
    listed = {Kernel(source, expression) for source, expressions in table.items() for expression in expressions}
    unused = [
        f"{kernel} is listed and no plan launches it; add a case that does, or drop it."
        for kernel in listed - set(uses)
    ]
    launched = {kernel for kernel in uses if not kernel.text}
    unlisted = [f"{kernel} is launched and not listed; add it by `instantiate`." for kernel in launched - listed]
    return sorted(unused) + sorted(unlisted)


def read_launches(path: Path) -> dict[Kernel, KernelUse]:
    """Return how plans launch each kernel.

    Rows are ``[source, expression, threads, shared bytes by architecture, generated text]``; what one has beyond these
    is not for this reader.
    """
    rows = json.loads(path.read_text())
    return {
        Kernel(source, expression, text): KernelUse(threads, shared)
        for source, expression, threads, shared, text, *_ in rows
    }


def format_architectures(outcomes: Sequence[Outcome]) -> str:
    """Return a line per architecture: kernels, the most that any of them takes, and compile time."""
    lines = [f"{'arch':8} {'kernels':>7} {'registers':>9} {'spills B':>8} {'shared B':>8} {'of':>7} {'seconds':>8}"]
    for architecture, members in _group(outcomes, lambda program: program.architecture).items():
        counts = _measure(members)
        lines.append(
            f"{architecture:8} {counts[0]:7} {counts[1]:9} {counts[2]:8} {counts[3]:8} {shared_limit(architecture):7}"
            f" {sum(member.seconds for member in members):8.1f}"
        )
    return "\n".join(lines)


def format_files(outcomes: Sequence[Outcome]) -> str:
    """Return a line per file, over all architectures: kernels, the most that any of them takes, and compile time."""
    lines = [f"{'file':28} {'kernels':>7} {'registers':>9} {'spills B':>8} {'shared B':>8} {'seconds':>8}"]
    for source, members in sorted(_group(outcomes, lambda program: program.source).items()):
        counts = _measure(members)
        seconds = sum(member.seconds for member in members)
        lines.append(f"{source:28} {counts[0]:7} {counts[1]:9} {counts[2]:8} {counts[3]:8} {seconds:8.1f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile all kernels; return 0 if every one is within its budget, else 1."""
    import gpuexec.ops  # noqa: F401  fills the table

    options = _parse(arguments)
    started = time.perf_counter()
    table, uses = kernel_table(), None if options.launches is None else read_launches(options.launches)
    try:
        for architecture in options.arch:
            nvrtc.check_architecture(architecture)
    except (DeviceNotFoundError, KernelError) as error:
        print(error, file=sys.stderr)
        return 1
    programs = split_table(table, options.arch, uses)
    programs += [] if uses is None else split_generated(uses, options.arch)
    if not programs:
        print("The table of kernel instances is empty, so nothing would be checked.", file=sys.stderr)
        return 1
    try:
        find_nvdisasm()
        figures, unread = cache_folder("figures"), ""
    except DeviceNotFoundError as error:
        figures, unread = None, f"The gates on machine code were not held. {error}"
    outcomes = compile_programs(programs, default_cache(), figures)
    problems = [] if uses is None else find_strays(table, uses)
    problems += [problem for outcome in outcomes for problem in find_problems(outcome, uses)]
    compiled = sum(outcome.seconds > 0 for outcome in outcomes)
    print(format_files(outcomes), format_architectures(outcomes), sep="\n\n")
    print(
        f"{nvrtc.compiler_version()}: {sum(len(program.expressions) for program in programs)} kernels in"
        f" {len(programs)} programs, {compiled} of them compiled and the others cached,"
        f" {time.perf_counter() - started:.1f} s"
    )
    if unread:
        print(unread)
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gpuexec.devices.kernels.compile_all", description="Compile all kernels."
    )
    parser.add_argument(
        "--arch",
        nargs="+",
        default=ARCHITECTURES,
        type=lambda name: Target.named(name).name,
        help=f"architectures (default: {' '.join(ARCHITECTURES)})",
    )
    parser.add_argument("--launches", type=Path, help="what plans launch: a file that tests/devices/launches.py wrote")
    return parser.parse_args(arguments)


def _is_used(uses: Uses, kernel: Kernel, architecture: str) -> bool:
    return kernel in uses and architecture in uses[kernel].shared_bytes


def _group(outcomes: Sequence[Outcome], key: Callable[[CompileUnit], str]) -> dict[str, list[Outcome]]:
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome.program), []).append(outcome)
    return groups


def _measure(outcomes: Sequence[Outcome]) -> tuple[int, int, int, int]:
    """Return the number of kernels, and the most registers, spilled bytes and static shared bytes of any."""
    kernels = [kernel for outcome in outcomes for kernel in outcome.kernels]
    return (
        len(kernels),
        max((kernel.registers for kernel in kernels), default=0),
        max((kernel.spill_bytes for kernel in kernels), default=0),
        max((kernel.shared_bytes for kernel in kernels), default=0),
    )


def _compile(program: CompileUnit, cache: KernelCache, figures: Path | None) -> Outcome:
    started = time.thread_time()  # the compiler works in this thread
    try:
        text = read_text(find_source(program.source), [program.text])
        key = make_key(text, program.expressions, program.architecture, nvrtc.OPTIONS, nvrtc.compiler_version())
        entry = cache.get(
            key,
            lambda: nvrtc.compile_cubin(
                text, program.expressions, program.architecture, nvrtc.OPTIONS, source=program.source
            ),
        )
        seconds = time.thread_time() - started if entry.was_compiled else 0.0
        measured = {} if figures is None else read_figures(entry.cubin.image, figures)
    except KernelError as error:
        return Outcome(program, (), str(error), time.thread_time() - started)
    return Outcome(program, entry.cubin.kernels, "", seconds, measured)


if __name__ == "__main__":
    sys.exit(main())
