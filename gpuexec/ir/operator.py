"""The Operator protocol, the facts on a class, the registry, and tolerance classes.

An operator is an ONNX op with its attributes bound, as typed fields with ONNX's defaults. ``infer`` gives shapes and
dtypes, ``compute`` the result in NumPy, ``lower`` the commands of a device with kernels. ``tolerance`` says how a
test may compare, ``uses_all_cores`` how the CPU backend may schedule ``compute``; what passes and profilers ask
(operations, types kept, derivatives, blits, epilogues) stands on the class too.

    @operator("Trilu")
    @dataclass(frozen=True, slots=True)
    class Trilu(Operator):
        upper: int = 1

        def infer(self, x: TensorSpec, k: TensorSpec | None = None) -> tuple[TensorSpec, ...]: ...
        def compute(self, x: Array, k: Array | None = None, *, out: Out = None) -> tuple[Array, ...]: ...
        def lower(self, emit: Emitter, inputs: Slots, outputs: Slots) -> None: ...

``infer`` and ``compute`` name the inputs alike, in ONNX's order; one that may be absent is None by default, and ``out``
is given by keyword. Only what takes any number of inputs, or takes them in groups, writes ``*inputs``. ``lower`` and
the facts (``count_flops``, ``is_noop``, ``is_lowered``, ``find_dtype``) take tuples, since those who ask them know an
input by its position alone.

Operators register themselves by ONNX name; ``build`` makes one from a name and attributes, ``describe`` goes the
other way.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from gpuexec.errors import InputError
from gpuexec.ir.command import Argument, Command, Kernel, Slot
from gpuexec.ir.index_map import IndexMap
from gpuexec.ir.pointwise import Pointwise
from gpuexec.ir.provider import Posed
from gpuexec.ir.row_form import RowForm
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ir.weight_forms import WeightForm
from gpuexec.system.extensions import load_domain

Array = np.ndarray[Any, Any]
Slots = tuple[Slot | None, ...]  # None: absent, or not wanted
Out = Sequence[Array | None] | None  # arrays that `compute` may write its outputs to
PreparedCalls = Sequence[Callable[[], object]]  # what `prepare` returns
OWN_OPERATORS = (
    "`gpuexec ops` lists what is supported. Operators of your own are registered before loading: ARCHITECTURE.md,"
    " Adding an operator; examples/snake.py."
)
_NAMES_SUGGESTED = 3
# Checks of attributes by annotation of a field; those with any other annotation are not checked.
_SCALARS: Mapping[str, type] = {"int": Integral, "float": Real, "str": str}
_LISTS: Mapping[str, type] = {f"tuple[{name}, ...]": kind for name, kind in _SCALARS.items()}
_Fields = dict[str, dataclasses.Field[Any]]


class Tolerance(Enum):
    """Allowed difference between the outputs of two implementations.

    EXACT: the same bits (any NaN equals any NaN). ROUNDING: 4 ulp of the output type. REDUCTION: n * eps(accumulator)
    * sum of magnitudes, plus 1 ulp, where n is the number of elements that enter one output.
    """

    EXACT = "exact"
    ROUNDING = "rounding"
    REDUCTION = "reduction"


class FormatUse(Enum):
    """What ``lower`` makes of images whose channels lie last in memory; shapes stay ``[batch, channels, ...]``.

    DENSE: it is given row-major images and writes such. ANY: it reads images of any strides as they lie, and writes
    row-major ones. FOLLOWS: where its images lie channels last, so do its outputs; slots say so by their strides.
    """

    DENSE = "dense"
    ANY = "any"
    FOLLOWS = "follows"


class Derivative(Enum):
    """How derivatives pass backwards through an operator.

    RULE: by its rule in `gpuexec.passes.derivatives`. PARTS: as through the operators it is made of, which are said
    there or by its `decompose`. ZERO: not at all, since shapes, signs and places alone are taken of the inputs.
    REFUSED: a Gradient through it is an error that names it.
    """

    RULE = "rule"
    PARTS = "parts"
    ZERO = "zero"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class KnownInput:
    """Element type and content of an input as far as they are known before shapes are; None: not known."""

    dtype: np.dtype[Any] | None = None
    content: Array | None = None


# Makes of commands other ways to do what they do, each as commands.
Join = Callable[[Sequence[Command]], Sequence[Sequence[Command]]]


class Emitter(Protocol):
    """The interface that ``lower`` emits commands through. It knows the device only as ``target``.

    On a target without kernels, ``lower`` is asked all the same: aliases and in-place requests stay, and so do copies,
    fills and places of an operator that launches nothing; one that launches, or leaves it to the host, becomes one host
    call.
    """

    target: Target

    @property
    def has_one_size(self) -> bool:
        """Whether all extents are fixed, so that room for other sizes of the class would be lost.

        A size that comes all the same must be right without that room, and may be slower.
        """

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: Sequence[Argument],
        writes: Sequence[int],
        shared_bytes: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Add a launch. Dropped when everything it writes is empty; refused beyond the limits of the target.

        The blocks of a ``cooperative`` one may wait for each other; its grid must fit any device it may run on.
        """

    def leaves_to_host(self) -> bool:
        """Return whether the target has no kernels, and have the host compute the operator then.

        Only aliases and in-place requests are left to be made: a ``lower`` that asks first saves what it would find out
        for launches that nobody makes.
        """

    def alias(self, output: Slot, view: Slot) -> None:
        """Let an output of the operator be a window on another slot's bytes: no launch, no copy."""

    def in_place(self, output: Slot, source: Slot) -> None:
        """Allow an output to reuse the bytes of an input that nothing reads afterwards.

        Only where thread i reads nothing but element i of ``source``, and ``compute(out=)`` may be given the same
        memory.
        """

    def place(self, source: Slot, window: Slot) -> bool:
        """Allocate an input at ``window`` of an output, if it isn't there; return False where it must be copied."""

    def grow(self, output: Slot, source: Slot) -> bool:
        """Let an output extend an input's bytes in place, where the input is a memory with capacity; else return False.

        Strides are the input's. The caller writes the bytes beyond the input.
        """

    def contiguous(self, slot: Slot) -> Slot:
        """Return the slot itself if dense, else a dense copy."""

    def copy(self, destination: Slot, source: Slot) -> None:
        """Copy between slots of equal shape and dtype, any strides on both sides."""

    def fill(self, destination: Slot, value: Any) -> None:
        """Set every element of a contiguous slot to ``value`` (converted to its dtype)."""

    def temp(self, shape: tuple[int, ...], dtype: Any) -> Slot:
        """Return scratch memory for this operator: contiguous, content undefined."""

    def constant(self, array: Array) -> Slot:
        """Return a table that was computed while planning, as device memory. Equal tables are shared."""

    def is_weight(self, slot: Slot) -> bool:
        """Return whether a slot lies in a weight, packed or not; it does at all sizes of a class."""

    def packed(self, slot: Slot, form: WeightForm) -> Slot | None:
        """Return a weight in another layout, dense; packed once, when it is put on a device, for all that ask alike.

        None where the slot is not a whole weight of the model, dense or transposed, as the model has it or packed
        already: what is computed, is an input, or a part of a weight is read as it lies. None too on a target with
        textures, and on one without kernels unless the form is for the host as well. The form
        may depend on extents of the weight and what else a class has in common, and is the same for all its sizes. A
        weight that is only asked for packed is not on the device in any other form; in each form that is asked for it
        takes its bytes once more, so lowerings ask for the same one at all sizes where they can.
        """

    def counters(self, count: int) -> Slot:
        """Return ``count`` numbers of type uint32 that are 0 when a run begins, for kernels whose blocks count.

        One command sets those of all launches of a plan. No two launches share them, so a kernel may leave anything.
        """

    def choose(self, now: int | Callable[[], int]) -> int:
        """Return a small number that is the same for all sizes of a class: ``now``, or what it returns, at its end.

        What decides on a kernel instance or on the number of arguments and commands goes through here: the plan of a
        class has one of each. Other sizes of the class must be right with it, and may be slower. ``now`` is to depend
        on extents, dtypes and the target's architecture alone, so that all devices of an architecture choose alike.
        """

    def divide(self, now: int) -> int:
        """Return into how many parts a kernel divides work whose parts are added, such as the slices of a sum.

        That is ``now``, a pure function of extents, dtypes and the target's architecture. For a Worker with
        ``deterministic="size"`` it is what the upper end of the size class said, so that the order of sums does not
        depend on the size: it may be more than there is to divide now, and some parts are empty then.
        """

    def index_type(self, *slots: Slot) -> str:
        """Return the C++ type for offsets into these slots: ``"int"``, or ``"long long"`` beyond 2**31 - 1 elements."""

    def provide(self, pose: Callable[[], Posed], launch: Callable[[], None], *, keeps_order: bool = False) -> bool:
        """Emit a product or convolution by the cheapest of its providers; return whether that is a library.

        The same one at all sizes of a size class. Where no library may be taken, this is ``launch()``. Both may be
        called more than once, and what they emit be dropped.

        Args:
            pose: Returns the problem, with its slots; only called where a library may be taken.
            launch: Emits our kernels.
            keeps_order: Whether sums are to be in the order of their terms, as no library promises.
        """

    def join(self, launch: Callable[[], None], join: Join) -> None:
        """Emit commands, or others in their place that are predicted to take less time.

        The same at all sizes of a size class.

        Args:
            launch: Emits the commands.
            join: Returns other ways to do what commands do, to the same bits; none where there is no other.
                Those that there are stand in one order at all sizes of a class.
        """


