"""Graph passes, one file each, in two lists: AT_LOAD and AT_PLAN.

AT_LOAD needs no shapes and runs once per model; AT_PLAN knows the specs of the inputs. Between them `lower_precision`
makes the graph of a Model in another precision. A pass keeps the graph's inputs and outputs, their names and order, and
what is computed for them. Passes that want no specs run on the bodies of If, Loop and Scan as on any graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial

from gpuexec.errors import InputError, ModelError
from gpuexec.ir.graphs import Graph, bodies, body_fields, check, walk, with_bodies
from gpuexec.ir.inferences import Inferences
from gpuexec.ir.operator import decomposed_names
from gpuexec.ir.spec import TensorSpec
from gpuexec.ir.target import Target
from gpuexec.ops.control.control import If
from gpuexec.ops.elementwise.epilogue import fused_name
from gpuexec.ops.linalg.matmul import Gemm, MatMul
from gpuexec.ops.microsoft.matmul_nbits import MatMulNBits
from gpuexec.ops.nn.attention import Attention, AttentionOverCache
from gpuexec.ops.nn.conv import Conv
from gpuexec.ops.nn.gradient import Gradient
from gpuexec.ops.nn.norm_channels import InstanceNormalization
from gpuexec.ops.nn.softmax import Softmax
from gpuexec.ops.tensor.gather import Gather
from gpuexec.passes.compress_weights import Only, compress_weights
from gpuexec.passes.decompose import decompose
from gpuexec.passes.differentiate import differentiate
from gpuexec.passes.fold_constants import fold_constants
from gpuexec.passes.fold_shapes import fold_shapes
from gpuexec.passes.fuse_conv_batchnorm import fuse_conv_batchnorm
from gpuexec.passes.fuse_epilogues import fuse_epilogues
from gpuexec.passes.fuse_normalized import fuse_normalized
from gpuexec.passes.fuse_prologues import fuse_prologues
from gpuexec.passes.fuse_regions import fuse_regions
from gpuexec.passes.fuse_rounding import fuse_rounding
from gpuexec.passes.fuse_rows import fuse_rows
from gpuexec.passes.fuse_separable import fuse_separable
from gpuexec.passes.group_heads import group_heads
from gpuexec.passes.inline_branches import inline_branches
from gpuexec.passes.known_specs import InputSpecs
from gpuexec.passes.merge_common import merge_common
from gpuexec.passes.merge_products import merge_products
from gpuexec.passes.narrow_weights import narrow_weights
from gpuexec.passes.pack_weights import pack_weights
from gpuexec.passes.recognise_activations import ACTIVATION_ANCHORS, recognise_activations
from gpuexec.passes.recognise_attention import recognise_attention
from gpuexec.passes.recognise_normalizations import NORMALIZATION_ANCHORS, recognise_normalizations
from gpuexec.passes.remove_dead import remove_dead
from gpuexec.passes.remove_noops import remove_noops
from gpuexec.passes.slice_gathers import slice_gathers


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass and the name it is switched by.

    Attributes:
        name: Name of the pass.
        function: Graph to Graph.
        needs_specs: Whether it wants the specs of the inputs by name as second argument.
        needs_target: Whether it wants what is planned for, as ``target``, too.
        operators: Qualified names of the operators it looks for: a graph that has none of them, in its bodies neither,
            stays as it is. None: any.
    """

    name: str
    function: Callable[..., Graph]
    needs_specs: bool = False
    needs_target: bool = False
    operators: Set[str] | None = field(default=None, compare=False)

    @property
    def summary(self) -> str:
        """Return one line on the pass."""
        return (self.function.__doc__ or "").partition("\n")[0]


AT_LOAD = (
    Pass("differentiate", differentiate, operators={Gradient.name}),
    Pass("decompose", decompose, operators=decomposed_names()),
    Pass("narrow_weights", narrow_weights, operators={"Cast", "DequantizeLinear"}),
    Pass("pack_weights", pack_weights, operators={"DequantizeLinear"}),
    Pass("fold_constants", fold_constants),
    Pass("inline_branches", inline_branches, operators={If.name}),
    Pass("remove_noops", remove_noops),
    Pass("slice_gathers", slice_gathers, operators={Gather.name}),
    Pass("recognise_activations", recognise_activations, operators=ACTIVATION_ANCHORS),
    Pass("group_heads", group_heads, operators={Attention.name, AttentionOverCache.name}),
    Pass("fuse_conv_batchnorm", fuse_conv_batchnorm, operators={"BatchNormalization"}),
    Pass("merge_common", merge_common),
    Pass("merge_products", merge_products, operators={Conv.name, Gemm.name, MatMul.name, MatMulNBits.name}),
    Pass("remove_dead", remove_dead),
)
# Passes that determine the weights and leave operators as files have them, except Gradients, which don't see later
# changes to the weights they name; the rest of AT_LOAD comes after them.
_SETTLING = ("differentiate", "fold_constants", "inline_branches", "remove_noops", "fuse_conv_batchnorm", "remove_dead")
AT_PLAN = (
    Pass("fold_shapes", fold_shapes, needs_specs=True),
    Pass("recognise_normalizations", recognise_normalizations, needs_specs=True, operators=NORMALIZATION_ANCHORS),
    Pass("recognise_attention", recognise_attention, needs_specs=True, operators={Softmax.name}),
    Pass("fuse_rows", fuse_rows, needs_specs=True, needs_target=True),
    Pass("fuse_epilogues", fuse_epilogues, needs_specs=True),
    Pass("fuse_separable", fuse_separable, needs_specs=True, operators={Conv.name, fused_name(Conv.name)}),
    Pass(
        "fuse_normalized",
        fuse_normalized,
        needs_specs=True,
        operators={InstanceNormalization.name, fused_name(InstanceNormalization.name)},
    ),
    Pass("fuse_regions", fuse_regions, needs_specs=True, needs_target=True),
    Pass("fuse_prologues", fuse_prologues, needs_specs=True),
    Pass("remove_dead", remove_dead),
)

