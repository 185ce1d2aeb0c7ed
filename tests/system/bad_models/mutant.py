"""Model mutants: a file's bytes and its external files, reproducible by number."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import onnx

Item = TypeVar("Item")
# What may lie beside a model: a file's bytes, what a link points to, or None for a pipe that nobody writes to.
Beside = bytes | Path | None
Seeds = Mapping[str, Callable[[], onnx.ModelProto]]

HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
ABSURD_INTS = (-1, 0, 1, 7, -(2**31), -(2**63), 1 << 20, *HUGE)
ABSURD_FLOATS = (0.0, -1.0, 1e38, -1e38, 1e-45, float("nan"), float("inf"), float("-inf"))
ODD_STRINGS = ("", "\0", "a" * 100_000, "%s{}\n%n", "../x", "名前\u202e", "NOTSET", "\x1b[31m", "x")


@dataclass(slots=True)
class Draft:
    """A model on its way to a mutant. Mutations change ``model``, or set ``content`` where it can't be a model."""

    model: onnx.ModelProto
    rng: random.Random
    beside: dict[str, Beside] = field(default_factory=dict)
    content: bytes | None = None

    @property
    def graph(self) -> onnx.GraphProto:
        """The model's graph."""
        return self.model.graph

    def pick(self, items: Iterable[Item]) -> Item:
        """Choose one; LookupError, where there is none, says that a mutation has nothing to change."""
        return self.rng.choice(list(items))

    def attribute(self, *kinds: int) -> onnx.AttributeProto:
        """Choose an attribute of these types (none given: of any)."""
        return self.pick(a for node in self.graph.node for a in node.attribute if not kinds or a.type in kinds)

    def info(self) -> onnx.ValueInfoProto:
        """Choose an input or output of the graph."""
        return self.pick([*self.graph.input, *self.graph.output])


Mutation = Callable[[Draft], Any]
MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    """Enter a function among the mutations, under its name."""
    MUTATIONS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bad model: where it comes from, what was done to it, and its files."""

    number: int
    seed: str
    mutations: tuple[str, ...]
    content: bytes
    beside: Mapping[str, Beside]

    def write(self, folder: Path) -> Path:
        """Write the files into an empty folder and return the model's path."""
        path = folder / "model.onnx"
        path.write_bytes(self.content)
        for name, item in self.beside.items():
            target = folder / name
            if item is None:
                os.mkfifo(target)
            elif isinstance(item, Path):
                target.symlink_to(item)
            else:
                target.write_bytes(item)
        return path

    def __str__(self) -> str:
        return f"{self.number}: {self.seed} by {', '.join(self.mutations)}"


def make_mutant(number: int, seeds: Seeds) -> Mutant:
    """Return the mutant of a number: one seed, changed one to three times."""
    rng = random.Random(number)
    names = sorted(seeds)
    # Half of the mutants come from the graphs written for this: they join operators.
    written = [name for name in names if name.startswith("text/")]
    seed = rng.choice(written if rng.random() < 0.5 else names)
    draft = Draft(seeds[seed](), rng)
    done: list[str] = []
    wanted = rng.choice((1, 1, 1, 2, 3))
    while len(done) < wanted and draft.content is None:
        name, mutate = rng.choice(list(MUTATIONS.items()))
        try:
            mutate(draft)
        except LookupError:  # nothing here that it could change
            continue
        done.append(name)
    content = draft.model.SerializeToString() if draft.content is None else draft.content
    return Mutant(number, seed, tuple(done), content, draft.beside)