class Operator:
    """Base of all operators. Subclasses are frozen slotted dataclasses; see the module docstring."""

    __slots__ = ()
    name: ClassVar[str] = ""
    tolerance: ClassVar[Tolerance] = Tolerance.ROUNDING
    # Whether `compute` by itself keeps all cores busy, as large matrix products do: two at once gain nothing.
    uses_all_cores: ClassVar[bool] = False
    # Whether `compute` only returns views of a dense first input, without reading it.
    makes_views: ClassVar[bool] = False
    # Whether an input may be a sequence, an optional or a map; `apply` refuses those for any other operator.
    takes_containers: ClassVar[bool] = False
    # Absent where there is no kernel for the operator: the host computes it, or refuses it by name where it must not;
    # `host_reason` gives the reason.
    lower: ClassVar[Callable[..., None] | None] = None
    host_reason: ClassVar[str] = ""
    # An example call, in the syntax of `gpuexec.cli.operator_examples`: "float32[1,1,4,4] kernel_shape=(2,2)". `gpuexec
    # ops` derives element types and blits from it; operators on tensors of one type and of like extents need none.
    example: ClassVar[str] = ""
    # Operations (a multiplication and an addition are two) for each element of the first output, or of the first
    # input; 0: elements are moved, None: there is no formula. What takes another formula has its own `count_flops`.
    flops_per_output: ClassVar[int | None] = None
    flops_per_input: ClassVar[int | None] = None
    # Whether the first output always is of the first input's element type.
    keeps_dtype: ClassVar[bool] = False
    # Whether every run gives another result.
    is_random: ClassVar[bool] = False
    # Whether what it makes of constants may be computed beforehand, by passes and while planning.
    is_foldable: ClassVar[bool] = True
    derivative: ClassVar[Derivative] = Derivative.REFUSED
    # Positions of inputs by which there is no derivative, where there is one by others.
    fixed_inputs: ClassVar[tuple[int, ...]] = ()
    # Whether what `lower` launches has blits (`gpuexec.ops.lib.pixel`), for some types at least.
    has_blits: ClassVar[bool] = False
    # Whether its kernels take operators on the elements of its first result along (`gpuexec.ops.elementwise.fused`).
    takes_epilogue: ClassVar[bool] = False
    # Whether kernels of its that take an epilogue store where that says, which may be a window.
    finishes_windows: ClassVar[bool] = False
    # Positions of inputs that it multiplies with each other, and adds up what comes out: products and convolutions.
    multiplied: ClassVar[tuple[int, ...]] = ()
    # Positions of inputs that some of its kernels multiply by the zeros of padding too: where one is infinite or NaN,
    # results are NaN that others make of what is inside alone.
    padded_factors: ClassVar[tuple[int, ...]] = ()
    format_use: ClassVar[FormatUse] = FormatUse.DENSE
    # Positions of inputs that are no images, though they may have the rank of one: weights, which are read as they lie.
    not_images: ClassVar[tuple[int, ...]] = ()
    # Inputs that a lower precision rounds as it does those (`gpuexec.passes.lower_precision`), of an operator that
    # multiplies within (attention), or that has a weight in few bits, which nothing rounds.
    rounded: ClassVar[tuple[int, ...]] = ()

    def count_scratch(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> Sequence[int]:
        """Return the bytes of each array that the calls of `prepare` work in, beside inputs and outputs.

        A plan has them as they are at the upper end of its size class.

        Args:
            inputs: Specs; None: absent.
            outputs: Specs; None: not wanted, or a view.
        """
        return ()

    def prepare(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> PreparedCalls | None:
        """Return calls that write to ``out`` what `compute` makes of ``inputs``; None: `compute` is called.

        They are made in their order, again and again as inputs change, by one thread at a time, with floating-point
        errors ignored. So what follows from shapes and addresses is found once, here: views, windows, tables. Results
        are those of `compute` to the bit, or within ``tolerance``.

        Args:
            inputs: Arrays that stay where they are; None: absent.
            out: Where the outputs go, as for `compute`; None: not wanted.
            constant: Which of the inputs are never written again.
            scratch: Bytes, as many as `count_scratch` said of the upper end of the size class or more, which others use
                between the calls of one run and the next; none in plans that an earlier release stored.
        """
        return None

    def prepare_moving(
        self,
        inputs: Sequence[Array | None],
        out: Sequence[Array | None],
        constant: Sequence[bool],
        scratch: Sequence[Array],
    ) -> Callable[[], PreparedCalls | None] | None:
        """Return what gives calls as `prepare` does, each time that these sequences have arrays of another size.

        Their strides stay as they are. None, here or for a size: `compute` is called, for what changes from run to run
        is not worth what `prepare` takes.

        Args:
            inputs: As for `prepare`; the sequence is read whenever calls are asked for, or made.
            out: Where outputs go, likewise.
            constant: As for `prepare`.
            scratch: As for `prepare`.
        """
        return None

    @property
    def takes_narrow(self) -> bool:
        """Whether what it multiplies may be stored in half or bfloat16 where its attribute ``precision`` says so.

        Its result is float then.
        """
        return False

    @property
    def scaled_product(self) -> Mapping[str, Any] | None:
        """Attributes of the `gpuexec.ScaledMatMul` that multiplies operands stored in 8 bits with scales in its place.

        Its first two inputs are the operands, and behind them it may have an addend; None: nothing stands for it.
        """
        return None

    @property
    def has_slope(self) -> bool:
        """Whether outputs move with inputs, and not by steps alone."""
        return self.derivative is not Derivative.ZERO

    def count_flops(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> int | None:
        """Return how many operations a call takes; None where there is no formula.

        Args:
            inputs: Specs; None: absent.
            outputs: Specs; None: not wanted.
        """
        if self.flops_per_input is not None:
            return self.flops_per_input * count_elements(inputs, 0)
        return None if self.flops_per_output is None else self.flops_per_output * count_elements(outputs, 0)

    def find_dtype(self, dtypes: Sequence[np.dtype[Any] | None]) -> np.dtype[Any] | None:
        """Return the element type of the first output by those of the inputs; None: it is not known."""
        return dtypes[0] if self.keeps_dtype and dtypes else None

    def is_noop(self, inputs: Sequence[KnownInput | None]) -> bool:
        """Return whether the first output always equals the first input, which is given.

        Args:
            inputs: What is known of them; None: absent.
        """
        return False

    def moved_inputs(self, count: int) -> tuple[int, ...]:
        """Return the positions of the inputs whose elements its output is made of, each as it is.

        What is rounded behind it may be rounded in front, to the same bits.

        Args:
            count: Number of its inputs.
        """
        return ()

    def channel_axis(self, factor: int, rank: int) -> int | None:
        """Return an axis of a factor whose places each make elements of the output of their own; None: none has.

        Scales along that axis scale the output alone, so a weight that has them is multiplied as it is stored.

        Args:
            factor: Position of the input, one of ``multiplied``.
            rank: Number of its axes.
        """
        return None

    def is_lowered(self, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether ``lower`` supports such inputs; where not, the node runs on the host.

        An operator says so itself where that depends on its attributes.
        """
        return self.lower is not None

    def reads_any_format(self, position: int, inputs: Sequence[TensorSpec | None]) -> bool:
        """Return whether it reads an image as it lies, be it row-major or channels last, whatever others do.

        Args:
            position: Of the input.
            inputs: Specs; None: absent.
        """
        return False

    def writes_windows(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> bool:
        """Return whether ``lower`` writes outputs that are windows of others: rows with gaps between them.

        Args:
            inputs: Specs; None: absent.
            outputs: Specs; None: not wanted.
            target: What it runs on.
        """
        return False

    def rounds_to(self, position: int, inputs: Sequence[TensorSpec | None], target: Target) -> str:
        """Return the precision that its kernels round an operand to as they read it; empty: they take it as it is.

        A rounding to that precision in front may be left out of a plan then.

        Args:
            position: Of the input.
            inputs: Specs, at the upper end of a size class; None: absent.
            target: What it runs on.
        """
        return ""

    def find_format_use(self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None]) -> FormatUse:
        """Return what ``lower`` makes of images channels last, where that depends on shapes; else ``format_use``.

        Args:
            inputs: Specs; None: absent.
            outputs: Specs; None: not wanted.
        """
        return self.format_use

    def count_format_gain(
        self, inputs: Sequence[TensorSpec | None], outputs: Sequence[TensorSpec | None], target: Target
    ) -> int:
        """Return what it gains where its images lie channels last, as bytes that could be moved in that time.

        Asked of operators that follow formats (`FormatUse`).

        Args:
            inputs: Specs; None: absent.
            outputs: Specs; None: not wanted.
            target: What it runs on.
        """
        return 0

    def as_pointwise(self, inputs: Sequence[TensorSpec | None]) -> Pointwise | None:
        """Return what it computes of one element of each input, broadcast, so that it may be in a region.

        None: it is no such operator, or not of inputs of these types.

        Args:
            inputs: Specs; None: absent.
        """
        return None

    def as_row(self, inputs: Sequence[TensorSpec | None]) -> RowForm | None:
        """Return what it computes of rows, the elements along the trailing axes, so that it may be in a region.

        None: it is no such operator, or not of inputs of these types and shapes.

        Args:
            inputs: Specs; None: absent.
        """
        return None

    def as_index_map(self, inputs: Sequence[TensorSpec | None]) -> IndexMap | None:
        """Return where the elements of its result lie in its inputs, so that it may be in a region.

        None: it is no such operator, or not with these attributes and inputs.

        Args:
            inputs: Specs, with content where it follows from that; None: absent.
        """
        return None

    # `Any` here lets operators name their inputs: each takes a TensorSpec (an array), or None for an optional input
    # not given.
    def infer(self, *inputs: Any, **named: Any) -> tuple[TensorSpec, ...]:
        """Return the specs of all outputs, optional ones included.

        Raises:
            InputError: The inputs don't fit the operator; says expected and got, without the node's name (the caller
            adds it).
            NeedsHostValue: A shape depends on the content of an input that is not known.
        """
        raise TypeError(f"{type(self).__name__} lacks infer")

    def compute(self, *inputs: Any, **named: Any) -> tuple[Array | None, ...]:
        """Return the outputs as arrays.

        ``out`` holds an array for each output wanted (None: not wanted), possibly strided. The method may write into
        it and return it, or return fresh arrays; the caller copies what is not already in place.
        """
        raise TypeError(f"{type(self).__name__} lacks compute")


def count_elements(specs: Sequence[TensorSpec | None], index: int) -> int:
    """Return the elements of one of several tensors; 0 where it is absent."""
    spec = specs[index] if index < len(specs) else None
    return 0 if spec is None else spec.size


OperatorType = TypeVar("OperatorType", bound=type[Operator])
_OPERATORS: dict[str, type[Operator]] = {}
_UPGRADES: dict[str, list[tuple[int, Callable[..., Any]]]] = {}
_DECOMPOSITIONS: dict[str, Callable[..., Any]] = {}


def operator(name: str, domain: str = "") -> Callable[[OperatorType], OperatorType]:
    """Register a class as the operator ``name`` of an ONNX domain (``""`` is ai.onnx).

    Raises:
        InputError: It is no dataclass.
    """

    def register(cls: OperatorType) -> OperatorType:
        if not dataclasses.is_dataclass(cls):
            raise InputError(
                f"Operator {qualified(name, domain)}: expected a frozen dataclass, got class {cls.__name__}; write "
                "@dataclass(frozen=True, slots=True) between @operator and the class."
            )
        cls.name = qualified(name, domain)
        _OPERATORS[cls.name] = cls
        return cls

    return register


def qualified(name: str, domain: str = "") -> str:
    """Return ``"Add"`` for ai.onnx, ``"com.microsoft.FusedConv"`` for other domains."""
    return name if domain in ("", "ai.onnx") else f"{domain}.{name}"


def find_operator(name: str) -> type[Operator] | None:
    """Return the class registered under a qualified name, or None.

    The first look-up in a domain imports the installed packages that announce it (`gpuexec.system.extensions`).
    """
    if name not in _OPERATORS and "." in name:
        load_domain(name.rpartition(".")[0])
    return _OPERATORS.get(name)


def operator_names() -> tuple[str, ...]:
    """Return all registered names, sorted."""
    return tuple(sorted(_OPERATORS))


def suggest_name(name: str) -> str:
    """Return a sentence with the registered names nearest to a qualified one; empty where none is near.

    The same name in another domain is nearest.
    """
    domain, _, short = name.rpartition(".")
    known = [each for each in {*_OPERATORS, *_UPGRADES, "Constant"} if each.partition(".")[0] != "gpuexec"]
    by_short: dict[str, list[str]] = {}
    for each in sorted(known):
        by_short.setdefault(each.rpartition(".")[2].lower(), []).append(each)
    shorts = difflib.get_close_matches(short.lower(), by_short, n=2, cutoff=0.75)
    if short.lower() in by_short:
        shorts = [short.lower()]
    found = [each for near in shorts for each in by_short[near] if each != name]
    found.sort(key=lambda each: each.rpartition(".")[0] != domain)
    where = [f"{each!r} of {each.rpartition('.')[0] or 'ai.onnx'}" for each in found[:_NAMES_SUGGESTED]]
    return f"Did you mean {' or '.join(where)}?" if where else ""


def build(name: str, attributes: Mapping[str, Any]) -> Operator:
    """Make an operator from its qualified name and attributes (JSON or ONNX values: lists become tuples).

    Raises:
        InputError: The name is not registered, or an attribute is unknown, lacking or of the wrong type.
    """
    cls = find_operator(name)
    if cls is None:
        raise InputError(f"Operator {name!r} is not registered. {suggest_name(name)}".rstrip())
    fields, required = _list_fields(cls)
    if not fields.keys() >= attributes.keys():
        unknown = sorted(set(attributes) - set(fields))
        raise InputError(f"{name} has no attribute {', '.join(unknown)}; it has {', '.join(sorted(fields)) or 'none'}.")
    if not attributes.keys() >= required.keys():
        lacking = [each for each in required if each not in attributes]
        raise InputError(f"{name} lacks its required attribute {', '.join(lacking)}.")
    frozen = {key: _freeze(value) if isinstance(value, (list, tuple)) else value for key, value in attributes.items()}
    check_attributes(name, fields.values(), frozen)
    return cls(**frozen)


def _find_fields(cls: type[Any]) -> tuple[_Fields, _Fields]:
    """Return the attributes of an operator's class by name, and those of them that have no default."""
    fields = {f.name: f for f in dataclasses.fields(cls)}
    missing = dataclasses.MISSING
    return fields, {n: f for n, f in fields.items() if f.default is missing and f.default_factory is missing}


_list_fields: Callable[[type[Any]], tuple[_Fields, _Fields]] = functools.cache(  # type: ignore[assignment]
    _find_fields
)


def check_attributes(name: str, fields: Iterable[dataclasses.Field[Any]], attributes: Mapping[str, Any]) -> None:
    """Check attributes, lists as tuples, against the fields of an operator.

    ONNX has no schema of operators that it took out, nor of those of other domains, and program files have none at all.

    Raises:
        InputError: One has another type.
    """
    for field in fields:
        if field.name in attributes:
            declared = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
            if not _fits(declared, attributes[field.name]):
                raise InputError(f"{name} expects {field.name} to be {declared}, got {attributes[field.name]!r}.")


def describe(op: Operator) -> tuple[str, tuple[tuple[str, Any], ...]]:
    """Return the qualified name and the attributes that differ from their defaults.

    ``build`` makes an equal operator of them.
    """
    fields, required = _list_fields(type(op))
    rows = []
    for name, f in fields.items():
        value = getattr(op, name)
        if name in required or (value is not f.default and value != f.default):
            rows.append((name, value))
    return op.name, tuple(rows)


def upgrade(name: str, below: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that brings a node of opset < ``below`` to the form of opset ``below``.

    The function takes and returns a `gpuexec.ir.graphs.RawNode`; it stands beside the operator. The importer applies
    all
    that fit, oldest first, so that one canonical form reaches the passes.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        rows = _UPGRADES.setdefault(name, [])
        rows.append((below, function))
        rows.sort(key=lambda row: row[0])
        return function

    return register


def upgrades_for(name: str, opset: int) -> tuple[Callable[..., Any], ...]:
    """Return the upgrades a node of this operator and opset needs, oldest first."""
    return tuple([function for below, function in _UPGRADES.get(name, ()) if opset < below])


def upgraded_names() -> tuple[str, ...]:
    """Return the qualified names that have upgrades, sorted; some are no operators any more."""
    return tuple(sorted(_UPGRADES))


def decompose(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that decomposes a node of this operator into nodes of other operators.

    For operators whose output size depends on data: one node sizes, others write what is cut to the size; and for those
    that keep something from run to run beside what they compute, such as the cache of Attention. The function
    takes a `gpuexec.ir.graphs.Node` and returns a tuple of nodes in order, which make the node's outputs and new values
    named after it; it stands beside the operator. The pass of the same name applies it.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _DECOMPOSITIONS[name] = function
        return function

    return register


def decomposition_for(name: str) -> Callable[..., Any] | None:
    """Return the function registered for an operator's qualified name, or None."""
    return _DECOMPOSITIONS.get(name)


def decomposed_names() -> Set[str]:
    """Return the qualified names that have decompositions: a view, in which later ones appear."""
    return _DECOMPOSITIONS.keys()


def _freeze(value: Sequence[Any]) -> tuple[Any, ...]:
    return tuple([_freeze(item) if isinstance(item, (list, tuple)) else item for item in value])


def _fits(annotation: str, value: Any) -> bool:
    annotation, _, rest = annotation.partition(" | ")
    if value is None and rest == "None":
        return True
    kind = _LISTS.get(annotation)
    if kind is None:
        return annotation not in _SCALARS or isinstance(value, _SCALARS[annotation])
    # Elements are many and their types few.
    return isinstance(value, tuple) and not [each for each in set(map(type, value)) if not issubclass(each, kind)]
