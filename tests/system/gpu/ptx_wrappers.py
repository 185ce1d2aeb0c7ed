"""Wrappers of PTX instructions on a GPU, bit for bit: what the simulator's host bodies stand for.

Each row of `CASES` is a small kernel of one block that copies words or computes with them, and what it must give. The
simulator runs the same rows, so its host bodies and the instructions agree. A new wrapper needs a row; those that
`find_wrappers` reads from the headers are compared with the rows by a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np

from gpuexec.devices.arguments import PackedArguments
from gpuexec.devices.device import Device
from gpuexec.devices.kernels.kernel_source import kernels_dir
from gpuexec.devices.simulator.device import SimulatorDevice
from gpuexec.devices.simulator.library import Schedule
from gpuexec.devices.simulator.module import load_file
from gpuexec.errors import GpuexecError
from gpuexec.ir.command import Kernel, LaunchConfig
from tests.bench.tables import Figures

Words = np.ndarray[Any, np.dtype[np.uint32]]
WORDS, THREADS = 256, 32
_SEEDS = 4
_SOURCE = """#undef GPUEXEC_CUDA_HALF  // the package's types are tried, not those that its kernels leave to others
#include "{header}"
#include "types.cuh"

// Block: one of {threads} threads; x, y [{words}]
__global__ void __launch_bounds__({threads}) {name}(const u32* x, u32* y) {{
  const int t = threadIdx.x;
{body}
}}
"""
# A definition of a function, and an instruction with a name in its body.
_FUNCTION = re.compile(r"^(?:template\s*<[^>]*>\s*)?__device__ .*?\b(\w+)\(", re.MULTILINE)
_ASSEMBLY = re.compile(r'\basm\s+(?:volatile\s*)?\(\s*"\s*[a-z]|\basm\s*\(\s*"\s*[a-z]')


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel over wrappers of one header.

    Attributes:
        name: Of the kernel.
        header: That has the wrappers.
        wrappers: Which ones it proves.
        body: What each thread ``t`` of one block does with ``x`` and ``y``, words of 32 bits; y is 0 before.
        expected: Returns y for x.
        since: The oldest architecture that has the instruction.
        threads: Of the block.
        alone: Whether no other architecture has it.
    """

    name: str
    header: str
    wrappers: tuple[str, ...]
    body: str
    expected: Callable[[Words], Words]
    since: int = 75
    threads: int = THREADS
    alone: bool = False

    def is_for(self, architecture: int) -> bool:
        """Return whether an architecture has the instruction."""
        return architecture == self.since if self.alone else architecture >= self.since

    @property
    def is_present(self) -> bool:
        """True if there is such a header."""
        return any(kernels_dir().rglob(self.header))

    def write(self, folder: Path) -> Path:
        """Write the kernel to a file and return its path."""
        path = folder / f"{self.name}.cu"
        body = "\n".join(f"  {line}" for line in self.body.strip().splitlines())
        path.write_text(
            _SOURCE.format(header=self.header, name=self.name, threads=self.threads, words=WORDS, body=body)
        )
        return path


def _place(*parts: tuple[int, Words]) -> Words:
    """Return zeros with these words at these offsets."""
    y = np.zeros(WORDS, np.uint32)
    for offset, words in parts:
        y[offset : offset + len(words)] = words
    return y


def _multiply_bytes(a: Words, b: Words, sums: Words) -> Words:
    """Return sums and the products of bytes, unsigned ones of ``a`` and signed ones of ``b``."""
    products = a[:, None].view(np.uint8).astype(np.int64) * b[:, None].view(np.int8)
    return np.asarray((products.sum(1) + sums).astype(np.uint32))


_T = np.arange(THREADS)
_ONES, _LOW = (np.full(THREADS, each, np.uint32) for each in (2**32 - 1, 2**32 - 256))


def _cut_vectors(x: Words) -> Words:
    """Return x with vector i of the second half cut to ``i % 17`` bytes."""
    y = x.copy()
    octets = y.view(np.uint8).reshape(2 * THREADS, 16)[THREADS:]
    octets[np.arange(16) >= (_T % 17)[:, None]] = 0
    return y


def _widen_e4m3(x: Words) -> Words:
    """Return the bytes of words as halves."""
    return np.asarray(x.view(ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint32))


