"""Source rewriting for a host compiler: ``__shared__`` variables and kernel entry points as plain C++."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuexec.errors import KernelError

_ALIGN = re.compile(r"(?:__align__|alignas)\s*\(\s*([^()]*)\s*\)")
_SHARED = re.compile(
    r"(?P<before>(?:\b(?:extern|static|volatile)\b\s*|(?:__align__|alignas)\s*\([^()]*\)\s*)*)"
    r"\b__shared__\b(?P<rest>[^;{}]*);"
)
_DECLARATOR = re.compile(r"(?P<type>.*?[\w>*])\s*\b(?P<name>[A-Za-z_]\w*)\s*(?P<extents>(?:\[[^\]]*\]\s*)*)", re.S)
_BOUNDED = re.compile(
    r"__global__\s+(?:void\s+)?__launch_bounds__\s*\(\s*(?P<bound>\w+)[^()]*\)\s*(?:void\s+)?(?P<name>\w+)\s*\("
)
# The symbol of the table of a file's kernels, before it has the suffix of all that the file's object defines.
ROWS = "gpuexec_rows"
_CONSTANT = re.compile(r"\bconstexpr\s+(?:int|unsigned)\s+(?P<name>\w+)\s*=\s*(?P<value>\d+)\s*;")


def rewrite_shared(text: str, source: str) -> str:
    """Replace each ``__shared__`` variable by a reference into the block's shared memory.

    So the runtime knows every variable's extent, poisons it per block, and can run several blocks at a time.

    Args:
        text: Without comments.
        source: Name of the file, for messages.

    Raises:
        KernelError: A statement declares several variables, or has an initialiser.
    """

    def replace(match: re.Match[str]) -> str:
        statement = match["before"] + match["rest"]
        alignments = _ALIGN.findall(statement)
        declarator = _DECLARATOR.fullmatch(_ALIGN.sub(" ", match["rest"]).strip())
        if declarator is None or _has_several(declarator["type"]):
            raise KernelError(
                f"{source}: '__shared__{match['rest']};' is more than the simulator reads; declare one variable per"
                " __shared__ statement, without an initialiser."
            )
        kind, name, extents = declarator["type"], declarator["name"], declarator["extents"]
        if re.search(r"\bvolatile\b", match["before"]):
            kind = f"volatile {kind}"
        if re.search(r"\bextern\b", match["before"]):
            replaced = f"{kind}* const {name} = reinterpret_cast<{kind}*>(gpuexec_position.dynamic_shared);"
        else:
            alignment = ", ".join(alignments) or "1"
            replaced = (
                f"typedef {kind} {name}__type{extents}; static const char {name}__key = 0;"
                f' {name}__type& {name} = gpuexec::shared<{name}__type, {alignment}>(&{name}__key, "{name}");'
            )
        return " ".join(replaced.split()) + "\n" * match[0].count("\n")

    return _SHARED.sub(replace, text)


def write_rows(expressions: Sequence[str]) -> str:
    """Return C++ that lists the kernels named by ``expressions``; an error in one is reported under its name."""
    rows = "".join(
        f'#line 1 "name expression {expression}"\ngpuexec::Invoke<&{expression}>::row,\n' for expression in expressions
    )
    table = f"extern const gpuexec::Row {ROWS}[{len(expressions)}] = {{\n{rows}}};"
    return f'\nextern "C" {{\n#pragma GCC visibility push(default)\n{table}\n#pragma GCC visibility pop\n}}\n'


def find_launch_bounds(text: str) -> Mapping[str, int]:
    """Return the most threads per block by kernel name, where ``__launch_bounds__`` is a number or a named constant."""
    constants = {match["name"]: int(match["value"]) for match in _CONSTANT.finditer(text)}
    bounds = {}
    for match in _BOUNDED.finditer(text):
        bound = match["bound"]
        if bound.isdigit():
            bounds[match["name"]] = int(bound)
        elif bound in constants:
            bounds[match["name"]] = constants[bound]
    return bounds


def _has_several(declared: str) -> bool:
    """Return whether a comma stands outside of template arguments and parentheses."""
    depth = 0
    for character in declared:
        depth += (character in "<([") - (character in ">)]")
        if character == "," and depth == 0:
            return True
    return False
