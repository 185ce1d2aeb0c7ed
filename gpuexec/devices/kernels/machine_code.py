"""Machine code of kernels: instructions, loops and their figures, from the disassembly of a cubin.

`disassemble` runs nvdisasm, which comes with the package nvidia-cuda-nvdisasm (the extra ``dev``) or with a CUDA
toolkit; `parse_functions` reads its text and `measure` counts. Nothing here needs a GPU.

A loop is a natural loop of the control-flow graph, so code that the assembler moved out of line belongs to the loop it
returns to, and code that lies between a loop's branches and leaves it does not.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import heapq
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gpuexec.devices.kernels.code_files import make_folder
from gpuexec.errors import AccessError, DeviceNotFoundError, KernelError
from gpuexec.system.atomic_file import write_file

INSTALL = "pip install 'gpuexec[dev]'"

_PACKAGE = "nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^\.text\.(\S+):$", re.MULTILINE)
# An instruction with its predicate, opcode and operands, or the label of the one after it.
_LINE = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:(?P<predicate>@!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*) *(?P<operands>[^;\n]*);"
    r"|^(?P<label>[.$][^\s:]+):$",
    re.MULTILINE,
)
_TARGET = re.compile(r"`\(([^)]+)\)")
_TABLE = re.compile(r'BRANCH_TARGETS ([^"]+)"')
_WIDTH = re.compile(r"\.[US]?(8|16|32|64|128|256)\b")

_JUMPS = frozenset(("BRA", "BRX", "JMP", "JMX"))
_ENDS = frozenset(("EXIT", "RET"))
_PADDING = "NOP"
# PTX's griddepcontrol.wait.
WAIT = "ACQBULK"
_GLOBAL = frozenset(("LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "REDG", "UTMALDG", "UBLKCP"))
# A product and a sum in one, a tile of them for the matrix units.
_MULTIPLY_ADDS = frozenset(
    ("FFMA", "FFMA2", "DFMA", "HFMA2", "IDP", "HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA")
)
# Each stands with a U before it for the uniform data path, too.
_INTEGER = re.compile(
    r"U?(BMSK|BREV|FLO|IABS|IADD|IADD3|IADD32I|IMAD|IMNMX|ISCADD|ISETP|LEA|LOP|LOP3|LOP32I|POPC|PRMT|SEL|SGXT|SHF|SHL|SHR"
    r"|VABSDIFF|VIADD|VIADDMNMX|VIMNMX|VIMNMX3)"
)
# Forms of arithmetic that only move a register: IMAD.MOV, and HFMA2 of zeros, which makes a constant.
_MOVE = re.compile(r"IMAD\.(?:MOV|U32\b.*RZ, RZ)|HFMA2.* -RZ, RZ,")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction: ``@!P0 LDG.E.128 R4, desc[UR4][R2.64]``.

    ``targets`` are the indices, within its function, of the instructions that it may jump to.
    """

    predicate: str
    opcode: str
    operands: str
    targets: tuple[int, ...] = ()

    @property
    def base(self) -> str:
        """The opcode without modifiers: ``"LDG"``."""
        return self.opcode.partition(".")[0]

    @property
    def is_call(self) -> bool:
        """True for the call of a subroutine; a CALL of a label within the code is a jump, which does not return."""
        return self.base == "CALL" and not self.targets

    @property
    def leaves(self) -> bool:
        """True if the next instruction follows only where a predicate says so."""
        return self.base in _ENDS or self.base in _JUMPS or (self.base == "CALL" and not self.is_call)

    @property
    def bits(self) -> int:
        """Bits that each thread of a load or store moves."""
        widths = _WIDTH.findall(self.opcode)
        return int(widths[-1]) if widths else 32

    @property
    def is_move(self) -> bool:
        """True for arithmetic that only moves a register or makes a constant."""
        return _MOVE.match(f"{self.opcode} {self.operands}") is not None

    @property
    def is_multiply_add(self) -> bool:
        """True if it multiplies and adds floating-point numbers, or tiles of any numbers."""
        return self.base in _MULTIPLY_ADDS and not self.is_move

    @property
    def is_integer(self) -> bool:
        """True for integer arithmetic, comparison and selection, such as addresses take."""
        return _INTEGER.fullmatch(self.base) is not None and not self.is_move


