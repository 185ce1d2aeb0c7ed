"""Resource budgets of kernels: registers and shared memory, by architecture and by kernel.

The hardware's limits hold for every kernel: no block may have more than 65536 registers, 48 KiB of static shared
memory, or in all the shared memory that its architecture gives. Beyond them a kernel keeps to `REGISTERS` per thread,
so that several blocks hide each other's waiting; one that needs more stands in `LARGER` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuexec.devices.kernels.nvrtc import CompiledKernel
from gpuexec.ir.geometry import ceil_div
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import without_epilogue

REGISTERS = 64  # per thread: four blocks of 256 threads on a multiprocessor
BLOCK_REGISTERS = 65536  # and of a multiprocessor
STATIC_SHARED_BYTES = 48 * 1024  # larger shared memory must be dynamic and requested by the launch

_REGISTER_STEP = 8  # allocation granularity of registers per thread
_WARP = 32


@dataclass(frozen=True, slots=True)
class Budget:
    """The register budget of a kernel above `REGISTERS`, and the reason for it."""

    registers: int
    reason: str = ""


_LIES = ("Lie::kAlongK", "Lie::kAcross")
# Types of operands and results of products on tensor cores.
MMA_TYPES = (("half", "half"), ("half", "float"), ("bf16", "bf16"), ("bf16", "float"), ("float", "float"))

# By file and kernel name, or by one instance of it. One with an epilogue has the budget of the instance without.
LARGER: Mapping[str, Budget] = {
    "attention.cu:attend": Budget(128, "4 x 4 scores beside 4 x 8 sums; two blocks of 256 threads fit"),
    "attention.cu:attend<double>": Budget(184, "the same in doubles, half as many; one block of 256 threads fits"),
    "attention_few.cu:attend_few": Budget(
        128, "four keys and values, and sums of up to 4 rows; two blocks of 256 threads fit"
    ),
    "attention.cu:attention_scores<double>": Budget(72, "two rows and the running sum of a softmax, in doubles"),
    **{
        f"attention_mma.cu:attend_mma<{t}, {tile}, {kind}>": Budget(registers, f"{what}; two blocks of 128 threads fit")
        for t in ("half", "bf16")
        for tile, registers, what in (
            ("FewHeads64", 184, "32 sums, 32 scores and the queries"),
            ("Heads64", 255, "64 sums, 64 scores and the queries"),
            ("Heads80", 240, "80 sums and 32 scores"),
            ("Heads96", 255, "96 sums and 32 scores"),
            ("Heads128", 255, "128 sums and 32 scores"),
            ("Heads192", 255, "96 sums, 16 scores and the queries"),
            ("Heads256", 255, "128 sums and 16 scores"),
        )
        for kind in ("kPlain", "kMasked", "kCapped")
    },
    "cdist.cu:distances": Budget(128, "4 x 4 sums and two slabs of rows in flight; two blocks of 256 threads fit"),
    **{
        f"cdist.cu:distances<{metric}, double>": Budget(registers, "the same in doubles; one block of 256 threads fits")
        for registers, metrics in (
            (160, ("SquaredEuclidean", "Euclidean", "CityBlock", "Chebyshev", "Minkowski", "Canberra", "Hamming")),
            (208, ("BrayCurtis", "Cosine")),  # two or three sums each
        )
        for metric in metrics
    },
    "col2im.cu:columns_to_image": Budget(96, "a loop for each of up to six axes"),
    "conv.cu:conv_direct": Budget(72, "a thread keeps four sums beside two walks over a window"),
    "conv.cu:conv_gemm": Budget(128, "4 x 4 sums and two slabs of operands in flight; two blocks of 256 threads fit"),
    "conv_depthwise.cu:conv_depthwise": Budget(
        80, "the taps of a kernel and four sums; three blocks of 256 threads fit"
    ),
    "conv_separable.cu:conv_separable": Budget(
        240, "as mma_gemm, and 32 depthwise sums, a row of taps and loads under way; two blocks fit"
    ),
    "conv_depthwise_last.cu:conv_depthwise_last": Budget(
        112, "16 sums, a row of taps and the loads under way; four blocks of 128 threads fit"
    ),
    **{
        f"conv_simt.cu:{name}<{tile}, {block}>": Budget(registers, reason)
        for name, tile, blocks, registers, reason in (
            ("simt_conv", "LargeTile", (16, 4, 1), 216, "as simt_gemm, which it is with gathered columns"),
            ("simt_conv", "SmallTile", (16, 4, 1), 128, "as simt_gemm, which it is with gathered columns"),
            ("simt_conv_transpose", "SmallTile", (16, 4), 128, "as simt_conv, which it is for each phase"),
        )
        for block in blocks
    },
    **{
        f"conv_simt.cu:{name}_narrow<{tile}, {block}, {weight}>": Budget(
            registers, "as with weights of float, and a vector of narrow ones under way"
        )
        for name, tile, blocks, weights, registers in (
            ("simt_conv", "LargeTile", (16,), ("i8",), 216),
            ("simt_conv", "LargeTile", (1,), ("half", "i8"), 216),
            ("simt_conv", "SmallTile", (16, 4, 1), ("half", "i8"), 128),
            ("simt_conv_transpose", "SmallTile", (16, 4), ("half", "i8"), 128),
        )
        for block in blocks
        for weight in weights
    },
    "conv.cu:conv_direct_narrow": Budget(72, "as conv_direct, which it is with other weights"),
    "conv.cu:conv_gemm_narrow": Budget(128, "as conv_gemm, which it is with other weights"),
    "conv.cu:conv_transpose_narrow": Budget(120, "as conv_transpose, which it is with other weights"),
    "conv.cu:conv_transpose": Budget(120, "the divisions by the strides of three axes stay in registers"),
    "cumulative.cu:cumulative": Budget(96, "a thread holds its 16 terms between two passes"),
    "cumulative.cu:cumulative<Product, u64>": Budget(112, "16 terms are held; a 64-bit product is three 32-bit ones"),
    "fourier.cu:fourier": Budget(80, "a butterfly of four complex doubles; three blocks of 256 threads fit"),
    "inverse.cu:invert<double>": Budget(72, "two walks over a matrix and a pivot in doubles"),
    "inverse.cu:solve<double>": Budget(72, "as invert"),
    "linear_attention.cu:linear_attention": Budget(
        128, "a thread holds 16 rows of a column; two blocks of 256 threads fit"
    ),
    "deform_conv.cu:deform_conv": Budget(128, "4 x 4 sums and a sample in the making; two blocks of 256 threads fit"),
    "grid_sample.cu:sample_blend": Budget(112, "places along up to six axes and a loop for each"),
    **{
        f"grid_sample.cu:sample_blend<{t}, 3>": Budget(80, "places along three axes and a loop for each")
        for t in ("float", "half", "bf16", "double")
    },
    "grid_sample.cu:sample_blend<double, 6>": Budget(144, "six axes and their loops, in doubles"),
    **{
        f"integer_conv.cu:integer_conv<{tile}, {t}>": Budget(registers, "as integer_gemm, which it is over windows")
        for tile, registers in (("LargeTile", 216), ("SmallTile", 128))
        for t in ("u8", "i32")
    },
    **{
        f"integer_matmul.cu:integer_gemm<{tile}, {t}>": Budget(registers, reason)
        for tile, registers, reason in (
            ("LargeTile", 216, "as simt_gemm, which it is over words of bytes"),
            ("SmallTile", 128, "as simt_gemm, which it is over words of bytes"),
        )
        for t in ("u8", "i32", "float", "half")
    },
    "integer_matmul.cu:integer_gemv": Budget(128, "as gemv_along_columns, and the sums of up to 8 rows"),
    **{
        f"{kernel}<{tile}>": Budget(registers, "as mma_gemm, with sums of integers")
        for kernel in ("integer_mma.cu:integer_mma", "integer_conv_mma.cu:integer_conv_mma")
        for tile, registers in (("LargeMma", 255), ("MediumMma", 255), ("SmallMma", 168), ("FlatMma", 208))
    },
    "matmul_nbits.cu:matmul_nbits": Budget(128, "as gemm, which it is with another right operand"),
    "few_nbits.cu:few_nbits": Budget(255, "codes of two steps under way and numbers of four rows; a block of 256 fits"),
    "mma_few_nbits.cu:mma_few_nbits": Budget(
        240, "codes, scales and rows of two steps under way beside 32 sums; a block of 256 threads fits"
    ),
    **{
        f"mma_nbits.cu:mma_nbits<{t}, {result}, {bits}, SmallMma>": Budget(
            232 if bits == 8 else 224,
            "the sums of a block beside those of all, and codes under way; two blocks of 128 threads fit",
        )
        for t in ("half", "bf16")
        for result in (t, "float")
        for bits in (2, 4, 8)
    },
    **{
        f"norm_channels.cu:normalize_large_channels<{t}, {is_last}>": Budget(registers, what)
        for t in ("float", "half", "bf16")
        for is_last, registers, what in (
            ("true", 168, "32 vectors of channels are held while they are measured; three blocks of 128 threads fit"),
            ("false", 80, "32 elements are held while they are measured; six blocks of 128 threads fit"),
        )
    },
    "norm_channels.cu:normalize_small_channels": Budget(80, "four channels, their statistics and the loads under way"),
    "pixel/flat.cu:draw_flat": Budget(96, "a texture and a place of each operand of a region"),
    "norm.cu:normalize_rows": Budget(96, "16 elements are held beside their scales and biases, all under way together"),
    "norm.cu:normalize_and_measure_rows": Budget(96, "as normalize_rows"),
    "norm.cu:normalize_summed_rows": Budget(96, "as normalize_rows, of three terms"),
    "quantized_lstm.cu:quantized_lstm": Budget(112, "four gates, each with a sum, a zero point and a scale"),
    "matmul.cu:gemm": Budget(128, "4 x 4 sums and two slabs of operands in flight; two blocks of 256 threads fit"),
    "matmul.cu:gemm_narrow": Budget(128, "as gemm, which it is with another right operand"),
    "matmul.cu:gemm<i64>": Budget(160, "a 64-bit product is three 32-bit ones; one block of 256 threads fits"),
    "matmul.cu:gemm<u64>": Budget(160, "a 64-bit product is three 32-bit ones; one block of 256 threads fits"),
    "gemv.cu:gemv_along_columns": Budget(128, "up to 8 x 4 sums and loads under way; two blocks of 256 threads fit"),
    "gemv.cu:gemv_along_k": Budget(128, "up to 8 x 4 sums and loads under way; two blocks of 256 threads fit"),
    "gemv.cu:gemv_along_columns_narrow": Budget(128, "as gemv_along_columns, and a scale for each column"),
    "gemv.cu:gemv_along_k_narrow": Budget(128, "as gemv_along_k, and a scale for each column"),
    **{
        f"simt_gemm.cu:simt_gemm{narrow}<{tile}, {variant}>": Budget(registers, reason)
        for tile, registers, reason in (
            ("LargeTile", 216, "8 x 8 sums; two blocks of 256 threads fit, but on sm_75, where one has all registers"),
            ("SmallTile", 128, "4 x 8 sums and fragments of two k; four blocks of 128 threads fit"),
        )
        for narrow, variant in (
            *(("", "Copies::kVectors"), ("", "Copies::kAny")),
            *(("_narrow", "half"), ("_narrow", "i8")),
        )
    },
    **{
        f"mma_gemm.cu:mma_gemm<{operands}, {result}, {tile}, {left}, {right}>": Budget(registers, reason)
        for tile, lefts, registers, reason in (
            ("LargeMma", _LIES[:1], 255, "128 sums beside fragments of two steps; one block of 256 threads fits"),
            ("MediumMma", _LIES[:1], 255, "128 sums beside fragments of two steps; two blocks of 128 threads fit"),
            ("SmallMma", _LIES, 168, "32 sums beside fragments of two steps; three blocks of 128 threads fit"),
            ("FlatMma", _LIES[:1], 208, "20 copies of a slab in flight; shared memory holds two blocks of 64 threads"),
            ("SmallDeepMma", _LIES[:1], 128, "32 sums beside fragments of two steps; two blocks of 256 threads fit"),
            (
                "FlatDeepMma",
                _LIES[:1],
                168,
                "10 copies of a slab in flight; shared memory holds two blocks of 128 threads",
            ),
            ("LargeGroup", _LIES[:1], 255, "128 sums; one block of 256 threads fits"),
            ("WideGroup", _LIES[:1], 128, "32 sums; one block of 256 threads fits"),
            ("SmallGroup", _LIES, 128, "32 sums; two blocks of 128 threads fit"),
        )
        for left in lefts
        for right in _LIES
        for operands, result in MMA_TYPES
        if operands != "float" or (left == right == _LIES[0] and not tile.endswith("Group"))
    },
    "mma_few.cu:mma_few": Budget(
        216, "up to 96 words of weights under way beside 32 sums; a block of 256 threads fits"
    ),
    "mma_rows_nbits.cu:mma_of_rows_nbits": Budget(
        255, "as mma_few_nbits, and rows in front; a block of 256 threads fits"
    ),
    "mma_rows.cu:mma_of_rows": Budget(216, "as mma_few, and rows in front; a block of 256 threads fits"),
    **{
        f"mma_float8.cu:mma_float8<{t}, {tile}>": Budget(registers, "as mma_gemm, and words that are widened")
        for t in ("E4m3", "WidenedE4m3")
        for tile, registers in (("LargeMma", 255), ("MediumMma", 255), ("SmallMma", 168), ("FlatMma", 216))
    },
    **{
        f"mma_narrow.cu:mma_narrow<{t}, {result}, SmallMma>": Budget(
            168, "as mma_gemm, and weights under way; three blocks of 128 threads fit"
        )
        for t, result in MMA_TYPES
        if t != "float"
    },
    **{
        f"conv_mma.cu:conv_mma<{operands}, {result}, {tile}>": Budget(registers, "as mma_gemm, over patches")
        for tile, registers in (
            *(("LargeMma", 255), ("MediumMma", 255), ("SmallMma", 168), ("FlatMma", 208)),
            *(("SmallDeepMma", 128), ("FlatDeepMma", 168)),
        )
        for operands, result in MMA_TYPES
        if operands != "float" or tile in ("MediumMma", "SmallMma", "FlatMma")
    },
    **{
        f"conv_normalized.cu:conv_normalized<NoSteps<{result}>, {operands}, {result}, {tile}>": Budget(
            registers, "as conv_mma, which it is where it multiplies"
        )
        for tile, registers in (("LargeMma", 255), ("MediumMma", 255), ("SmallMma", 168))
        for operands, result in MMA_TYPES
        if operands != "float" or tile != "LargeMma"
    },
    # Of generated steps in front of what is measured.
    "conv_normalized.cu:conv_normalized": Budget(255, "as conv_mma, which it is where it multiplies"),
    **{
        f"conv_few.cu:conv_few<{image}, {t}, {result}, SmallMma, {width}>": Budget(
            176 if image == t != "float" else 168, "as mma_gemm, and elements of patches under way"
        )
        for t, result in MMA_TYPES
        for image in {t, t if t == result != "float" else "float"}
        for width in (1, 4 if t == "float" else 8)
    },
    "pool.cu:lp_pool<double>": Budget(72, "powers of doubles beside the bounds of a window"),
    "roi.cu:max_roi_pool<double>": Budget(80, "bounds of a bin and a region in doubles"),
    "roi.cu:roi_align<double>": Budget(96, "samples along two axes and four weights in doubles"),
    "statistics.cu:merge_all_samples": Budget(72, "a thread holds the sample made and the one read"),
    "pixel/conv.cu:draw_conv": Budget(72, "the walk of conv_direct, and a texel beside it"),
    "pixel/conv.cu:draw_conv_narrow": Budget(80, "as draw_conv, and where the scales lie"),
    "pixel/conv.cu:draw_conv_transpose": Budget(144, "the walk of conv_transpose, and a texel beside it"),
    "pixel/conv.cu:draw_conv_transpose_narrow": Budget(120, "the walk of conv_transpose, and a texel beside it"),
    "pixel/cumulative.cu:draw_cumulative": Budget(88, "64-bit divisions, and a texel beside the walk"),
    "pixel/image.cu:draw_transform_image": Budget(72, "two tables and divisions by the struct, a texel beside"),
    "pixel/matmul.cu:draw_gemm": Budget(80, "a texel beside the walk over batches"),
    "pixel/pool.cu:draw_max_pool_places": Budget(72, "a maximum, its place and a texel beside the walk"),
    "pixel/resize.cu:draw_resize_blend": Budget(80, "coordinates and weights of three axes stay in registers"),
    "pixel/gather.cu:draw_gather_slices": Budget(72, "64-bit divisions, and a texel beside the walk"),
    "pixel/rows.cu:draw_kept_values": Budget(72, "64-bit divisions, and the folds of a row beside a texel"),
    "pixel/rows.cu:draw_row_values": Budget(80, "64-bit divisions, and the folds and operands of rows beside a texel"),
    "pixel/rows.cu:draw_rows": Budget(88, "64-bit divisions, and the folds and operands of a row beside a texel"),
    "pixel/statistics.cu:draw_count_bins": Budget(128, "the compiler keeps a walk's divisions for several elements"),
    "pixel/statistics.cu:draw_merge_all_samples": Budget(112, "a thread holds the sample made and the one read"),
    "pixel/statistics.cu:draw_take_samples": Budget(80, "a thread holds the sample it makes"),
    "pool.cu:average_pool": Budget(72, "a sum and a count beside the walk over three axes"),
    "tiled.cu:tiled": Budget(128, "squares of two operands, and the steps of a region; two blocks of 256 threads fit"),
    "resize.cu:resize_units": Budget(80, "eight sums and the four vectors under way that they are of"),
    "resize.cu:resize_blend": Budget(80, "coordinates and weights of three axes stay in registers"),
    "rows.cu:rows": Budget(
        168, "up to 32 elements of each value that a later phase reads; one block of 256 threads fits"
    ),
    "rnn.cu:recur": Budget(128, "4 x 4 sums beside the walk over slices and tiles; two blocks of 256 threads fit"),
    "softmax.cu:softmax": Budget(96, "a thread holds its 16 terms between two passes"),
    "svm.cu:couple_classes": Budget(72, "a thread solves the system of a row, at 64-bit offsets of its scratch"),
}


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Launch sizes of a kernel: threads of its largest block, and the most dynamic shared memory by architecture.

    Architectures that no plan launches it on are absent.
    """

    threads: int = 0
    shared_bytes: Mapping[str, int] = field(default_factory=dict)


