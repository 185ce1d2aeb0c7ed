"""Gates on the machine code of kernels: instructions, loads, products, occupancy and compile time, by kernel.

`GATES` holds each kernel family to a row; a kernel without one keeps to `EVERY`. A row says what today's code reaches
on the worst of all architectures, with a margin, since the assembler gives other code for the same text now and then.
Where that is not yet what it should be, ``aim`` says what is: a change that comes nearer lowers the bound with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from gpuexec.devices.kernels.budgets import MMA_TYPES, KernelUse
from gpuexec.devices.kernels.kernel_source import WAITING_ARCHITECTURE
from gpuexec.devices.kernels.machine_code import WAIT, CodeFigures, LoopFigures
from gpuexec.devices.kernels.nvrtc import CompiledKernel
from gpuexec.ir.gpus import find_gpu
from gpuexec.ir.target import Target
from gpuexec.ops.elementwise.epilogue import without_epilogue

_NO_LOOP = LoopFigures(instructions=1, multiply_adds=0, integers=0, calls=0)


_STEPS = 6000  # instructions of the steps of an epilogue


@dataclass(frozen=True, slots=True)
class Gate:
    """Bounds on the machine code of a kernel.

    Attributes:
        instructions: The most, in all.
        calls: The most calls of subroutines; None: any number.
        local_accesses: The most loads and stores of local memory.
        store_bits: The least that the widest global store has.
        path_integers: The most integer instructions on the shortest path to that store: what an elementwise kernel
            takes for the elements of one thread; None: any number.
        multiply_adds: The least share of multiply-adds in the main loop.
        loop_integers: The most integer instructions in the main loop; None: any number.
        loop_calls: The most calls in the main loop; None: any number.
        load_bits: The least of any global load in the main loop.
        fast_multiply_adds: The least share of multiply-adds in the shortest of the loops that do the main loop's work.
        fast_load_bits: The least of any global load in that loop.
        opcodes: What must be there.
        early_accesses: The most accesses of global memory before the wait for the launches it depends on: of weights
            and of copies of argument blocks, and of nothing else.
        blocks: The least number of blocks that a multiprocessor holds.
        seconds: The most processor time that compiling the kernel takes beside others of its file.
        aim: What the row is to become.
    """

    instructions: int = 10000
    calls: int | None = None
    local_accesses: int = 0
    store_bits: int = 0
    path_integers: int | None = None
    multiply_adds: float = 0.0
    loop_integers: int | None = None
    loop_calls: int | None = None
    load_bits: int = 0
    fast_multiply_adds: float = 0.0
    fast_load_bits: int = 0
    opcodes: tuple[str, ...] = ()
    early_accesses: int = 0
    blocks: int = 1
    seconds: float = 10.0
    aim: str = ""


EVERY = Gate()


def _products(
    kernel: str,
    types: Iterable[str],
    *,
    share: float,
    integers: int,
    instructions: int,
    aim: str,
    calls: int | None = None,
) -> dict[str, Gate]:
    """Return the rows of a tiled product or convolution of numbers that are summed in float."""
    return {
        kernel.format(t=t): Gate(
            instructions=instructions,
            calls=calls,
            multiply_adds=share if t == "float" else share - 0.02,  # numbers of 16 bits are widened in the loop
            loop_integers=integers,
            loop_calls=0,
            load_bits=32 if t == "float" else 16,
            opcodes=("FFMA",),
            blocks=2,
            aim=aim,
        )
        for t in types
    }


_FLOATS = ("float", "half", "bf16")
_HALVES = _FLOATS[1:]
_LIES = ("Lie::kAlongK", "Lie::kAcross")  # of mma_tile.cuh
_GEMM_AIM = "85 % multiply-adds, loads of 128 bits, no division before the loop"
_CONV_AIM = (
    "80 % multiply-adds: base offsets and masks of taps in place of divisions; loads of 128 bits where strides allow"
)
_VECTORS_AIM = "12 integer instructions, of which the place of a thread in an index beyond 32 bits takes most"

# By file and kernel name, or by one instance of it.
GATES: Mapping[str, Gate] = {
    # Products.
    **_products("matmul.cu:gemm<{t}>", _FLOATS, share=0.61, integers=104, instructions=3300, aim=_GEMM_AIM),
    "matmul.cu:gemm_narrow": Gate(instructions=7200, blocks=2),
    # As simt_gemm; weights that are widened on the way take some 40 instructions of a slab, single ones 100.
    **{
        f"simt_gemm.cu:simt_gemm_narrow<{tile}, {weight}>": Gate(
            instructions=9500, store_bits=128, multiply_adds=slow, loop_integers=110, loop_calls=0, load_bits=loads,
            fast_multiply_adds=fast, opcodes=("FFMA",), blocks=blocks,
        )
        for tile, blocks, rows in (
            ("LargeTile", 1, (("half", 0.815, 0.835, 16), ("i8", 0.78, 0.83, 8))),
            ("SmallTile", 2, (("half", 0.74, 0.79, 16), ("i8", 0.70, 0.77, 8))),
        )
        for weight, slow, fast, loads in rows
    },
    # On sm_75, which copies by registers, a multiprocessor holds one large block.
    **{
        f"simt_gemm.cu:simt_gemm<{tile}, Copies::kVectors>": Gate(
            instructions=5000, store_bits=128, multiply_adds=share, loop_integers=80, loop_calls=0, load_bits=128,
            opcodes=("FFMA",), blocks=blocks,
        )
        for tile, share, blocks in (("LargeTile", 0.86, 1), ("SmallTile", 0.825, 2))
    },
    # Of each operand the loop has copies of 16 bytes and of 4, and runs either.
    **{
        f"simt_gemm.cu:simt_gemm<{tile}, Copies::kAny>": Gate(
            instructions=5500, store_bits=128, multiply_adds=share, loop_integers=95, loop_calls=0, load_bits=32,
            opcodes=("FFMA",), blocks=blocks,
        )
        for tile, share, blocks in (("LargeTile", 0.79, 1), ("SmallTile", 0.76, 2))
    },
    "gemv.cu:gemv_along_k": Gate(instructions=5500, store_bits=128, opcodes=("FFMA",), blocks=2),
    "gemv.cu:gemv_along_columns": Gate(instructions=5500, store_bits=128, opcodes=("FFMA",), blocks=2),
    "gemv.cu:gemv_along_k_narrow": Gate(instructions=6000, store_bits=128, opcodes=("FFMA",), blocks=2),
    "gemv.cu:gemv_along_columns_narrow": Gate(instructions=6000, store_bits=128, opcodes=("FFMA",), blocks=2),
    **{
        f"matmul_nbits.cu:matmul_nbits<{t}>": Gate(
            instructions=18500, loop_calls=0, opcodes=("FFMA",), blocks=2,
            aim="a main loop of which half are multiply-adds; 256 of about 6300 are",
        )
        for t in _FLOATS
    },
    # As mma_gemm along the inner extent, with half as many instructions for as many numbers.
    **{
        f"mma_float8.cu:mma_float8<E4m3, {tile}>": Gate(
            instructions=9000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("QMMA", "LDSM", "LDGSTS"),
        )
        for tile, share, integers in (
            ("LargeMma", 0.62, 18), ("MediumMma", 0.61, 23), ("SmallMma", 0.43, 23), ("FlatMma", 0.29, 66)
        )
    },
    # A word of a fragment is widened by three instructions from sm_89 on, below by nine of integers and two products.
    **{
        f"mma_float8.cu:mma_float8<WidenedE4m3, {tile}>": Gate(
            instructions=14000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0,
            load_bits=128, opcodes=("HMMA", "LDSM", "LDGSTS"),
            aim="each word widened once for all warps that multiply it",
        )
        for tile, share, integers in (
            ("LargeMma", 0.125, 2160), ("MediumMma", 0.125, 2880), ("SmallMma", 0.066, 2880), ("FlatMma", 0.045, 4340)
        )
    },
    # Weights of int8 are widened by some four instructions each; as integers beside half by one and a half, beside bf16
    # by three.
    **{
        f"mma_narrow.cu:mma_narrow<{t}, {t}, SmallMma>": Gate(
            instructions=3500, store_bits=128, multiply_adds=0.158, loop_integers=199, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS"), blocks=2,
        )
        for t in ("half", "bf16")
    },
    **{
        f"mma_narrow.cu:mma_narrow<{t}, {result}, SmallMma>": Gate(
            instructions=4400, store_bits=128, multiply_adds=share, loop_integers=integers,
            loop_calls=0, load_bits=128, opcodes=("HMMA", "LDSM", "LDGSTS"), blocks=2,
        )
        for t, share, integers in (("half", 0.26, 145), ("bf16", 0.185, 205))
        for operands, result in MMA_TYPES
        if operands == t and result == "float"
    },
    # Eight codes are widened by some 14 instructions, of 8 bits in bf16 by twice as many. Sums of a block are scaled
    # behind every other step of the unrolled loop, of which as many are taken as there are blocks.
    **{
        f"mma_nbits.cu:mma_nbits<{t}, {result}, {bits}, SmallMma>": Gate(
            instructions=4800, store_bits=128, multiply_adds=0.215, loop_integers=610, loop_calls=0, load_bits=8,
            opcodes=("HMMA", "LDSM", "LDGSTS"), blocks=2,
        )
        for t in ("half", "bf16")
        for result in (t, "float")
        for bits in (2, 4, 8)
    },
    "few_nbits.cu:few_nbits": Gate(
        instructions=3500, store_bits=128, multiply_adds=0.2, loop_calls=0, load_bits=8, opcodes=("FFMA",)
    ),
    # Two codes take a mask and a multiply-add, or a shift besides; loops have loads of whole steps and of others.
    "mma_few_nbits.cu:mma_few_nbits": Gate(
        instructions=3000, store_bits=128, multiply_adds=0.06, loop_calls=0, load_bits=8, opcodes=("HMMA",)
    ),
    # The same loop over words of four bytes; there is one for signed and one for unsigned left operands.
    **{
        f"integer_matmul.cu:integer_gemm<{tile}, {t}>": Gate(
            instructions=11000, store_bits=32 if t == "u8" else 64 if t == "half" else 128, multiply_adds=share,
            loop_integers=70, loop_calls=0, load_bits=128, fast_multiply_adds=share, fast_load_bits=128,
            opcodes=("IDP",), blocks=blocks,
        )
        for tile, share, blocks in (("LargeTile", 0.85, 1), ("SmallTile", 0.82, 2))
        for t in ("u8", "i32", "float", "half")
    },
    # As mma_gemm along the inner extent, and an integer instruction centres each word of the left operand. One instance
    # makes results of all types, each of which is stored by code of its own.
    **{
        f"integer_mma.cu:integer_mma<{tile}>": Gate(
            instructions=7000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("IMMA", "LDSM", "LDGSTS"),
        )
        for tile, share, integers in (
            ("LargeMma", 0.47, 114), ("MediumMma", 0.465, 151), ("SmallMma", 0.30, 151), ("FlatMma", 0.22, 196)
        )
    },
    # The table of vectors is read in the loop, 32 bits at a time; sums are stored one by one, as windows lie.
    **{
        f"integer_conv_mma.cu:integer_conv_mma<{tile}>": Gate(
            instructions=7000, store_bits=32, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=32,
            opcodes=("IMMA", "LDSM", "LDGSTS"),
        )
        for tile, share, integers in (
            ("LargeMma", 0.445, 140), ("MediumMma", 0.42, 213), ("SmallMma", 0.265, 219), ("FlatMma", 0.215, 259)
        )
    },
    "integer_matmul.cu:integer_gemv": Gate(instructions=7000, opcodes=("IDP",), blocks=2),
    # Of whole slabs of operands that are copied by 16 bytes. The loop is unrolled by the stages; its end weighs most in
    # SmallMma, whose three have fewest products. Copies of an operand that lies across the inner extent take an address
    # each.
    **{
        f"mma_gemm.cu:mma_gemm<{operands}, {result}, {tile}, {_LIES[left]}, {_LIES[right]}>": Gate(
            instructions=9000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS"),
        )
        for tile, left, right, share, integers in (
            ("LargeMma", 0, 0, 0.62, 18), ("LargeMma", 0, 1, 0.595, 35),
            ("MediumMma", 0, 0, 0.61, 23), ("MediumMma", 0, 1, 0.575, 50),
            ("SmallMma", 0, 0, 0.43, 23), ("SmallMma", 0, 1, 0.40, 38),
            ("SmallMma", 1, 0, 0.40, 38), ("SmallMma", 1, 1, 0.385, 56),
            ("FlatMma", 0, 0, 0.29, 66), ("FlatMma", 0, 1, 0.25, 160),
            ("SmallDeepMma", 0, 0, 0.40, 16), ("SmallDeepMma", 0, 1, 0.365, 24),
            ("FlatDeepMma", 0, 0, 0.30, 34), ("FlatDeepMma", 0, 1, 0.24, 80),
        )
        for operands, result in MMA_TYPES
        if operands != "float" or left == right == 0
    },
    # Of groups of warps, whose products of a slab are four instructions: what is copied and waited for is all else.
    **{
        f"mma_gemm.cu:mma_gemm<{operands}, {result}, {tile}, {_LIES[left]}, {_LIES[right]}>": Gate(
            instructions=instructions, store_bits=128, multiply_adds=0.02, loop_integers=integers, loop_calls=0,
            load_bits=128, opcodes=("HGMMA", "LDGSTS"),
        )
        for tile, instructions, lefts, integers in (
            ("LargeGroup", 5000, (0,), 140), ("WideGroup", 2500, (0,), 90), ("SmallGroup", 2500, (0, 1), 105)
        )
        for left in lefts
        for right in (0, 1)
        for operands, result in MMA_TYPES
        if operands != "float"
    },
    # As mma_gemm; rows have loops of their own in front.
    # The loop has loads of whole steps and of others, of which it runs either, and what its first turn alone runs.
    "mma_few.cu:mma_few": Gate(
        instructions=2500, store_bits=128, multiply_adds=0.055, loop_calls=0, load_bits=64, opcodes=("HMMA",)
    ),
    "mma_rows.cu:mma_of_rows": Gate(store_bits=128, opcodes=("HMMA",)),
    "mma_rows_nbits.cu:mma_of_rows_nbits": Gate(store_bits=128, opcodes=("HMMA",)),
    # Convolutions.
    # As mma_gemm along the inner extent, as the weights lie. Eight channels of a patch take five integer instructions;
    # seven in the large tile, where a thread has two lines of a slab.
    **{
        f"conv_mma.cu:conv_mma<{operands}, {result}, {tile}>": Gate(
            instructions=9000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS"),
        )
        for tile, share, integers in (
            ("LargeMma", 0.545, 57), ("MediumMma", 0.515, 95), ("SmallMma", 0.35, 95), ("FlatMma", 0.25, 124),
            ("SmallDeepMma", 0.285, 64), ("FlatDeepMma", 0.225, 84),
        )
        for operands, result in MMA_TYPES
        if operands != "float"
    },
    # The same with floats, each of which takes two instructions more to be rounded to tf32 in registers.
    **{
        f"conv_mma.cu:conv_mma<float, float, {tile}>": Gate(
            instructions=9000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS"),
        )
        for tile, share, integers in (("MediumMma", 0.335, 225), ("SmallMma", 0.2, 225), ("FlatMma", 0.165, 250))
    },
    # As conv_mma, with what measures a run of eight columns, and maps vectors, once each.
    **{
        f"conv_normalized.cu:conv_normalized<NoSteps<{result}>, {operands}, {result}, {tile}>": Gate(
            instructions=5000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS", "SHFL"),
        )
        for operands, result in MMA_TYPES
        for tile, share, integers in (
            (("MediumMma", 0.335, 225), ("SmallMma", 0.2, 225))
            if operands == "float"
            else (("LargeMma", 0.545, 57), ("MediumMma", 0.515, 95), ("SmallMma", 0.35, 95))
        )
    },
    # Each element of a patch takes some eight instructions, a vector of them as many.
    **{
        f"conv_few.cu:conv_few<{image}, {t}, {result}, SmallMma, {width}>": Gate(
            instructions=5000, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0,
            load_bits=(16 if image == t != "float" else 32) if width == 1 else 128, opcodes=("HMMA", "LDSM", "LDGSTS"),
            blocks=2,
        )
        for image, t, width, share, integers in (
            *((t, t, 1, 0.085, 670) for t in ("half", "bf16")), *((t, t, 8, 0.165, 345) for t in ("half", "bf16")),
            *(("float", t, 1, 0.088, 520) for t in ("half", "bf16")),
            *(("float", t, 8, 0.195, 150) for t in ("half", "bf16")),
            ("float", "float", 1, 0.11, 450), ("float", "float", 4, 0.145, 340),
        )
        for operands, result in MMA_TYPES
        if operands == t and (image == t or result == "float")
    },
    **_products("conv.cu:conv_gemm<{t}>", _FLOATS, share=0.40, integers=245, instructions=2600, aim=_CONV_AIM),
    # Patches of planes of channels take about 25 integer instructions for 8 elements, since each channel has an address
    # of its own; the loop for positions that are copied by 16 bytes takes none. Small tiles load 48 vectors with 512
    # multiply-adds. sm_75 copies by registers, and holds one large block.
    **{
        f"conv_simt.cu:{name}<{tile}, {block}>": Gate(
            instructions=4000, store_bits=128 if name == "simt_conv" else 32,
            multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=32,
            fast_multiply_adds=fast if block == 1 else 0.0, fast_load_bits=128 if block == 1 else 0,
            opcodes=("FFMA",), blocks=blocks, aim="channels last, where a copy has four channels",
        )
        for name, tile, blocks, fast, rows in (
            ("simt_conv", "LargeTile", 1, 0.865, ((16, 0.83, 62), (4, 0.83, 78), (1, 0.845, 50))),
            ("simt_conv", "SmallTile", 2, 0.82, ((16, 0.775, 62), (4, 0.77, 76), (1, 0.795, 50))),
            ("simt_conv_transpose", "SmallTile", 2, 0.0, ((16, 0.775, 62), (4, 0.765, 78))),
        )
        for block, share, integers in rows
    },
    # As with weights of float; those are widened by some 40 instructions of a slab.
    **{
        f"conv_simt.cu:{name}_narrow<{tile}, {block}, {weight}>": Gate(
            instructions=4500, store_bits=128 if name == "simt_conv" else 32,
            multiply_adds=share, loop_integers=95, loop_calls=0, load_bits=32, opcodes=("FFMA",), blocks=blocks,
            aim="channels last, where a copy has four channels",
        )
        for name, tile, blocks, shares, numbers in (
            ("simt_conv", "LargeTile", 1, {"i8": 0.79}, (16,)),
            ("simt_conv", "LargeTile", 1, {"half": 0.81, "i8": 0.79}, (1,)),
            ("simt_conv", "SmallTile", 2, {"half": 0.73, "i8": 0.71}, (16, 4, 1)),
            ("simt_conv_transpose", "SmallTile", 2, {"half": 0.73, "i8": 0.71}, (16, 4)),
        )
        for weight, share in shares.items()
        for block in numbers
    },
    "conv_depthwise.cu:conv_depthwise": Gate(instructions=3600, opcodes=("FFMA",), blocks=2),
    # A row of taps for 16 outputs; bf16 are widened by integer instructions, half by as many of another kind.
    **{
        f"conv_depthwise_last.cu:conv_depthwise_last<{types}, {form}>": Gate(
            instructions=3600, store_bits=128, multiply_adds=shares[types.partition(",")[0]][form == "0, 1"],
            loop_integers=130, load_bits=128, opcodes=("FFMA",), blocks=4,
        )
        for shares in [{"float": (0.33, 0.25), "half": (0.27, 0.22), "bf16": (0.23, 0.19)}]
        for types in ("float, float", "half, half", "half, float", "bf16, bf16", "bf16, float")
        for form in ("0, 1", "3, 1", "3, 2")
    },
    # A row of taps for four places of 8 channels; it is the loop with most multiply-adds.
    **{
        f"conv_separable.cu:conv_separable<NoSteps<{t}>, {t}, {t}, {t}, {tile}, {extent}>": Gate(
            instructions=3700, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HMMA", "LDSM", "LDGSTS", "FFMA"), blocks=blocks,
        )
        for tile, blocks, shares in (
            ("SmallMma", 2, (0.28, 0.24)), ("SmallDeepMma", 1, (0.265, 0.22)), ("FlatDeepMma", 2, (0.265, 0.22))
        )
        for t, extent, share, integers in (
            ("half", 3, shares[0], 65), ("half", 0, 0.19, 10), ("bf16", 3, shares[1], 250), ("bf16", 0, 0.16, 35)
        )
    },
    **{
        f"conv_separable.cu:conv_separable<NoSteps<{t}>, {t}, {t}, {t}, SmallGroup, {extent}>": Gate(
            instructions=3700, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0, load_bits=128,
            opcodes=("HGMMA", "LDGSTS", "FFMA"), blocks=2,
        )
        for t, extent, share, integers in (
            ("half", 3, 0.28, 75), ("half", 0, 0.19, 10), ("bf16", 3, 0.24, 260), ("bf16", 0, 0.16, 35)
        )
    },
    "conv.cu:conv_gemm_narrow": Gate(instructions=5400, blocks=2),
    # The table of vectors is read in the loop, 32 bits at a time.
    **{
        f"integer_conv.cu:integer_conv<{tile}, {t}>": Gate(
            instructions=10600, store_bits=128, multiply_adds=share, loop_integers=75, loop_calls=0, load_bits=32,
            opcodes=("IDP",), blocks=blocks,
        )
        for tile, share, blocks in (("LargeTile", 0.845, 1), ("SmallTile", 0.815, 2))
        for t in ("u8", "i32")
    },
    # Attention.
    **{
        f"attention.cu:attend<{t}>": Gate(
            instructions=13000, multiply_adds=0.70, loop_calls=0, opcodes=("FFMA", "MUFU"),
            aim="a copy for each head size, without the multiply-adds of absent columns",
        )
        for t in _FLOATS
    },
    "attention.cu:attend<double>": Gate(instructions=10000),
    # Loads are vectors of four; the scores' way through shared memory is a fixed part of a tile. On sm_75, which has no
    # instruction for it, rounding floats to bf16 takes 600 of them. Two numbers of a copy of its argument block, which
    # no launch of its chain writes, are read before the wait.
    **{
        f"attention_few.cu:attend_few<{stored}, {t}, {rows}>": Gate(
            instructions=3800 if (stored, t) == ("float", "bf16") else 3400, opcodes=("FFMA", "MUFU"), blocks=2,
            early_accesses=2,
        )
        for t in ("float", *_HALVES)
        for stored in ("float", t)
        for rows in (1, 4)
    },
    # The loop over tiles of keys. One that all queries see passes over a third of it: tests of single keys, and of
    # values for what is no finite number.
    **{
        f"attention_mma.cu:attend_mma<{t}, {tile}, kPlain>": Gate(
            instructions=6500, calls=0, store_bits=128, multiply_adds=share, loop_integers=integers, loop_calls=0,
            load_bits=128, opcodes=("HMMA", "LDSM", "LDGSTS", "MUFU"), blocks=2 if tile != "Heads256" else 1,
            aim="half of the integer instructions: addresses of copies kept",
        )
        for t in _HALVES
        for tile, share, integers in (
            ("FewHeads64", 0.105, 445), ("Heads64", 0.145, 515), ("Heads80", 0.115, 415), ("Heads96", 0.13, 410),
            ("Heads128", 0.145, 445), ("Heads192", 0.115, 480), ("Heads256", 0.12, 595),
        )
    },
    # The masked form has a loop over single keys within, which stands for none of its work.
    "attention_mma.cu:attend_mma": Gate(
        instructions=6500, calls=0, store_bits=128, opcodes=("HMMA", "LDSM", "LDGSTS", "MUFU")
    ),
    # Elementwise kernels: four elements of 32 bits a thread, as one vector.
    **{
        f"elementwise_binary.cu:binary<{name}, float, float>": Gate(
            instructions=800, calls=0, store_bits=128, path_integers=17, opcodes=("LDG", "STG"), blocks=4,
            aim=_VECTORS_AIM,
        )
        for name in ("Add", "Sub", "Mul")
    },
    **{
        f"elementwise_unary.cu:unary<{name}, float, float>": Gate(
            instructions=900, calls=0, store_bits=128, path_integers=17, opcodes=("LDG", "STG"), blocks=4,
            aim=_VECTORS_AIM,
        )
        for name in ("Relu", "Exp", "Tanh", "Erf", "Gelu")
    },
    "elementwise_binary.cu:binary": Gate(instructions=1800, store_bits=16, path_integers=150, blocks=4),
    "elementwise_unary.cu:unary": Gate(instructions=2000, store_bits=16, path_integers=90, blocks=4),
    "elementwise_cast.cu:convert": Gate(instructions=900, calls=0, store_bits=16, path_integers=150, blocks=4),
    "elementwise_cast.cu:convert_narrow<u16, u8>": Gate(
        instructions=24000, aim="2,000 instructions: formats of numbers as a table, not each with a copy of the walk"
    ),
    # Copies.
    "copy.cu:copy_strided": Gate(
        instructions=1400, calls=0, store_bits=128, path_integers=50, blocks=4, seconds=2.0
    ),
    # Rows.
    "norm_channels.cu:normalize_large_channels": Gate(instructions=5000, store_bits=64, blocks=3),
    "norm_channels.cu:normalize_small_channels": Gate(instructions=3300, store_bits=64, blocks=3),
    # Arrays that are indexed at run time, and the slow path of a sine, stand in local memory.
    **{
        f"elementwise_unary.cu:unary<{name}, double, double>": Gate(
            instructions=2000, local_accesses=5, store_bits=128, path_integers=90, blocks=4
        )
        for name in ("Sin", "Cos", "Tan")
    },
    "resize.cu:resize_units": Gate(instructions=900, calls=0, store_bits=64, blocks=3),
    "resize.cu:resize_nearest": Gate(local_accesses=34, aim="no local memory: a loop over axes that unrolls"),
    "resize.cu:resize_blend": Gate(local_accesses=32, aim="no local memory: a loop over axes that unrolls"),
    "pixel/resize.cu:draw_resize_nearest": Gate(local_accesses=34),
    "pixel/resize.cu:draw_resize_blend": Gate(local_accesses=32),
    "multinomial.cu:multinomial": Gate(local_accesses=2),
    **{
        f"pixel/random.cu:{name}": Gate(local_accesses=12)
        for name in ("draw_random_uniform", "draw_random_normal", "draw_bernoulli", "draw_dropout", "draw_dropout_mask")
    },
    "pixel/statistics.cu:draw_take_samples": Gate(local_accesses=12),
}  # fmt: skip


def find_gate(source: str, expression: str) -> Gate:
    """Return the row of a kernel: its instance's, else its name's, else `EVERY`.

    One with an epilogue has the row of the instance without, with room for the steps: their instructions and calls.
    """
    name, instance = expression.partition("<")[0], without_epilogue(expression)
    gate = GATES.get(f"{source}:{instance}") or GATES.get(f"{source}:{name}", EVERY)
    return gate if instance == expression else replace(gate, instructions=gate.instructions + _STEPS, calls=None)


def find_violations(
    kernel: CompiledKernel,
    figures: CodeFigures,
    source: str,
    architecture: str,
    use: KernelUse | None = None,
    *,
    is_waiting: bool = False,
) -> Iterator[str]:
    """Yield a sentence for each gate that a kernel's machine code does not pass: figure, then bound.

    Args:
        kernel: The compiled kernel.
        figures: Those of its code.
        source: Its file.
        architecture: ``"sm_90"``.
        use: How plans launch it, where that is known; else its largest block without dynamic shared memory.
        is_waiting: Whether its source says that it waits for the launches it depends on.
    """
    gate = find_gate(source, kernel.expression)
    loop = figures.loop or _NO_LOOP
    most = (
        ("instructions", figures.instructions, gate.instructions),
        ("calls", figures.calls, gate.calls),
        ("loads and stores of local memory", figures.local_accesses, gate.local_accesses),
        ("integer instructions before its widest store", figures.path_integers, gate.path_integers),
        ("integer instructions in its main loop", loop.integers, gate.loop_integers),
        ("calls in its main loop", loop.calls, gate.loop_calls),
        ("accesses of global memory before its wait", figures.early_accesses, gate.early_accesses),
    )
    for what, figure, bound in most:
        if bound is not None and figure > bound:
            yield f"has {figure} {what}; at most {bound}."
    if figures.store_bits < gate.store_bits:
        yield f"stores at most {figures.store_bits} bits at once; at least {gate.store_bits}."
    yield from _find_loop_violations(loop, "its main loop", gate.multiply_adds, gate.load_bits)
    fast = figures.fast_loop or _NO_LOOP
    yield from _find_loop_violations(fast, "the shortest such loop", gate.fast_multiply_adds, gate.fast_load_bits)
    for opcode in gate.opcodes:
        if opcode not in figures.opcodes:
            yield f"has no {opcode}; at least one."
    has_wait = Target.named(architecture).architecture >= WAITING_ARCHITECTURE
    if has_wait and is_waiting and WAIT not in figures.opcodes:
        yield f"has no {WAIT}, and its source says that it waits for the launches it depends on."
    blocks = count_blocks(kernel, architecture, use)
    if blocks < gate.blocks:
        yield f"fits {blocks} times on a multiprocessor ({kernel.registers} registers); at least {gate.blocks}."


def _find_loop_violations(loop: LoopFigures, which: str, multiply_adds: float, load_bits: int) -> Iterator[str]:
    if loop.multiply_add_share < multiply_adds:
        yield (
            f"has {loop.multiply_adds} multiply-adds among {loop.instructions} instructions of {which}"
            f" ({loop.multiply_add_share:.1%}); at least {multiply_adds:.1%}."
        )
    for bits, count in loop.global_loads.items():
        if bits < load_bits:
            yield f"has {count} global loads of {bits} bits in {which}; each at least {load_bits}."


def seconds_limit(source: str, expressions: Iterable[str]) -> float:
    """Return the most processor time that compiling these kernels of one file together may take."""
    return sum(find_gate(source, expression).seconds for expression in expressions)


def count_blocks(kernel: CompiledKernel, architecture: str, use: KernelUse | None = None) -> int:
    """Return how many blocks of a kernel a multiprocessor holds, by threads, registers and shared memory."""
    # Blocks of no given size count as the largest there are, so that nothing is promised for them.
    threads = (use.threads if use is not None and use.threads else kernel.max_threads) or 1024
    shared = kernel.shared_bytes + (use.shared_bytes.get(architecture, 0) if use is not None else 0)
    return find_gpu(Target.named(architecture).architecture).count_blocks(threads, kernel.registers, shared)