@dataclass(frozen=True, slots=True)
class MachineFunction:
    """Instructions of one kernel, with the subroutines that were assembled into its section, by its symbol."""

    name: str
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class LoopFigures:
    """Counts of one trip of a loop; loads and stores by the bits that a thread moves."""

    instructions: int
    multiply_adds: int
    integers: int
    calls: int
    global_loads: Mapping[int, int] = field(default_factory=dict)
    shared_loads: Mapping[int, int] = field(default_factory=dict)
    shared_stores: Mapping[int, int] = field(default_factory=dict)

    @property
    def multiply_add_share(self) -> float:
        """Share of the issued instructions that multiply and add."""
        return self.multiply_adds / self.instructions


@dataclass(frozen=True, slots=True)
class CodeFigures:
    """Counts of a kernel's machine code.

    Attributes:
        instructions: All but padding.
        calls: Calls of subroutines, which are divisions and roots for the most part.
        local_accesses: Loads and stores of local memory: spilled registers, or arrays that are indexed at run time.
        store_bits: The widest global store.
        path_integers: Integer instructions on the shortest path from the entry to such a store; 0 without one.
        loop: The main loop; None without loops.
        opcodes: How often each opcode stands, modifiers apart.
        fast_loop: The shortest loop that multiplies and adds as often as the main loop, which differs from it where a
            kernel has a loop for each way in which its operands may lie; None without loops.
        early_accesses: Accesses of global memory on some path from the entry to the wait for the launches it depends on
            (`WAIT`); 0 without one.
    """

    instructions: int
    calls: int
    local_accesses: int
    store_bits: int
    path_integers: int
    loop: LoopFigures | None
    opcodes: Mapping[str, int]
    fast_loop: LoopFigures | None = None
    early_accesses: int = 0


@functools.cache
def find_nvdisasm() -> Path:
    """Return the disassembler: that of the installed package, else the one on PATH.

    Raises:
        DeviceNotFoundError: There is none; the message has the command.
    """
    try:
        files = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.stem == "nvdisasm" and os.access(path, os.X_OK):
            return path
    if found := shutil.which("nvdisasm"):
        return Path(found)
    raise DeviceNotFoundError(
        f"Reading machine code needs nvdisasm, which is neither installed as {_PACKAGE} nor on PATH. Run: {INSTALL}"
    )