# Behind AT_PLAN where a model's precision says so: it changes results, by roundings.
FUSE_ROUNDING = Pass("fuse_rounding", fuse_rounding)

# Passes that make operators whose kernels have generated text, which takes a compiler where a program does not hold it.
GENERATING = frozenset(
    {"fuse_rows", "fuse_epilogues", "fuse_separable", "fuse_normalized", "fuse_regions", "fuse_prologues"}
)


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    disabled: Collection[str] = frozenset(),
    specs: Mapping[str, TensorSpec] | None = None,
    target: Target | None = None,
    inferences: Inferences | None = None,
) -> Graph:
    """Run passes in order, but for the disabled ones; on bodies too, unless they need specs.

    Args:
        graph: The graph to start from; it is not changed.
        passes: AT_LOAD, AT_PLAN, or a list of one's own.
        disabled: Names of passes to leave out; a name of either list will do.
        specs: Specs of the inputs by name, for the passes that need them.
        target: What is planned for; None: any with kernels.
        inferences: What is known already, and keeps what is inferred; of these specs.

    Raises:
        InputError: A disabled name is the name of no pass.
    """
    if disabled:
        known = {each.name for each in (*AT_LOAD, *AT_PLAN, FUSE_ROUNDING, *passes)}
        unknown = sorted(set(disabled) - known)
        if unknown:
            raise InputError(f"There is no pass {', '.join(unknown)}; there are {', '.join(sorted(known))}.")
    names: set[str] | None = None
    inputs = None if specs is None else InputSpecs(specs, inferences)
    for each in passes:
        if each.name in disabled:
            continue
        if each.operators is not None:
            names = _list_operators(graph) if names is None else names
            if each.operators.isdisjoint(names):
                continue
        before = graph
        if each.needs_specs:
            assert inputs is not None, f"pass {each.name} needs the specs of the inputs"
            graph = each.function(graph, inputs, **({"target": target} if each.needs_target else {}))
        else:
            graph = _run_within(each, graph)
        if graph is not before:
            names = None
            if __debug__:
                _check_after(each, graph)
    return graph


def compress(graph: Graph, kind: str, only: Only | None, disabled: Collection[str] = frozenset()) -> Graph:
    """Return a graph as it was read with its weights stored narrow, and those of its bodies; see `compress_weights`.

    Weights are what is left once constants are folded and BatchNormalization has gone into the Conv before it.
    """
    settling = [each for each in AT_LOAD if each.name in _SETTLING]
    compressing = Pass("compress_weights", lambda inner: compress_weights(inner, kind, only))
    return run_passes(graph, [*settling, compressing], disabled)


def settle(graph: Graph, disabled: Collection[str] = frozenset()) -> Graph:
    """Return a graph as it was read with its weights determined, and those of its bodies.

    Constants are folded and BatchNormalization has gone into the Conv before it; what is dequantised stays narrow.
    """
    folding = Pass("fold_constants", partial(fold_constants, kept=("DequantizeLinear",)))
    settling = [folding if each.name == folding.name else each for each in AT_LOAD if each.name in _SETTLING]
    return run_passes(graph, settling, disabled)


def _run_within(each: Pass, graph: Graph) -> Graph:
    """Run a pass on a graph, then on the bodies of the nodes it leaves."""
    graph = each.function(graph)
    nodes, is_same = [], True
    for node in graph.nodes:
        inner = bodies(node.operator) if body_fields(type(node.operator)) else ()
        if inner:
            changed = tuple(_run_within(each, body) for body in inner)
            if any(new is not old for new, old in zip(changed, inner, strict=True)):
                node, is_same = replace(node, operator=with_bodies(node.operator, changed)), False
        nodes.append(node)
    return graph if is_same else replace(graph, nodes=tuple(nodes))


def _list_operators(graph: Graph) -> set[str]:
    """Return the qualified names of the operators of a graph and its bodies."""
    return {node.operator.name for each in walk(graph) for node in each.nodes}


def _check_after(each: Pass, graph: Graph) -> None:
    try:
        check(graph)
    except ModelError as error:
        raise AssertionError(f"pass {each.name} broke the graph: {error}") from error