def _pack(x: Words, dtype: Any) -> Words:
    """Return the first two runs of floats rounded to 16 bits, the second in the upper halves of words."""
    low, high = (x[32 * i : 32 * i + 32].view(np.float32).astype(dtype).view(np.uint16) for i in range(2))
    return np.asarray(low | high.astype(np.uint32) << np.uint32(16))


def _double_and_subtract(x: Words, mask: int, power: int, dtype: Any) -> Words:
    """Return 2 * (power + a) - (power + b) of the masked numbers of 16 bits of two rows of words, in a type."""
    a, b = ((x[first : first + 32].view(np.uint16) & np.uint16(mask)).astype(np.float32) for first in (0, 32))
    made = 2 * (power + a) - (power + b)
    return np.ascontiguousarray(made.astype(dtype)).view(np.uint32)


def _raise_two(powers: np.ndarray[Any, np.dtype[np.int64]]) -> Words:
    """Return powers of two as floats, without subnormal ones."""
    with np.errstate(all="ignore"):
        exact = np.where(powers < -126, 0.0, 2.0**powers).astype(np.float32)
    return exact.view(np.uint32)


def _read_matrices(x: Words) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Return four 8 x 8 matrices: row i % 8 of matrix i / 8 is the half of line ``5 * i % 32`` that lane i names."""
    return x.view(np.uint16).reshape(THREADS, 2, 8)[_T * 5 % 32, _T // 16].reshape(4, 8, 8)


# Row and column (or column and row) of each number of a fragment, by PTX's tables: lane i has word i % 4 and that + 4.
_PRODUCT = """
const auto pick = [&](int from, int row, int k) {{ return int(x[(from + row * {depth} + k) % 256] >> 9 & 7) {lower}; }};
const auto encode_small = [](int number, int mantissa, int bias) {{
  const int size = number < 0 ? -number : number;
  int exponent = 0;
  while (size >> exponent > 1) ++exponent;
  const int bits = size ? (exponent + bias) << mantissa | ((size << mantissa >> exponent) & ((1 << mantissa) - 1)) : 0;
  return u32(bits | (number < 0 ? 128 : 0));
}};
(void)encode_small;
const auto fill = [&](int from, int row, int word) {{
  u32 bits = 0;
  for (int i = 0; i < {count}; ++i) {{
    const int number = pick(from, row, word * {count} + i);
    bits |= (u32({encoding}) & {mask}u) << {bits} * i;
  }}
  return bits;
}};
u32 a[4];
for (int i = 0; i < 4; ++i) a[i] = fill(0, t / 4 + i % 2 * 8, t % 4 + i / 2 * 4);
const u32 b[2] = {{fill(101, t / 4, t % 4), fill(101, t / 4, t % 4 + 4)}};
{sums} sums[4] = {{1, 2, 3, 4}};
{name}(sums, a, b);
for (int i = 0; i < 4; ++i) y[(t / 4 + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = reinterpret<u32>(sums[i]);
"""


def _product(name: str, bits: int, sums: str, encoding: str, since: int) -> Case:
    """Return the case of a product of a 16 x k matrix and a k x 8 one, both of small integers."""
    depth, lower = 256 // bits, 0 if name == "mma_u8" else 3

    def multiply(x: Words) -> Words:
        numbers = (x >> np.uint32(9) & np.uint32(7)).astype(np.int64) - lower
        left = numbers[np.arange(16 * depth) % WORDS].reshape(16, depth)
        right = numbers[(101 + np.arange(8 * depth)) % WORDS].reshape(8, depth)
        start = np.tile([[1, 2]], (16, 4)) + np.repeat([0, 2], 8)[:, None]
        product = left @ right.T + start
        return _place((0, product.astype(np.float32 if sums == "float" else np.int32).reshape(-1).view(np.uint32)))

    mask = hex((1 << bits) - 1)
    text = _PRODUCT.format(
        name=name, depth=depth, count=32 // bits, bits=bits, mask=mask, sums=sums, encoding=encoding,
        lower=f"- {lower}",
    )  # fmt: skip
    return Case(f"product_by_{name}", "mma.cuh", (name,), text, multiply, since)


# Both operands lie as wgmma.cuh says, 64 numbers of k deep. A thread's sums are added up, each times its place and 1.
_GROUP_PRODUCT = """
__shared__ alignas(1024) u8 held[(64 + {columns}) * 128];
for (int i = t; i < (64 + {columns}) * 64; i += 128) {{
  const bool is_left = i < 64 * 64;
  const int place = is_left ? i : i - 64 * 64, lines = is_left ? 64 : {columns}, k = place % 64, line = place / 64;
  const int number = int(x[(is_left ? line * 5 + k : line * 11 + k * 3 + 7) % 256] >> (k + line) % 28 & 7) - 3;
  const int row = {across} ? line / 64 * 64 + k : line, column = {across} ? line % 64 : k;
  u8* const to = held + (is_left ? 0 : 64 * 128) + row * 128 + (column / 8 ^ row % 8) * 16 + column % 8 * 2;
  *reinterpret_cast<{type}*>(to) = cast<{type}>(float(number));
}}
GroupProducts products;
float sums[{columns} / 8][4] = {{}};
const GroupOperand left(find_shared_address(held), 64 * 128), right(find_shared_address(held + 64 * 128), 64 * 128);
fence_for_group(products);
__syncthreads();
begin_products(products);
for (int step = 0; step < 4; ++step) {{
  const int nbytes = {across} ? step * 2048 : step * 32;
  multiply_group<{type}, {across}, {across}>(products, sums, left.after(nbytes), right.after(nbytes));
}}
commit_products(products);
wait_products<0>(products);
u32 added = 0;
for (int i = 0; i < {columns} / 2; ++i) added += u32(i + 1) * u32(int(sums[i / 4][i % 4]));
y[t] = added;
"""


def _group_product(kind: str, columns: int, across: bool) -> Case:
    """Return the case of products of a group of warps, of small integers."""

    def multiply(x: Words) -> Words:
        k = np.arange(64)

        def read(lines: int, line_step: int, k_step: int, first: int) -> np.ndarray[Any, Any]:
            line = np.arange(lines)[:, None]
            words = x[(line * line_step + k * k_step + first) % WORDS]
            return (words >> ((k + line) % 28).astype(np.uint32) & np.uint32(7)).astype(np.int64) - 3

        product = read(64, 5, 1, 0) @ read(columns, 11, 3, 7).T
        # Of rows 16 * warp + lane / 4 and that + 8, columns 8 * i + 2 * (lane % 4) and the next.
        thread, i = np.arange(128)[:, None], np.arange(columns // 2)
        rows = thread // 32 * 16 + thread % 32 // 4 + i % 4 // 2 * 8
        sums = product[rows, i // 4 * 8 + thread % 4 * 2 + i % 2]
        return _place((0, ((i + 1) * sums).sum(axis=1).astype(np.uint32)))

    wrappers = ("fence_for_group", "begin_products", "multiply_group", "commit_products", "wait_products")
    text = _GROUP_PRODUCT.format(columns=columns, across=int(across), type=kind)
    return Case(f"group_product_{kind}_{columns}", "wgmma.cuh", wrappers, text, multiply, 90, 128, alone=True)


def _convert(x: Words) -> Words:
    """Return numbers of 16 bits widened, then floats and doubles of like sizes narrowed; none is NaN."""
    a, b, c, d, e, f = (x[32 * i : 32 * i + 32] for i in range(6))
    halves, bfloats = (words.astype(np.uint16) for words in (a & 0xFBFF, b & 0xFF7F))
    floats = (c & 0x807FFFFF) | ((107 + (c >> 23) % 32) << 23)
    high = (d & 0x800FFFFF) | ((1003 + (d >> 20) % 32) << 20)
    doubles = np.stack([e, high], 1).copy().view(np.float64)[:, 0]
    narrow = (
        floats.view(np.float32).astype(np.float16),
        doubles.astype(np.float16),
        (f & 0xFF7FFFFF).view(np.float32).astype(ml_dtypes.bfloat16),
    )
    return _place(
        (0, halves.view(np.float16).astype(np.float32).view(np.uint32)),
        (32, bfloats.astype(np.uint32) << 16),
        *((64 + 32 * i, each.view(np.uint16).astype(np.uint32)) for i, each in enumerate(narrow)),
    )


CASES = (
    Case(
        "conversions",
        "types.cuh",
        ("__half2float", "__bfloat162float", "__float2half_rn", "__double2half", "__float2bfloat16_rn"),
        """
const u32 high = (x[96 + t] & 0x800fffffu) | ((1003 + (x[96 + t] >> 20) % 32) << 20);
const u32 wide = (x[64 + t] & 0x807fffffu) | ((107 + (x[64 + t] >> 23) % 32) << 23);
y[t] = reinterpret<u32>(__half2float(reinterpret<half>(u16(x[t] & 0xfbffu))));
y[32 + t] = reinterpret<u32>(__bfloat162float(reinterpret<bf16>(u16(x[32 + t] & 0xff7fu))));
y[64 + t] = __half_as_ushort(__float2half_rn(reinterpret<float>(wide)));
y[96 + t] = __half_as_ushort(__double2half(reinterpret<double>(u64(high) << 32 | x[128 + t])));
y[128 + t] = __bfloat16_as_ushort(__float2bfloat16_rn(reinterpret<float>(x[160 + t] & 0xff7fffffu)));
""",
        _convert,
    ),
    Case(
        "copy_four_bytes",
        "async_copy.cuh",
        ("copy_async", "commit_copies", "wait_copies"),
        """
__shared__ alignas(16) u32 held[64];
const float* source = reinterpret_cast<const float*>(x);
float* target = reinterpret_cast<float*>(held);
copy_async<4>(target + t, source + t, true);
copy_async<4>(target + 32 + t, source + 32 + t, t % 3 != 0);
commit_copies();
wait_copies<0>();
__syncthreads();
y[t] = held[31 - t];
y[32 + t] = held[63 - t];
""",
        lambda x: _place((0, x[31::-1]), (32, np.where(_T % 3 == 0, 0, x[32:64])[::-1].astype(np.uint32))),
    ),
    Case(
        "copy_sixteen_bytes",
        "async_copy.cuh",
        ("copy_async",),
        """
__shared__ alignas(16) u32 held[128];
copy_async<16>(reinterpret_cast<float*>(held + 4 * t), reinterpret_cast<const float*>(x + 4 * t), t % 5 != 1);
commit_copies();
wait_copies<0>();
__syncthreads();
for (int i = t; i < 128; i += 32) y[i] = held[127 - i];
""",
        lambda x: _place((0, np.where(np.arange(128) // 4 % 5 == 1, 0, x[:128])[::-1].astype(np.uint32))),
    ),
    Case(
        "wait_for_older_group",
        "async_copy.cuh",
        ("commit_copies", "wait_copies"),
        """
__shared__ alignas(16) u32 held[96];
const float* source = reinterpret_cast<const float*>(x);
float* target = reinterpret_cast<float*>(held);
for (int group = 0; group < 3; ++group) {
  copy_async<4>(target + 32 * group + t, source + 32 * group + t, true);
  commit_copies();
}
wait_copies<2>();
__syncthreads();
y[t] = held[31 - t];
wait_copies<1>();
__syncthreads();
y[32 + t] = held[63 - t];
commit_copies();
wait_copies<0>();
__syncthreads();
y[64 + t] = held[95 - t];
""",
        lambda x: _place((0, x[31::-1]), (32, x[63:31:-1]), (64, x[95:63:-1])),
    ),
    Case(
        "copy_vectors_by_shared_addresses",
        "async_copy.cuh",
        ("copy_async_vector",),
        """
__shared__ alignas(16) u32 held[256];
const SharedAddress target = find_shared_address(held);
copy_async_vector(target + 16 * t, x + 4 * t);
copy_async_vector(target + 512 + 16 * t, x + 128 + 4 * t, t % 17);
commit_copies();
wait_copies<0>();
__syncthreads();
for (int i = t; i < 256; i += 32) y[i] = held[i];
""",
        lambda x: _cut_vectors(x),
        since=80,
    ),
    Case(
        "matrices_as_they_lie",
        "mma.cuh",
        ("load_matrices",),
        """
__shared__ alignas(16) u32 held[256];
for (int i = t; i < 256; i += 32) held[i] = x[i];
__syncthreads();
u32 words[4];
load_matrices(words, find_shared_address(held) + t * 5 % 32 * 32 + t / 16 * 16);
for (int m = 0; m < 4; ++m) y[m * 32 + t] = words[m];
""",
        lambda x: _place((0, _read_matrices(x).reshape(-1).view(np.uint32))),
    ),
    Case(
        "matrices_transposed",
        "mma.cuh",
        ("load_matrices_transposed",),
        """
__shared__ alignas(16) u32 held[256];
for (int i = t; i < 256; i += 32) held[i] = x[i];
__syncthreads();
u32 words[4];
load_matrices_transposed(words, find_shared_address(held) + t * 5 % 32 * 32 + t / 16 * 16);
for (int m = 0; m < 4; ++m) y[m * 32 + t] = words[m];
""",
        lambda x: _place((0, np.ascontiguousarray(_read_matrices(x).swapaxes(1, 2)).reshape(-1).view(np.uint32))),
    ),
    *(
        _product(name, bits, sums, encoding, since)
        for name, bits, sums, encoding, since in (
            ("mma_half", 16, "float", "__half_as_ushort(cast<half>(float(number)))", 80),
            ("mma_bf16", 16, "float", "__bfloat16_as_ushort(cast<bf16>(float(number)))", 80),
            ("mma_tf32", 32, "float", "__float_as_uint(float(number))", 80),
            ("mma_i8", 8, "i32", "u32(number)", 80),
            ("mma_u8", 8, "i32", "u32(number)", 80),
            ("mma_e4m3", 8, "float", "encode_small(number, 3, 7)", 89),
            ("mma_e5m2", 8, "float", "encode_small(number, 2, 15)", 89),
        )
    ),
    _group_product("half", 64, False),
    _group_product("bf16", 64, True),
    _group_product("half", 256, True),
    _group_product("bf16", 256, False),
    Case(
        "rounding_to_tf32",
        "mma.cuh",
        ("convert_to_tf32",),
        "for (int i = t; i < 256; i += 32) y[i] = convert_to_tf32(__uint_as_float(x[i])) & 0xffffe000u;",
        lambda x: (x + np.uint32(0x1000)) & np.uint32(0xFFFFE000),
        since=80,
    ),
    Case(
        "rounding_to_pairs",
        "mma.cuh",
        ("pack_halves", "pack_bf16s"),
        """
y[t] = pack_halves(__uint_as_float(x[t]), __uint_as_float(x[32 + t]));
y[32 + t] = pack_bf16s(__uint_as_float(x[t]), __uint_as_float(x[32 + t]));
""",
        lambda x: _place((0, _pack(x, np.float16)), (32, _pack(x, ml_dtypes.bfloat16))),
        since=80,
    ),
    Case(
        "multiply_add_pairs",
        "code_pairs.cuh",
        ("multiply_add_halves", "multiply_add_bf16s"),
        """
y[t] = multiply_add_halves(0x64006400u | (x[t] & 0xff00ffu), 0x40004000u, 0xe400e400u | (x[32 + t] & 0xff00ffu));
y[32 + t] = multiply_add_bf16s(0x43004300u | (x[t] & 0xf000fu), 0x40004000u, 0xc300c300u | (x[32 + t] & 0xf000fu));
""",
        lambda x: _place(
            (0, _double_and_subtract(x, 0xFF, 1024, np.float16)),
            (32, _double_and_subtract(x, 0xF, 128, ml_dtypes.bfloat16)),
        ),
        since=80,
    ),
    # NaN is left out, whose bits are anyone's. One of the two is for architectures without the other.
    Case(
        "widening_of_e4m3",
        "mma.cuh",
        ("convert_e4m3_pair", "multiply_halves"),
        """
for (int i = 0; i < 4; ++i) {
  u32 pairs[2];
  widen_e4m3(x[t + 32 * (i / 2)] & (i % 2 ? 0xf7f7f7f7u : 0xfefefefeu), pairs);
  y[64 * i + 2 * t] = pairs[0];
  y[64 * i + 2 * t + 1] = pairs[1];
}
""",
        lambda x: _place(
            *[
                (64 * i, _widen_e4m3(x[32 * (i // 2) :][:32] & np.uint32(0xF7F7F7F7 if i % 2 else 0xFEFEFEFE)))
                for i in range(4)
            ]
        ),
        since=80,
    ),
    # Of whole numbers it is exact; beyond what a float holds it is 0 or infinite.
    Case(
        "powers_of_two",
        "exp2.cuh",
        ("exp2_fast",),
        "for (int i = t; i < 256; i += 32) y[i] = __float_as_uint(exp2_fast(float(int(x[i] >> 8 & 511) - 256)));",
        lambda x: _raise_two((x >> np.uint32(8) & np.uint32(511)).astype(np.int64) - 256),
    ),
    Case(
        "address_behind",
        "simt_tile.cuh",
        ("behind",),
        """
const float* middle = reinterpret_cast<const float*>(x + 128);
y[t] = __float_as_uint(*behind(middle, t - 16, 28));
y[32 + t] = __float_as_uint(*behind(middle, 16 - t, -4));
""",
        lambda x: _place((0, x[128 + 7 * (_T - 16)]), (32, x[128 - (16 - _T)])),
    ),
    Case(
        "multiply_bytes",
        "integer_product.cuh",
        ("multiply_unsigned_bytes",),
        """
y[t] = multiply_unsigned_bytes(x[t], x[32 + t], x[64 + t]);
y[32 + t] = multiply_unsigned_bytes(0xffffffffu, x[t], 0xffffff00u);
""",
        lambda x: _place((0, _multiply_bytes(x[:32], x[32:64], x[64:96])), (32, _multiply_bytes(_ONES, x[:32], _LOW))),
    ),
    # What orders two launches is tested where launches are recorded; after any other launch both do nothing.
    Case(
        "launch_alone",
        "dependent_launch.cuh",
        ("wait_for_predecessors", "launch_dependents"),
        """
wait_for_predecessors();
y[t] = x[31 - t];
launch_dependents();
y[32 + t] = x[32 + t];
""",
        lambda x: _place((0, x[31::-1]), (32, x[32:64])),
    ),
)


def draw_words(seed: int = 0) -> Words:
    """Return words to compute with: numbers that are no NaN as floats, so that a move keeps their bits."""
    return np.random.default_rng(seed).standard_normal(WORDS).astype(np.float32).view(np.uint32)


def run_on_device(case: Case, device: Device, x: Words) -> Words:
    """Run a case on a device and return its words."""
    with TemporaryDirectory() as folder:
        kernel = Kernel(str(case.write(Path(folder))), case.name)
        device.load([kernel])
    stream, y = device.create_stream(), np.zeros_like(x)
    memory = [device.allocate(x.nbytes) for _ in range(2)]
    arguments = PackedArguments([None, None])
    for position, (block, words) in enumerate(zip(memory, (x, y), strict=True)):
        arguments.set_pointer(position, block.address)
        stream.copy_to_device(block.address, words.view(np.uint8))
    stream.launch(device.function(kernel), LaunchConfig((1, 1, 1), (case.threads, 1, 1)), arguments)
    stream.copy_to_host(y.view(np.uint8), memory[1].address)
    stream.synchronize()
    for block in memory:
        block.free()
    return y


def run_on_simulator(case: Case, x: Words) -> Iterator[Words]:
    """Yield what a case gives in some random orders of threads."""
    with TemporaryDirectory() as folder:
        function = load_file(case.write(Path(folder)), [case.name])[case.name]
    for seed in range(_SEEDS):
        y = np.zeros_like(x)
        function.launch_arrays(1, case.threads, x, y, schedule=Schedule("random", seed))
        yield y


def measure_wrappers(device: Device) -> Figures:
    """Run all cases and return how they ended, a row each; a device that is lost fails those that follow."""
    figures = Figures(f"Wrappers of PTX instructions on {device.name}", ("case", "header", "wrappers", "result"))
    for case in CASES:
        figures.add(case.name, case.header, ", ".join(case.wrappers), _check(case, device))
    wrong = sum(row[-1] not in ("equal", "absent") and not row[-1].startswith("needs") for row in figures.rows)
    figures.notes.append(f"{wrong} WRONG: figures of kernels that use them say nothing." if wrong else "None is wrong.")
    return figures


def _check(case: Case, device: Device) -> str:
    if not case.is_present:
        return "absent"
    if not case.is_for(device.target.architecture):
        return f"needs sm_{case.since}"
    x = draw_words()
    expected = case.expected(x)
    try:
        found = run_on_simulator(case, x) if isinstance(device, SimulatorDevice) else [run_on_device(case, device, x)]
        wrong = [int((y != expected).sum()) for y in found]
    except GpuexecError as error:
        return f"failed: {str(error).splitlines()[0][:120]}"
    return f"{max(wrong)} of {WORDS} words DIFFER" if any(wrong) else "equal"


def find_wrappers() -> set[tuple[str, str]]:
    """Return the functions of headers with an instruction in PTX, as (header, function)."""
    found = set()
    for path in sorted(kernels_dir().rglob("*.cuh")):
        text = path.read_text()
        starts = [*_FUNCTION.finditer(text)]
        for assembly in _ASSEMBLY.finditer(text):
            names = [start[1] for start in starts if start.start() < assembly.start()]
            found.add((path.name, names[-1] if names else "?"))
    return found
