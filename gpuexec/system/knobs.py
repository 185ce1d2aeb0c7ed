"""Environment variables: names, accepted values, defaults and meanings in one table.

They are read when asked for, never at import. A value that a variable does not take is an error that names it; a name
that looks like one of these, and is none, is warned of once.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuexec.errors import InputError

PREFIX = "GPUEXEC_"
_FLAGS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_NUMBERS = {
    int: re.compile(r"[+-]?[0-9]{1,30}", re.ASCII),
    float: re.compile(r"[+-]?[0-9]{1,30}(\.[0-9]{0,30})?", re.ASCII),
}
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Knob:
    """An environment variable.

    Attributes:
        name: Of the variable.
        kind: The Python type of its values: bool, int, float or str. An empty text is as if it were not set.
        default: Its value where it is not set; None: computed where it is used, as described by ``default_text``.
        meaning: One sentence.
        minimum: Of a number.
        maximum: Of a number.
        default_text: The default in words.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    default: bool | int | float | None
    meaning: str
    minimum: int = 0
    maximum: int = 0
    default_text: str = ""

    def describe_default(self) -> str:
        """Return the default as it would be typed, or in words."""
        return self.default_text or ("not set" if self.default is None else f"{float(self.default):.20g}")

    def describe_values(self) -> str:
        """Return the accepted values, in words."""
        if self.kind is bool:
            return "1 or 0 (also true, yes, on; false, no, off)"
        if self.kind is str:
            return "a text"
        return f"a {'whole ' if self.kind is int else ''}number from {self.minimum} to {self.maximum}"

    def parse(self, text: str) -> bool | int | float | str | None:
        """Parse the text of a value; None for an empty one where texts are accepted.

        Raises:
            InputError: The variable does not take it.
        """
        word = text.strip()
        if self.kind is str:
            return text or None
        if self.kind is bool and word.lower() in _FLAGS:
            return _FLAGS[word.lower()]
        if self.kind in _NUMBERS and _NUMBERS[self.kind].fullmatch(word):
            number = int(word) if self.kind is int else float(word)
            if self.minimum <= number <= self.maximum:
                return number
        got = repr(text) if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]!r}..."
        raise InputError(
            f"The environment variable {self.name} takes {self.describe_values()}, got {got or 'nothing'}."
            f" Unset it for the default: {self.describe_default()}."
        )

    def read(self) -> bool | int | float | str | None:
        """Return the value in the environment, or the default.

        Raises:
            InputError: The variable does not take it.
        """
        text = os.environ.get(self.name)
        return self.default if text is None else self.parse(text)


_MAX_BYTES = 2**63 - 1
_CORES = "one per core"
MOST_THREADS = 4096

KNOBS: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            "GPUEXEC_CACHE_DIR", str, None, "Folder of compiled kernels, which are code: keep it to yourself.",
            default_text="gpuexec in XDG_CACHE_HOME, else in ~/.cache",
        ),
        Knob(
            "GPUEXEC_GRAPH_BYTES", int, 512 << 20, "Bytes that the graphs of a Worker may take, by estimate; 0: none.",
            0, _MAX_BYTES,
        ),
        Knob(
            "GPUEXEC_POOL_BYTES", int, 512 << 20, "Freed bytes a GPU keeps to use again, and as many pinned.",
            0, _MAX_BYTES,
        ),
        Knob("GPUEXEC_PACKED_LAUNCH", bool, True, "Launch through the driver with a prepared block, not by RawKernel."),
        Knob("GPUEXEC_DEPENDENT_LAUNCH", bool, True, "Kernels begin before those they wait for are done (sm_90 up)."),
        Knob("GPUEXEC_SPIN_US", float, 50.0, "Microseconds that waits poll before they block; 0: none.", 0, 10**9),
        Knob("GPUEXEC_CLOSE_GRACE", float, 10.0, "Seconds that close() waits before it cancels runs.", 0, 10**9),
        Knob("GPUEXEC_CPU_THREADS", int, None, "Cores that a run on the CPU takes.", 1, MOST_THREADS, _CORES),
        Knob("GPUEXEC_BUILD_JOBS", int, None, "Compilers that run at once.", 1, 4096, _CORES),
        Knob("GPUEXEC_CXX", str, None, "C++17 compiler of the simulator.", default_text="g++, then clang++"),
        Knob("GPUEXEC_SIMULATORS", int, 2, "Simulated GPUs, for what runs on several.", 1, 64),
        Knob("GPUEXEC_PROGRESS", bool, True, "Show work that takes longer than a second in a terminal or notebook."),
        Knob("GPUEXEC_SYNC_EACH", bool, False, "Wait after every command, so that a device fault names its command."),
        Knob("GPUEXEC_CHECK_ORDER", bool, True, "Simulators refuse unordered accesses to the same bytes."),
        Knob("GPUEXEC_CHECK_KERNELS", bool, False, "Simulators look for races and invalid accesses in kernels."),
        Knob("GPUEXEC_CHECK_SEED", int, 0, "Order in which threads take turns in check mode.", 0, 2**64 - 1),
        Knob("GPUEXEC_MODELS", str, None, "Folder of models with inputs and reference outputs, for the tests."),
        Knob("GPUEXEC_REQUIRE_GPU", bool, False, "Tests fail where there is no GPU, in place of being skipped."),
    )
}  # fmt: skip


