"""Test selection for a mutant: tests that launch kernels of its file, spread over kernels and cases."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuexec.devices.kernels.kernel_source import index_sources, list_files
from gpuexec.ir.command import Kernel
from tests.devices.launches import ROOT

TESTS = ROOT / "tests" / "ops"
_INSTANCES_PER_ARGUMENT = 2
# Tests that alone notice a kernel which waits for no predecessor: of a kernel file none of them is left out.
_OF_WAITS = "/test_dependent_launch.py::"
# Test files that name every kernel file.
_OF_ALL_FILES = ("test_dependent_launch.py", "test_facts.py", "test_launch_forms.py")
# Headers some of whose code only some plans launch, those for an architecture or of several operators, and the test
# files that make such plans.
_OF_PLANS = {
    **dict.fromkeys(
        ("group_tile.cuh", "wgmma.cuh"),
        ("tests/ops/test_mma_gemm.py", "tests/devices/simulator/test_group_products.py"),
    ),
    "epilogue.cuh": ("tests/planner/test_concat_windows.py",),
}
_DEFINITION = re.compile(r"^__device__[\w\s]*?\b(\w+)\(", re.MULTILINE)
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Breadth:
    """How much a trial has: tests of a kernel, the same where a header is tried, files that try a header."""

    tests: int
    of_headers: int
    includers: int = 1000


# Three tests find most mutants, with few instances to compile for each; 200 are all that there are.
_FEW, _MANY, _ALL = Breadth(3, 3, includers=1), Breadth(40, 8), Breadth(200, 200)


@dataclass(frozen=True, slots=True)
class Trial:
    """Tests in the order to run them, and the kernel instances they need by file.

    A path stands for all tests of that file which run kernels. Without instances the table of instances stays whole.
    """

    tests: tuple[str, ...]
    instances: Mapping[str, tuple[str, ...]] | None


def choose_trials(file: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]]) -> tuple[Trial, ...]:
    """Return what tries the mutants of a kernel file, in rounds: each is for those that survive the rounds before."""
    calling = choose_calling(file, folder, tests_of)
    trials = [calling] if calling.tests else []
    for breadth in (_FEW, _MANY, _ALL):
        tried = {test for trial in trials for test in trial.tests}
        trials.append(choose_trial(file, folder, tests_of, breadth, tried))
    return (*trials, choose_apart(file, folder, tests_of))


def choose_trial(
    file: str,
    folder: Path,
    tests_of: Mapping[Kernel, Sequence[str]],
    breadth: Breadth = _MANY,
    tried: Collection[str] = (),
) -> Trial:
    """Return tests for the mutants of a kernel file.

    A header is tried by files that include it, one that blits share with kernels by the kernels. Of the broadest trial
    no test that bears on the file is left out.

    Args:
        file: Name of a ``.cu`` or ``.cuh``.
        folder: Where kernels stand.
        tests_of: The tests that launch each kernel.
        breadth: How much there is in the trial.
        tried: Tests that were run already.
    """
    is_header = not file.endswith(".cu")
    sources = _including(file, folder, tests_of, breadth.includers) if is_header else {file}
    limit = breadth.of_headers if is_header else breadth.tests
    kernels = [kernel for kernel in tests_of if kernel.source in sources]
    by_kernel: dict[str, dict[str, None]] = {}
    for kernel in kernels if breadth == _ALL else _pick_instances(kernels, tests_of, breadth):
        own = [test for test in tests_of[kernel] if f"/test_{Path(kernel.source).stem}.py" in test]
        wanted = (*own, *tests_of[kernel]) if breadth == _ALL else own or tests_of[kernel]
        by_kernel.setdefault(_name(kernel), {}).update(dict.fromkeys(wanted))
    spread = [test for tests in by_kernel.values() for test in _spread(list(tests), limit)]
    has_waits = not is_header and breadth != _FEW
    waits = [test for kernel in kernels for test in tests_of[kernel] if _OF_WAITS in test] if has_waits else []
    return _try_by([test for test in (*spread, *waits) if test not in tried], tests_of)


def choose_calling(file: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]]) -> Trial:
    """Return tests of generated text that calls functions of a header: for each set of functions one of a kernel file.

    Args:
        file: Name of a ``.cu``, of which nothing is chosen, or ``.cuh``.
        folder: Where kernels stand.
        tests_of: The tests that launch each kernel.
    """
    if file.endswith(".cu"):
        return Trial((), {})
    functions = set(_DEFINITION.findall(index_sources(folder)[file].read_text()))
    found: dict[frozenset[str], dict[str, str]] = {}  # by set, and by kernel file
    for kernel, tests in tests_of.items():
        called = functions.intersection(_WORD.findall(kernel.text))
        if called and is_blit(kernel.source) == is_blit(file):
            found.setdefault(frozenset(called), {}).setdefault(kernel.source, tests[0])
    # The first of each set, then the second.
    turns = itertools.zip_longest(*[tests.values() for tests in found.values()])
    return _try_by([test for turn in turns for test in turn if test is not None], tests_of)


def _try_by(tests: Sequence[str], tests_of: Mapping[Kernel, Sequence[str]]) -> Trial:
    """Return a trial of tests, with what they launch. Generated text is compiled with its plan."""
    chosen = dict.fromkeys(tests)
    instances: dict[str, list[str]] = {}
    for kernel, own in tests_of.items():
        if not kernel.text and not chosen.keys().isdisjoint(own):
            instances.setdefault(kernel.source, []).append(kernel.expression)
    return Trial(tuple(chosen), {source: tuple(rows) for source, rows in instances.items()})


def choose_apart(file: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]], tests: Path = TESTS) -> Trial:
    """Return the test files that launch kernels of a file by themselves, without operator cases: those that name it,
    or bear its name.

    A header is tried by those of one file that includes it, or by those that make the plans it is for.

    Args:
        file: Name of a ``.cu`` or ``.cuh``.
        folder: Where kernels stand.
        tests_of: The tests that launch each kernel.
        tests: The folder of operators' tests.
    """
    if file in _OF_PLANS:
        return Trial(_OF_PLANS[file], None)
    sources = _including(file, folder, tests_of, _FEW.includers) if not file.endswith(".cu") else {file}
    paths = [path for path in sorted(tests.rglob("test_*.py")) if path.name not in _OF_ALL_FILES]
    stems = {Path(source).stem for source in sources}
    found = [
        path
        for path in paths
        if path.stem.removeprefix("test_") in stems or any(f'"{name}' in path.read_text() for name in {file, *sources})
    ]
    return Trial(tuple(path.relative_to(tests.parents[1]).as_posix() for path in found), None)


def _pick_instances(
    kernels: Sequence[Kernel], tests_of: Mapping[Kernel, Sequence[str]], breadth: Breadth
) -> list[Kernel]:
    """Return the instances that most tests launch: one of each kernel for few tests, else some of each first template
    argument."""
    groups: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        first = "" if breadth == _FEW else kernel.expression.partition("<")[2].partition("<")[0].partition(",")[0]
        groups.setdefault(f"{_name(kernel)} {first}", []).append(kernel)
    ranked = [sorted(group, key=lambda kernel: -len(tests_of[kernel])) for group in groups.values()]
    return [kernel for group in ranked for kernel in group[: 1 if breadth == _FEW else _INSTANCES_PER_ARGUMENT]]


def _name(kernel: Kernel) -> str:
    return f"{kernel.source}:{kernel.expression.partition('<')[0]}"


def is_blit(file: str) -> bool:
    """Return whether a kernel file is for targets with textures."""
    return file.startswith("pixel/")


def _including(header: str, folder: Path, tests_of: Mapping[Kernel, Sequence[str]], limit: int = 1000) -> set[str]:
    """Return files that include a header, by themselves or through others: first those with the most tests."""
    sources = Counter[str]()
    for kernel, tests in tests_of.items():
        if is_blit(kernel.source) == is_blit(header):
            sources[kernel.source] += len(tests)
    paths = index_sources(folder)
    wanted = paths[header].resolve()
    found = [source for source, _ in sources.most_common() if source in paths and wanted in list_files(paths[source])]
    return set(found[:limit])


def _spread(tests: Sequence[str], limit: int) -> list[str]:
    """Return at most so many of the tests, from all over the list."""
    step = max(1.0, len(tests) / limit)
    return [tests[int(i * step)] for i in range(min(len(tests), limit))]
