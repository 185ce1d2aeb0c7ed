"""Closed forms of work for every kernel: those that have none are named, with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuexec.devices.kernels.kernel_source import kernels_dir
from gpuexec.ir.instances import kernel_table
from gpuexec.ir.work import list_forms
from tests.ops.counted_launch import Compared, CountedCase, compare, count_wavefronts, floats

# What launches of these do follows from their slots, each element of which is read or written about once, and from the
# table of instructions in gpuexec/planner/launch_work.py.
BY_SLOTS = {
    "affine_grid.cu": "affine_grid",
    "attention_mask.cu": "mask_bias",
    "batch_norm.cu": "normalize_channels",
    "cache.cu": "cache_places place_rows",
    "col2im.cu": "columns_to_image",
    "conv_simt.cu": "pack_conv_weights",
    "cumulative.cu": "cumulative",
    "dynamic_quantize.cu": "find_range quantize_by_range",
    "elementwise_binary.cu": "binary",
    "elementwise_cast.cu": "convert convert_narrow",
    "elementwise_pow.cu": "power",
    "elementwise_select.cu": "clip where",
    "elementwise_unary.cu": "unary",
    "elementwise_variadic.cu": "fold",
    "features.cu": "binarize impute_features mark_category normalize_features place_features scale_features",
    "generate.cu": "range store",
    "image.cu": "transform_image",
    "integer_conv.cu": "pack_byte_windows pack_conv_bytes",
    "integer_conv_mma.cu": "pack_conv_lines",
    "integer_matmul.cu": "pack_byte_columns pack_byte_rows",
    "integer_mma.cu": "pack_byte_lines",
    "label_encoder.cu": "encode_labels",
    "loss.cu": "finish_losses sum_exponentials sum_losses write_losses",
    "lrn.cu": "normalize_neighbours",
    "murmur_hash3.cu": "murmur_hash3",
    "one_hot.cu": "one_hot",
    "packing.cu": "order_tokens restore_rows",
    "pad.cu": "pad",
    "quantize.cu": "dequantize dequantize_narrow quantize quantize_narrow",
    "quantized_elementwise.cu": "quantized_binary quantized_unary quantized_where",
    "random.cu": "bernoulli dropout next_key random_normal random_uniform",
    "relative_buckets.cu": "relative_buckets",
    "resize.cu": "resize_blend resize_nearest",
    "reverse_sequence.cu": "reverse_sequence",
    "rotary.cu": "rotate",
    "scaled_float8.cu": "find_largest round_by_largest",
    "scores.cu": "finish_scores",
    "signal_window.cu": "cosine_window",
    "sort.cu": "make_keys",
    "statistics.cu": "count_bins merge_all_samples take_samples",
    "store_sizes.cu": "store_sizes",
    "swiglu.cu": "swiglu",
    "training.cu": "adagrad adam momentum",
    "trilu.cu": "trilu",
}
# What these do follows from what their inputs hold: boxes, counts, places, trees. They are described by slots as well.
BY_CONTENT = {
    "crop_and_resize.cu": "crop_and_resize",
    "multinomial.cu": "multinomial",
    "nms.cu": "select_boxes write_rows",
    "nonzero.cu": "add_up_counts count_nonzero unravel write_positions",
    "roi.cu": "max_roi_pool roi_align",
    "svm.cu": "count_votes couple_classes score_pairs",
    "tfidf.cu": "count_ngrams weigh_ngrams",
    "trees.cu": "find_leaves sum_votes",
    "unique.cu": "mark_heads take_firsts write_runs",
}
# Blits over textures, which no GPU of the time model runs.
BLITS = "pixel/"


def test_every_kernel_has_a_closed_form_or_a_reason_for_none() -> None:
    own = {path.name for path in kernels_dir().rglob("*.cu")}  # operators of examples and tests have kernels, too
    table = {source: listed for source, listed in kernel_table().items() if Path(source).name in own}
    kernels = {(source, each.partition("<")[0]) for source, listed in table.items() for each in listed}
    listed = [
        (source, name)
        for reason in (BY_SLOTS, BY_CONTENT)
        for source, names in reason.items()
        for name in names.split()
    ]
    forms = {form for form in list_forms() if form in kernels}
    assert len(set(listed)) == len(listed)
    assert not forms & set(listed), "these have a form by now"
    missing = {(source, name) for source, name in kernels - forms - set(listed) if not source.startswith(BLITS)}
    assert not missing, "these need a closed form, or a reason why they have none"
    assert set(listed) <= kernels, "these are gone"


def cdist(rows: int, columns: int, inner: int, metric: str) -> CountedCase:
    attributes = {"metric": metric, "domain": "com.microsoft"}
    return CountedCase("CDist", "distances", {"a": (rows, inner), "b": (columns, inner)}, {}, attributes)


def deform(batch: int, ins: int, outs: int, extent: int) -> CountedCase:
    shapes = {"x": (batch, ins, extent, extent)}
    weights = {"w": floats(outs, ins, 3, 3), "o": floats(batch, 18, extent, extent)}
    return CountedCase("DeformConv", "deform_conv", shapes, weights, {"pads": [1] * 4})


def scatter(operator: str, kernel: str, reduction: str = "none") -> CountedCase:
    """Return 40 of 64 rows written, each once."""
    rows = np.random.default_rng(0).permutation(64)[:40, None]
    places = rows if operator == "ScatterND" else rows.repeat(32, 1)
    weights = {"i": places, "u": floats(40, 32)}
    return CountedCase(operator, kernel, {"x": (64, 32)}, weights, {"reduction": reduction})


def attend_linearly(rows: int, columns: int, rule: str = "linear") -> CountedCase:
    """Return three steps of two sequences, two heads of keys that serve two heads of queries each."""
    shapes = {"q": (2, 3, 4 * rows), "k": (2, 3, 2 * rows), "v": (2, 3, 2 * columns)}
    given: dict[str, object] = {"past": floats(2, 2, rows, columns)}
    given |= {"decay": floats(2, 3, 2), "beta": floats(2, 3, 2)} if rule == "gated_delta" else {}
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    return CountedCase("LinearAttention", "linear_attention", shapes, given, attributes, opset=27)


def draw_tokens(rows: int, classes: int) -> CountedCase:
    """Return a token drawn for each row of logits, with all settings."""
    settings = {"temperature": np.float32(0.7), "top_k": np.array(9), "top_p": np.float32(0.8)}
    tokens = {"tokens": np.arange(4 * rows).reshape(rows, 4), "penalty": np.float32(2)}
    drawn = {"places": np.arange(rows), "key": np.array([1, 2], np.uint64)}
    given = {**settings, **tokens, **drawn}
    return CountedCase("SampleToken", "sample_token", {"x": (rows, classes)}, given, {"domain": "gpuexec"})


def count_bytes(found: Compared) -> int:
    return found.counts.l2_read_nbytes + found.counts.l2_written_nbytes


@pytest.mark.parametrize(
    "case",
    [
        cdist(64, 64, 32, "sqeuclidean"),
        cdist(100, 70, 40, "euclidean"),
        cdist(33, 65, 17, "cosine"),
        deform(1, 8, 16, 8),
        deform(2, 4, 70, 7),
        CountedCase("CausalConvWithState", "causal_conv", {"x": (2, 8, 40)}, {"w": floats(8, 1, 4)}, opset=27),
        attend_linearly(32, 16),
        attend_linearly(24, 5, "gated_delta"),
        attend_linearly(272, 6),  # more rows than registers hold
    ],
    ids=str,
)
def test_multiply_adds_are_as_counted(case: CountedCase) -> None:
    found = compare(case)
    counted = found.counts.multiply_adds
    assert found.work.multiply_adds == counted.calls
    assert found.work.needed_multiply_adds == found.counts.needed_multiply_adds
    assert counted.issued >= counted.taken >= found.work.needed_multiply_adds > 0
    assert found.work.instructions > counted.calls
    # Count mode has no L1, which answers what neighbours read again.
    assert 0.15 * count_bytes(found) <= found.work.l2_nbytes <= 1.1 * count_bytes(found)


def test_distances_by_cosine_issue_lengths_for_each_pair() -> None:
    found = compare(cdist(64, 64, 32, "cosine"))
    assert found.counts.multiply_adds.issued == 3 * 64 * 64 * 32
    assert found.work.needed_multiply_adds == (64 * 64 + 64 + 64) * 32


@pytest.mark.parametrize("case", [cdist(64, 64, 32, "euclidean"), cdist(100, 70, 40, "cityblock")], ids=str)
def test_tiles_of_distances_take_the_wavefronts_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.work.wavefronts == count_wavefronts(found.counts, 4)


@pytest.mark.parametrize(
    "case",
    [
        CountedCase("Einsum", "contract", {"a": (64, 96), "b": (64, 96)}, {}, {"equation": "ij,ij->i"}),
        CountedCase("Einsum", "contract", {"a": (6, 40, 8), "b": (6, 40, 8)}, {}, {"equation": "ijk,ijk->k"}),
        scatter("ScatterElements", "locate_elements"),
        scatter("ScatterElements", "write_latest"),
        scatter("ScatterND", "locate_slices"),
        scatter("ScatterND", "write_latest"),
        scatter("ScatterND", "fold_updates", "add"),
        CountedCase("LpNormalization", "normalize_lp", {"x": (64, 128)}, {}, {"p": 2}),
        CountedCase("MeanVarianceNormalization", "normalize_mean_variance", {"x": (2, 4, 8, 8)}),
        CountedCase("ArgMax", "find_extremum", {"x": (64, 256)}, {}, {"axis": 1}),
        CountedCase("Det", "det", {"x": (3, 8, 8)}),
        CountedCase("TensorScatter", "tensor_scatter", {"x": (2, 3, 16, 8)}, {"u": floats(2, 3, 4, 8)}, opset=24),
        CountedCase("GridSample", "sample_blend", {"x": (1, 8, 16, 16)}, {"g": 0.5 * floats(1, 12, 12, 2)}),
        draw_tokens(3, 900),
    ],
    ids=str,
)
def test_launches_move_about_what_is_counted(case: CountedCase) -> None:
    found = compare(case)
    assert found.counts.multiply_adds.calls == found.work.multiply_adds == 0
    assert 0.15 * count_bytes(found) <= found.work.l2_nbytes <= 2 * count_bytes(found)


@pytest.mark.parametrize(
    "case",
    [
        CountedCase("TopK", "topk", {"x": (8, 512)}, {"k": np.array([8])}),
        CountedCase("TopK", "topk", {"x": (2, 4096)}, {"k": np.array([8])}),
        CountedCase("TensorScatter", "tensor_scatter", {"x": (2, 3, 16, 8)}, {"u": floats(2, 3, 4, 8)}, opset=24),
        attend_linearly(32, 16),
        scatter("ScatterND", "write_latest"),
    ],
    ids=str,
)
def test_operands_are_touched_as_counted(case: CountedCase) -> None:
    found = compare(case)
    counted = found.counts.dram_read_nbytes + found.counts.dram_written_nbytes
    assert found.operand_nbytes == pytest.approx(counted, rel=0.3)