def check_environment() -> None:
    """Check every environment variable of the package that is set.

    Warns (RuntimeWarning) of names that are none of the package's, but look like one.

    Raises:
        InputError: One has a value that it does not take; names it, what it takes and what it got.
    """
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        knob = KNOBS.get(name)
        if knob is not None:
            knob.read()
        elif name not in _warned:
            _warned.add(name)
            for meant in difflib.get_close_matches(name, KNOBS, 1, 0.8):
                warnings.warn(
                    f"The environment variable {name} is not read by gpuexec; {meant} is. `gpuexec doctor` lists all.",
                    RuntimeWarning,
                    stacklevel=2,
                )


_warned: set[str] = set()


def list_settings() -> Iterator[tuple[Knob, str]]:
    """Yield each variable with its text in the environment, or its default."""
    for knob in KNOBS.values():
        yield knob, os.environ.get(knob.name) or knob.describe_default()


def read_flag(name: str) -> bool:
    """Return an on/off variable of the table."""
    return bool(KNOBS[name].read())


def read_number(name: str) -> int | None:
    """Return a number of the table; None where it is not set and has no default of its own."""
    value = KNOBS[name].read()
    return None if value is None else int(value)


def read_text(name: str) -> str | None:
    """Return a text of the table; None where it is not set, or empty."""
    value = KNOBS[name].read()
    return None if value is None else str(value)


def kernel_cache_dir() -> Path | None:
    """GPUEXEC_CACHE_DIR: where compiled kernels are kept (default: the user's cache folder).

    None where that is not known: there is no home, or what the environment gives for it is no absolute path. A folder
    is never taken from where the process happens to be, unless GPUEXEC_CACHE_DIR says so.
    """
    explicit = read_text("GPUEXEC_CACHE_DIR")
    if explicit:
        return Path(os.path.expanduser(explicit)).absolute()
    home = os.path.expanduser("~")
    if not os.path.isabs(os.environ.get("HOME", home)):
        home = ""  # a relative home is not used, and "" must not become the root
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return Path(base) / "gpuexec" if os.path.isabs(base) else None


def models_dir() -> Path | None:
    """GPUEXEC_MODELS: a folder of models with inputs and reference outputs, for the tests over models."""
    value = read_text("GPUEXEC_MODELS")
    return Path(value) if value else None


def shows_progress() -> bool:
    """GPUEXEC_PROGRESS: show work that takes longer than a second in a terminal or notebook (default: yes)."""
    return read_flag("GPUEXEC_PROGRESS")


def sync_each() -> bool:
    """GPUEXEC_SYNC_EACH: wait after every command, so that a device fault names its command."""
    return read_flag("GPUEXEC_SYNC_EACH")


def check_order() -> bool:
    """GPUEXEC_CHECK_ORDER: whether simulators refuse unordered accesses to the same bytes (default: yes)."""
    return read_flag("GPUEXEC_CHECK_ORDER")


def simulated_devices() -> int:
    """GPUEXEC_SIMULATORS: how many simulated GPUs there are, for what runs on several (default: 2)."""
    return read_number("GPUEXEC_SIMULATORS") or 0


def check_kernels() -> bool:
    """GPUEXEC_CHECK_KERNELS: whether simulators run kernels in check mode, which finds races and invalid accesses."""
    return read_flag("GPUEXEC_CHECK_KERNELS")


def check_seed() -> int:
    """GPUEXEC_CHECK_SEED: in which order threads take turns in check mode (default: 0); another seed, another order."""
    return read_number("GPUEXEC_CHECK_SEED") or 0


def packed_launch() -> bool:
    """GPUEXEC_PACKED_LAUNCH: launch kernels by one call of the driver on a prepared block of arguments (default: yes).

    Off, each launch goes through CuPy's RawKernel, which computes the same and costs the host more.
    """
    return read_flag("GPUEXEC_PACKED_LAUNCH")


def dependent_launch() -> bool:
    """GPUEXEC_DEPENDENT_LAUNCH: kernels that wait for others themselves begin before these are done (default: yes).

    From sm_90 on. Off, each launch begins when those it depends on are complete.
    """
    return read_flag("GPUEXEC_DEPENDENT_LAUNCH")


def spin_us() -> float:
    """GPUEXEC_SPIN_US: for how many microseconds waits poll before they block (default: 50; 0: they block at once)."""
    return float(KNOBS["GPUEXEC_SPIN_US"].read() or 0)


def graph_bytes() -> int:
    """GPUEXEC_GRAPH_BYTES: how many bytes the graphs of a Worker may take, by estimate (default: 512 MiB; 0: none)."""
    return read_number("GPUEXEC_GRAPH_BYTES") or 0


def pool_bytes() -> int:
    """GPUEXEC_POOL_BYTES: how many freed bytes a GPU keeps to use again, and as many pinned (default: 512 MiB)."""
    return read_number("GPUEXEC_POOL_BYTES") or 0


def cxx() -> str | None:
    """GPUEXEC_CXX: the C++17 compiler the simulator uses (default: g++, then clang++)."""
    return read_text("GPUEXEC_CXX")


def build_jobs() -> int:
    """GPUEXEC_BUILD_JOBS: how many compilers run at once (default: one per core)."""
    return read_number("GPUEXEC_BUILD_JOBS") or os.cpu_count() or 1


def compute_threads() -> int:
    """GPUEXEC_CPU_THREADS: how many cores a run on the CPU takes (default: those that the process may run on)."""
    return read_number("GPUEXEC_CPU_THREADS") or _count_cores()


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def close_grace_s() -> float:
    """GPUEXEC_CLOSE_GRACE: seconds that `close` waits before it cancels runs nobody waits for (default: 10)."""
    return float(KNOBS["GPUEXEC_CLOSE_GRACE"].read() or 0.0)
