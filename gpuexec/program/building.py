"""Building of programs: shapes declared, plans and kernels made for each method.

Nothing of it needs a device, and kernels need NVRTC only where architectures are named.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuexec.devices.kernels import nvrtc
from gpuexec.devices.kernels.kernel_cache import KernelCache
from gpuexec.devices.kernels.kernel_library import KernelLibrary
from gpuexec.devices.kernels.stored_code import StoredCode, StoredKernel
from gpuexec.errors import GpuexecError, InputError, NeedsHostValue, locate
from gpuexec.ir.command import Kernel
from gpuexec.ir.graphs import Array, Graph, bodies, with_bodies
from gpuexec.ir.plan import Plan
from gpuexec.ir.target import Target
from gpuexec.model.model import Model
from gpuexec.program.bounds import Bounds, declare_shapes, find_bounds
from gpuexec.program.cases import Case, make_case
from gpuexec.program.contents import Bound, Contents, StoredCase, StoredMethod
from gpuexec.program.dry_run import Memo
from gpuexec.program.method_plan import plan_method
from gpuexec.program.rehearsing import make_array, rehearse
from gpuexec.system.mapped import hash_content, view_bytes
from gpuexec.system.version import VERSION

# Extents of inputs that nothing bounds, where a method is followed without a case.
_ANY_EXTENT = 4


def build_contents(
    models: Mapping[str, Model],
    *,
    shapes: Mapping[str, Mapping[str, Sequence[Bound | None]]] | None = None,
    architectures: Sequence[str] = (),
    cases: Mapping[str, Iterable[Case | StoredCase]] | None = None,
    writer: str = f"gpuexec {VERSION}",
    cache: KernelCache | None = None,
) -> Contents:
    """Make the contents of a program.

    Args:
        models: By name of the method.
        shapes: For each method, extents or ranges of them by input; what is left out comes from what the model
            declares and from its ``dims``. A method with an input that is not bounded gets no plans.
        architectures: To plan and compile for beside the CPU, like ``"sm_90"``; PTX of the newest serves later ones.
        cases: To test each method with.
        writer: Who writes it, as messages name it.
        cache: Of kernels; None: the user's.

    Raises:
        InputError: A name, shape or case does not fit its model; names the method.
        UnsupportedError: Operators have no kernels on an architecture; lists all.
        DeviceNotFoundError: Architectures are named and NVRTC is not installed.
    """
    for what, given in (("models", models), ("shapes", shapes or {}), ("cases", cases or {})):
        check_named(what, given)
    if isinstance(architectures, str):
        raise InputError(f"Architectures are a list, [{architectures!r}], got the text {architectures!r}.")
    odd = [name for name in models if not isinstance(name, str) or not name]
    if odd:
        raise InputError(f"A method's name is a text, got {odd[0]!r}.")
    if not models:
        raise InputError("A program needs a method at least: {'forward': model}.")
    for what, given in (("shapes", shapes or {}), ("cases", cases or {})):
        unknown = sorted(set(given) - set(models))
        if unknown:
            raise InputError(f"There are {what} for {', '.join(unknown)}; the methods are {', '.join(models)}.")
    targets = [Target.named(name) for name in ("cpu", *dict.fromkeys(architectures))]
    textured = [target.name for target in targets if target.has_textures]
    if textured:
        raise InputError(
            f"A program holds code for architectures like sm_90; for {textured[0]} blits are compiled on use."
        )
    methods = {}
    kernels: dict[str, list[Kernel]] = {target.name: [] for target in targets}
    for name, shared in share_weights(models).items():
        try:
            model = declare_shapes(shared, (shapes or {}).get(name))
            model._plans = {target.name: _make_plans(model, target) for target in targets}
            rows = (cases or {}).get(name, ())
            if not isinstance(rows, Iterable):
                raise InputError(f"its cases are a list of Case(inputs, outputs), got a {type(rows).__name__}.")
            made = tuple([case if isinstance(case, StoredCase) else make_case(model, case) for case in rows])
            found, gaps = _find_kernels(model, targets[1:], made)
        except GpuexecError as error:
            raise locate(error, f"Method {name!r}", error.node) from None
        for target_name, each in found.items():
            kernels[target_name] += each
        methods[name] = StoredMethod(model, model._plans, made, gaps)
    code = compile_code(kernels, targets[1:], cache)
    for method in methods.values():
        method.model._code = code
    return Contents(methods, code, writer=writer)


def check_named(what: str, given: object) -> None:
    """Check that something is given by name of the method.

    Raises:
        InputError: It is not.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"{what.capitalize()} are given by name of the method; got a {type(given).__name__}.")


