"""Rows of sizes: a recording set by rows holds what one patched with the commands holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpuexec.devices.device import Region
from gpuexec.devices.prepared import PreparedCopy, PreparedFill, PreparedLaunch, PreparedSegment
from gpuexec.devices.recorder.tracer import TracerDevice
from gpuexec.ir.plan import BOUND_ROLES, Plan, Role
from gpuexec.ir.size_layout import SizedVariant
from gpuexec.planner.symbolic_variant import SymbolicVariant, share_layout
from tests.bench.host_time import open_tracer
from tests.planner.test_symbolic_variant import DECODERS, make_template


class Recorded:
    """The segment of a plan, and addresses for its buffers."""

    def __init__(self, plan: Plan) -> None:
        self._device = TracerDevice(is_writing=False)
        self._plan = plan
        self._device.load(plan.kernels())
        arena = self._device.allocate(plan.layout.nbytes)
        memory = {number: Region(arena, at, plan.buffers[number].nbytes) for number, at in plan.layout.offsets}
        for buffer in plan.buffers:
            if buffer.role in (Role.CONSTANT, Role.COUNTERS):
                memory[buffer.id] = Region(arena, 256 * buffer.id, buffer.nbytes)
        self.segment = PreparedSegment(self._device, plan.segment.commands, memory, plan.segment.origins)

    def bind(self, seed: int) -> None:
        """Bind the buffers that are bound at submit, at addresses that differ by the seed."""
        rng = random.Random(seed)
        bindings = {
            b.id: _Fixed(256 * rng.randrange(1, 1000), b.nbytes) for b in self._plan.buffers if b.role in BOUND_ROLES
        }
        self.segment.bind(bindings)  # type: ignore[arg-type]

    def read(self) -> list[tuple[Any, ...]]:
        """Return all that reaches a device."""
        rows: list[tuple[Any, ...]] = []
        for command in self.segment.commands:
            if isinstance(command, PreparedLaunch):
                rows.append((command.config, command.arguments.read()))
                assert command.arguments.address % 8 == 0 and command.arguments.find_value(0) % 16 == 0
            elif isinstance(command, PreparedCopy):
                rows.append((tuple(command.addresses), command.nbytes))
            else:
                assert isinstance(command, PreparedFill)
                rows.append((tuple(command.addresses), command.count))
        return rows


class _Fixed:
    """A region at an address."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes


@pytest.mark.parametrize("name", DECODERS)
def test_rows_store_what_commands_patch(name: str) -> None:
    bench = DECODERS[name]()
    template, specs = make_template(bench, open_tracer())
    groups = [[(value, 2) for value in bench.state.values()]]

    def specs_of(length: int) -> dict[str, Any]:
        held = {value: specs[value] for value in bench.state.values()}
        return {**specs, **{v: s.with_shape((*s.shape[:2], length, s.shape[3])) for v, s in held.items()}}

    by_rows, by_commands = Recorded(template.plan), Recorded(template.plan)
    traced: list[SymbolicVariant] = []
    rng = random.Random(3)
    for turn in range(60):
        length = rng.randrange(250)
        found = next((each for each in (symbolic.find((length,)) for symbolic in traced) if each is not None), None)
        exact = template.specialise(specs_of(length))
        if rng.random() < 0.5:
            by_rows.bind(turn)
            by_commands.bind(turn)
        if found is None or turn % 10 == 9:  # a size that no trace holds for comes in between
            traced.append(template.trace(specs_of(length), groups))
            share_layout(traced)
            by_rows.segment.patch(exact.commands)
        else:
            assert isinstance(found, SizedVariant)
            by_rows.segment.store(found)
        by_commands.segment.patch(exact.commands)
        if rng.random() < 0.5:
            by_rows.bind(turn + 1000)
            by_commands.bind(turn + 1000)
        by_rows.segment.write()
        assert by_rows.read() == by_commands.read()
    assert len(traced) < 40
