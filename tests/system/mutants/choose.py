"""Test selection for a mutant: tests that launch kernels of its file, spread over kernels and cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.devices.kernels.kernel_source import index_sources, list_files
from gpuexec.ir.command import Kernel

_TESTS_PER_KERNEL = 40  # as many instances come with them as they launch
_TESTS_OF_HEADERS = 8  # the same for a header, whose mutants all files that include it try
_INSTANCES_PER_ARGUMENT = 2
_ALL = 200  # what tries a mutant that survived the above
# Tests that alone notice a kernel which waits for no predecessor: of a kernel file none of them is left out.
_OF_WAITS = "/test_dependent_launch.py::"


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests in the order to run them, and the kernel instances they need by file."""

    tests: tuple[str, ...]
    instances: Mapping[str, tuple[str, ...]]


def choose_trials(file: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]]) -> tuple[Trial, Trial]:
    """Return what tries the mutants of a kernel file, and what else tries those that survive it."""
    first = choose_trial(file, folder, tests_of)
    return first, choose_trial(file, folder, tests_of, is_thorough=True, tried=first.tests)


def choose_trial(
    file: str,
    folder: Path,
    tests_of: Mapping[Kernel, Sequence[str]],
    is_thorough: bool = False,
    tried: Sequence[str] = (),
) -> Trial:
    """Return tests for the mutants of a kernel file.

    A header is tried by all files that include it, one that blits share with kernels by the kernels. A thorough trial
    has all tests that bear on it.

    Args:
        file: Name of a ``.cu`` or ``.cuh``.
        folder: Where kernels stand.
        tests_of: The tests that launch each kernel.
        is_thorough: Whether no test is left out, rather than most.
        tried: Tests that were run already.
    """
    is_header = not file.endswith(".cu")
    sources = _including(file, folder, tests_of) if is_header else {file}
    limit = _ALL if is_thorough else _TESTS_OF_HEADERS if is_header else _TESTS_PER_KERNEL
    kernels = [kernel for kernel in tests_of if kernel.source in sources]
    by_kernel: dict[str, dict[str, None]] = {}
    for kernel in kernels if is_thorough else _pick_instances(kernels, tests_of):
        own = [test for test in tests_of[kernel] if f"/test_{Path(kernel.source).stem}.py" in test]
        wanted = (*own, *tests_of[kernel]) if is_thorough else own or tests_of[kernel]
        by_kernel.setdefault(_name(kernel), {}).update(dict.fromkeys(wanted))
    spread = [test for tests in by_kernel.values() for test in _spread(list(tests), limit)]
    waits = [] if is_header else [test for kernel in kernels for test in tests_of[kernel] if _OF_WAITS in test]
    chosen = dict.fromkeys(test for test in (*spread, *waits) if test not in tried)
    instances: dict[str, list[str]] = {}
    for kernel, tests in tests_of.items():
        if not chosen.keys().isdisjoint(tests):
            instances.setdefault(kernel.source, []).append(kernel.expression)
    return Trial(tuple(chosen), {source: tuple(rows) for source, rows in instances.items()})


def _pick_instances(kernels: Sequence[Kernel], tests_of: Mapping[Kernel, Sequence[str]]) -> list[Kernel]:
    """Return some instances for each kernel and first template argument: those that most tests launch."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        first = kernel.expression.partition("<")[2].partition("<")[0].partition(",")[0]
        groups.setdefault(f"{_name(kernel)} {first}", []).append(kernel)
    ranked = [sorted(group, key=lambda kernel: -len(tests_of[kernel])) for group in groups.values()]
    return [kernel for group in ranked for kernel in group[:_INSTANCES_PER_ARGUMENT]]


def _name(kernel: Kernel) -> str:
    return f"{kernel.source}:{kernel.expression.partition('<')[0]}"


def is_blit(file: str) -> bool:
    """Return whether a kernel file is for targets with textures."""
    return file.startswith("pixel/")


def _including(header: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]]) -> set[str]:
    """Return the files that include a header, by themselves or through others."""
    sources = {kernel.source for kernel in tests_of if is_blit(kernel.source) == is_blit(header)}
    paths = index_sources(folder)
    wanted = paths[header].resolve()
    return {source for source in sources if source in paths and wanted in list_files(paths[source])}


def _spread(tests: Sequence[str], limit: int) -> list[str]:
    """Return at most so many of the tests, from all over the list."""
    step = max(1.0, len(tests) / limit)
    return [tests[int(i * step)] for i in range(min(len(tests), limit))]