def share_weights(models: Mapping[str, Model]) -> dict[str, Model]:
    """Return models in which equal constants are one array, and which share what lies on devices of them."""
    known: dict[object, Array] = {}
    shared: dict[str, Model] = {}
    first: Model | None = None
    for name, model in models.items():
        same = shared[name] = copy.copy(model)
        same.graph = _share(model.graph, known)
        same._unlowered = None if model._unlowered is None else _share(model._unlowered, known)
        first = first or same
        same._slabs, same._lock = ({}, first._lock) if first is same else (first._slabs, first._lock)
    return shared


def _make_plans(model: Model, target: Target) -> tuple[Plan, ...]:
    """Return the plan that can be made beforehand: of the model, or of its first part where the host has a say."""
    try:
        plan = plan_method(model, target).plan
    except NeedsHostValue:  # content decides from the start
        return ()
    return () if plan is None else (plan,)


def _find_kernels(
    model: Model, targets: Sequence[Target], cases: Sequence[StoredCase]
) -> tuple[dict[str, tuple[Kernel, ...]], tuple[str, ...]]:
    """Return the kernels a model launches, by name of the target, and the gaps."""
    found: dict[str, tuple[Kernel, ...]] = {}
    gaps: dict[str, None] = {}
    memo = Memo()
    generated = [] if cases else [_make_inputs(find_bounds(model))]
    for target in targets:
        planned = plan_method(model, target)
        if planned.plan is not None and not planned.gaps:
            found[target.name] = planned.plan.kernels()
            continue
        rehearsal = rehearse(model, target, [*(case.inputs for case in cases), *generated], memo)
        found[target.name] = rehearsal.kernels
        gaps.update(dict.fromkeys(rehearsal.gaps))
    return found, tuple(gaps)


def _make_inputs(bounds: Sequence[Bounds]) -> dict[str, Array]:
    """Return inputs of the largest shapes, with `_ANY_EXTENT` where nothing bounds one."""
    random = np.random.default_rng(0)
    made = {}
    for each in bounds:
        shape = tuple([_ANY_EXTENT if extent is None else extent for extent in each.sizes or ()])
        made[each.name] = make_array(shape, each.declared.dtype, random)
    return made


def compile_code(
    kernels: Mapping[str, Iterable[Kernel]], targets: Sequence[Target], cache: KernelCache | None = None
) -> StoredCode:
    """Return kernels compiled for each of the targets, and as PTX for the newest.

    Args:
        kernels: By name of the target; one may be given again.
        targets: What to compile for.
        cache: Where compiled kernels are kept; None: the user's.

    Raises:
        DeviceNotFoundError: NVRTC is not installed.
        KernelError: A kernel does not compile.
    """
    rows = [(target.name, target.name) for target in targets]
    if targets:
        newest = max(targets, key=lambda target: (target.architecture, target.suffix))
        rows.append((newest.name, f"compute_{newest.architecture}"))
    stored: list[StoredKernel] = []
    for name, architecture in rows:
        used = list(dict.fromkeys(kernels.get(name, ())))
        for kernel, entry in KernelLibrary(architecture, cache).compile(used, apart=True).items():
            made = entry.cubin.kernels[0]
            stored.append(
                StoredKernel(
                    key=entry.key,
                    kernel=kernel,
                    architecture=architecture,
                    compiler=nvrtc.compiler_version(),
                    lowered_name=made.lowered_name,
                    image=memoryview(entry.cubin.image),
                    registers=made.registers,
                    shared_bytes=made.shared_bytes,
                    max_threads=made.max_threads,
                )
            )
    return StoredCode(tuple(sorted(stored, key=lambda each: (each.architecture, each.kernel.source, each.key))))


def _share(graph: Graph, known: dict[object, Array]) -> Graph:
    constants = {value: _share_array(array, known) for value, array in graph.constants.items()}
    nodes = []
    for node in graph.nodes:
        inner = bodies(node.operator)
        changed = [_share(body, known) for body in inner]
        nodes.append(replace(node, operator=with_bodies(node.operator, changed)) if inner else node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _share_array(array: Array, known: dict[object, Array]) -> Array:
    if array.dtype.hasobject:
        return array
    return known.setdefault((array.dtype, array.shape, hash_content(view_bytes(array))), array)