@functools.cache
def disassembler_version() -> str:
    """Return nvdisasm's version, like ``"nvdisasm-13.5.37"``.

    Raises:
        DeviceNotFoundError: As `find_nvdisasm`.
    """
    text = subprocess.run([find_nvdisasm(), "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\bV(\d[\d.]*)", text)
    return f"nvdisasm-{match[1] if match else 'unknown'}"


def disassemble(image: bytes) -> str:
    """Return the text of a cubin's code.

    Raises:
        DeviceNotFoundError: As `find_nvdisasm`.
        KernelError: nvdisasm refuses the cubin, as an older one does that of a newer architecture.
    """
    with tempfile.TemporaryDirectory(prefix="gpuexec-") as folder:
        path = Path(folder) / "code.cubin"
        write_file(path, image, sync=False)
        done = subprocess.run([find_nvdisasm(), "--print-code", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise KernelError(f"{disassembler_version()} refuses a cubin: {done.stderr.strip()}")
    return done.stdout


def parse_functions(text: str) -> dict[str, MachineFunction]:
    """Return the functions of a disassembly by symbol."""
    starts = list(_SECTION.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    return {start[1]: _parse_function(start[1], text[start.end() : end]) for start, end in zip(starts, ends)}


def measure(function: MachineFunction) -> CodeFigures:
    """Return the figures of a function."""
    code = function.instructions
    opcodes = Counter(each.base for each in code if each.base != _PADDING)
    blocks = _BlockGraph(code)
    stores = [index for index, each in enumerate(code) if each.base == "STG"]
    store_bits = max((code[index].bits for index in stores), default=0)
    widest = [index for index in stores if code[index].bits == store_bits]
    loops = _list_main_loops(code, blocks)
    return CodeFigures(
        instructions=opcodes.total(),
        calls=sum(each.is_call for each in code),
        local_accesses=opcodes["LDL"] + opcodes["STL"],
        store_bits=store_bits,
        path_integers=sum(code[index].is_integer for index in blocks.shortest_path(widest)),
        loop=loops[-1] if loops else None,
        opcodes=dict(sorted(opcodes.items())),
        fast_loop=min(loops, key=lambda loop: loop.instructions, default=None),
        early_accesses=sum(code[index].base in _GLOBAL for index in blocks.reach({WAIT})) if opcodes[WAIT] else 0,
    )


def read_figures(image: bytes, folder: Path) -> dict[str, CodeFigures]:
    """Return the figures of a cubin's functions by symbol, from a file in ``folder`` if it was measured before.

    A folder that can't be written costs a disassembly each time.

    Raises:
        DeviceNotFoundError: As `find_nvdisasm`.
        KernelError: As `disassemble`.
    """
    path = folder / f"{hashlib.sha256(image + disassembler_version().encode() + _own_text()).hexdigest()}.json"
    try:
        return {name: _decode(row) for name, row in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # absent, truncated, or of another form
        pass
    figures = {name: measure(function) for name, function in parse_functions(disassemble(image)).items()}
    with contextlib.suppress(OSError, AccessError):
        make_folder(folder)
        text = json.dumps({name: asdict(each) for name, each in figures.items()})
        write_file(path, text, mode=0o600, sync=False)
    return figures


@functools.cache
def _own_text() -> bytes:
    """Return what decides how figures are counted: this module."""
    return Path(__file__).read_bytes()


def _decode(row: dict[str, Any]) -> CodeFigures:
    return CodeFigures(loop=_decode_loop(row.pop("loop")), fast_loop=_decode_loop(row.pop("fast_loop")), **row)


def _decode_loop(row: dict[str, Any] | None) -> LoopFigures | None:
    if row is None:
        return None
    for name in ("global_loads", "shared_loads", "shared_stores"):
        row[name] = {int(bits): count for bits, count in row[name].items()}
    return LoopFigures(**row)


def _parse_function(name: str, text: str) -> MachineFunction:
    found: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for match in _LINE.finditer(text):
        if match["label"]:
            labels[match["label"]] = len(found)
        else:
            found.append((match["predicate"] or "", match["opcode"], match["operands"].strip()))
    code = [
        Instruction(predicate, opcode, operands, _find_targets(opcode, operands, labels, len(found)))
        for predicate, opcode, operands in found
    ]
    # A section is filled up by NOPs behind a jump to itself.
    while code and (code[-1].base == _PADDING or code[-1].targets == (len(code) - 1,)):
        del code[-1]
    return MachineFunction(name, tuple(code))


def _find_targets(opcode: str, operands: str, labels: Mapping[str, int], count: int) -> tuple[int, ...]:
    base = opcode.partition(".")[0]
    names = table[1].split(",") if (table := _TABLE.search(operands)) else _TARGET.findall(operands)
    if base == "CALL":  # subroutines have names that begin with $
        names = [name for name in names if name.startswith(".L")]
    elif base not in _JUMPS:
        return ()
    return tuple(labels[name] for name in names if labels.get(name, count) < count)


def _is_conditional(instruction: Instruction) -> bool:
    """Return whether the next instruction may follow a jump or an end: a predicate guards it, or is an operand."""
    return bool(instruction.predicate) or re.match(r"!?U?P\d|UR\d", instruction.operands) is not None


class _BlockGraph:
    """Basic blocks that the entry reaches, in reverse postorder: block 0 is the entry."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        leaders = {0, *(target for each in code for target in each.targets)}
        leaders.update(i + 1 for i, each in enumerate(code) if each.leaves)
        starts = sorted(leader for leader in leaders if leader < len(code))
        ranges = dict(zip(starts, [*starts[1:], len(code)]))
        order = _reverse_postorder({start: list(_successors(code, ranges[start])) for start in ranges}) if code else []
        numbers = {start: number for number, (start, _) in enumerate(order)}
        self.code = code
        self.blocks = [range(start, ranges[start]) for start, _ in order]
        self.successors = [[numbers[each] for each in following] for _, following in order]

    def shortest_path(self, ends: Sequence[int]) -> list[int]:
        """Return the indices of the instructions on the shortest path from the entry to one of ``ends``."""
        wanted = set(ends)
        best: dict[int, tuple[int, int]] = {}  # the length up to a block's start, and the block before it
        queue = [(0, 0, -1)]
        goal: tuple[int, int, int] | None = None
        while queue:
            length, block, before = heapq.heappop(queue)
            if block in best or (goal is not None and length >= goal[0]):
                continue
            best[block] = (length, before)
            end = next((index for index in self.blocks[block] if index in wanted), None)
            if end is not None and (goal is None or length + end - self.blocks[block].start < goal[0]):
                goal = (length + end - self.blocks[block].start, block, end)
            for following in self.successors[block]:
                heapq.heappush(queue, (length + len(self.blocks[block]), following, block))
        if goal is None:
            return []
        _, block, end = goal
        path = list(range(self.blocks[block].start, end + 1))
        while (block := best[block][1]) >= 0:
            path = [*self.blocks[block], *path]
        return path

    def reach(self, ends: AbstractSet[str]) -> Iterator[int]:
        """Yield the indices of the instructions that the entry reaches before one of the opcodes ``ends``."""
        seen, pending = {0}, [0]
        while pending:
            block = pending.pop()
            for index in self.blocks[block]:
                if self.code[index].base in ends:
                    break
                yield index
            else:
                pending += [each for each in self.successors[block] if each not in seen]
                seen.update(self.successors[block])

    def loops(self) -> dict[int, set[int]]:
        """Return the blocks of the natural loops by header; loops of one header count as one."""
        before: list[list[int]] = [[] for _ in self.blocks]
        for block, following in enumerate(self.successors):
            for each in following:
                before[each].append(block)
        dominators = self._immediate_dominators(before)
        loops: dict[int, set[int]] = {}
        for block, following in enumerate(self.successors):
            for header in following:
                if not _dominates(header, block, dominators):
                    continue
                body, pending = loops.setdefault(header, {header}), [block]
                while pending:
                    each = pending.pop()
                    if each not in body:
                        body.add(each)
                        pending += before[each]
        return loops

    def _immediate_dominators(self, before: Sequence[Sequence[int]]) -> list[int]:
        """Return the immediate dominator of each block, by Cooper, Harvey and Kennedy's iteration."""
        dominators = [0] + [-1] * (len(self.blocks) - 1)
        changed = True
        while changed:
            changed = False
            for block in range(1, len(self.blocks)):
                known = [each for each in before[block] if dominators[each] >= 0]
                new = functools.reduce(lambda a, b: _common_dominator(a, b, dominators), known)
                changed, dominators[block] = changed or dominators[block] != new, new
        return dominators


def _successors(code: Sequence[Instruction], end: int) -> Iterator[int]:
    last = code[end - 1]
    yield from last.targets
    if end < len(code) and (not last.leaves or _is_conditional(last)):
        yield end


def _reverse_postorder(successors: Mapping[int, list[int]]) -> list[tuple[int, list[int]]]:
    """Return the nodes that 0 reaches, each with its successors."""
    order: list[int] = []
    seen = {0}
    stack = [(0, iter(successors[0]))]
    while stack:
        node, remaining = stack[-1]
        for each in remaining:
            if each not in seen:
                seen.add(each)
                stack.append((each, iter(successors[each])))
                break
        else:
            order.append(node)
            stack.pop()
    return [(node, successors[node]) for node in reversed(order)]


def _common_dominator(a: int, b: int, dominators: Sequence[int]) -> int:
    while a != b:
        while a > b:
            a = dominators[a]
        while b > a:
            b = dominators[b]
    return a


def _dominates(header: int, block: int, dominators: Sequence[int]) -> bool:
    while block > header:
        block = dominators[block]
    return block == header


def _list_main_loops(code: Sequence[Instruction], blocks: _BlockGraph) -> list[LoopFigures]:
    """Return the innermost loops that multiply and add most; the last is that which loads most, else the longest."""
    loops = blocks.loops()
    innermost = [body for header, body in loops.items() if not any(other in body for other in loops if other != header)]
    figures = [_measure_loop([code[i] for block in body for i in blocks.blocks[block]]) for body in innermost]
    most = max((loop.multiply_adds for loop in figures), default=0)
    found = [loop for loop in figures if loop.multiply_adds == most]
    return sorted(found, key=lambda loop: (sum(loop.global_loads.values()), loop.instructions))


def _measure_loop(body: Sequence[Instruction]) -> LoopFigures:
    def count(*bases: str) -> dict[int, int]:
        return dict(sorted(Counter(each.bits for each in body if each.base in bases).items()))

    return LoopFigures(
        instructions=sum(each.base != _PADDING for each in body),
        multiply_adds=sum(each.is_multiply_add for each in body),
        integers=sum(each.is_integer for each in body),
        calls=sum(each.is_call for each in body),
        global_loads=count("LDG", "LDGSTS"),
        shared_loads=count("LDS"),
        shared_stores=count("STS", "LDGSTS"),
    )