def find_excess(kernel: CompiledKernel, source: str, architecture: str, use: KernelUse | None = None) -> Iterator[str]:
    """Yield a sentence for each budget that a compiled kernel exceeds.

    Args:
        kernel: The compiled kernel.
        source: Its file.
        architecture: ``"sm_90"``.
        use: How plans launch it, where that is known.
    """
    instance = without_epilogue(kernel.expression)
    budget = LARGER.get(f"{source}:{instance}") or LARGER.get(f"{source}:{_name(kernel)}", Budget(REGISTERS))
    if kernel.spill_bytes:
        yield f"spills {kernel.spill_bytes} bytes with {kernel.registers} registers; expected none."
    if kernel.registers > budget.registers:
        yield f"takes {kernel.registers} registers; at most {budget.registers}."
    if not kernel.max_threads:
        yield "has no __launch_bounds__, so nothing says which blocks its registers allow."
    registers = ceil_div(kernel.registers, _REGISTER_STEP) * _REGISTER_STEP
    if count_block_registers(kernel.registers, kernel.max_threads) > BLOCK_REGISTERS:
        yield f"takes {registers} registers for each of {kernel.max_threads} threads; a block has {BLOCK_REGISTERS}."
    if kernel.shared_bytes > STATIC_SHARED_BYTES:
        yield f"has {kernel.shared_bytes} bytes of static shared memory; at most {STATIC_SHARED_BYTES}."
    if use is None:
        return
    if use.threads > kernel.max_threads > 0:
        yield f"is launched with {use.threads} threads; its __launch_bounds__ are {kernel.max_threads}."
    whole, limit = kernel.shared_bytes + use.shared_bytes[architecture], shared_limit(architecture)
    if whole > limit:
        yield f"is launched with {whole} bytes of shared memory; {architecture} gives a block at most {limit}."


def count_block_registers(registers: int, threads: int) -> int:
    """Return the registers that a block takes, with ``registers`` a thread."""
    return ceil_div(registers, _REGISTER_STEP) * _REGISTER_STEP * ceil_div(threads, _WARP) * _WARP


def shared_limit(architecture: str) -> int:
    """Return the bytes of shared memory, static and dynamic, that a block may have."""
    return Target.named(architecture).shared_bytes_per_block


def _name(kernel: CompiledKernel) -> str:
    return kernel.expression.partition("<")[0]
