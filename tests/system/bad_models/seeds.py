"""Seed models for mutants: the digits model, graphs written here, onnx's own small ones, and users'."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from gpuexec.system import knobs

ROOT = Path(__file__).resolve().parents[3]
ONNX_CASES = Path(onnx.__file__).parent / "backend" / "test" / "data"
# A larger file gives mutants no new kinds of mistakes, only slower ones.
_LARGEST_BYTES = 1 << 20

# Graphs over many operators; the head names opset and further imports.
_TEXTS: dict[str, tuple[str, str]] = {
    "convolutions": (
        '"": 17',
        """(float[N, 3, 8, 8] x) => (float[N, 5] y)
        <float[4, 3, 3, 3] w, float[4] s = {1, 1, 2, 1}, float[4] b = {0, 1, 0, -1}, float[4] m = {0, 0, 1, 0},
         float[4] v = {1, 2, 1, 1}, float[5, 4] g>
        { a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
          c = BatchNormalization <epsilon = 0.001> (a, s, b, m, v)
          d = Relu (c)
          e = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (d)
          f = AveragePool <kernel_shape = [2, 2], pads = [1, 0, 0, 1], count_include_pad = 1> (e)
          h = GlobalAveragePool (f)
          i = Flatten <axis = 1> (h)
          j = Gemm <transB = 1, alpha = 0.5> (i, g)
          y = Softmax <axis = -1> (j) }""",
    ),
    "attention": (
        '"": 20',
        """(float[B, S, 8] x, int64[B, S] ids) => (float[B, S, 8] y, float[B, S] q)
        <float[8, 24] w, float[8] s = {1, 1, 1, 1, 1, 1, 1, 1}, float[8] b = {0, 0, 0, 0, 0, 0, 0, 0},
         int64[1] zero = {0}, int64[1] one = {1}, int64[1] heads = {2}, int64[1] rest = {-1}, int64 last = {2},
         float scale = {0.5}, float[4] table = {1, 2, 3, 4}, float low = {-1}, float high = {1}>
        { n = LayerNormalization <axis = -1> (x, s, b)
          m = MatMul (n, w)
          k, l, v = Split <axis = -1, num_outputs = 3> (m)
          sh = Shape (x)
          d0 = Slice (sh, zero, one)
          d1 = Gather <axis = 0> (sh, one)
          to = Concat <axis = 0> (d0, d1, heads, rest)
          k4 = Reshape (k, to)
          l4 = Reshape (l, to)
          v4 = Reshape (v, to)
          kt = Transpose <perm = [0, 2, 1, 3]> (k4)
          lt = Transpose <perm = [0, 2, 3, 1]> (l4)
          vt = Transpose <perm = [0, 2, 1, 3]> (v4)
          p = MatMul (kt, lt)
          ps = Mul (p, scale)
          pm = Softmax <axis = 3> (ps)
          o = MatMul (pm, vt)
          ot = Transpose <perm = [0, 2, 1, 3]> (o)
          y0 = Reshape (ot, sh)
          y1 = Add (y0, x)
          y2 = Gelu (y1)
          y = Clip (y2, low, high)
          picked = Gather (table, ids)
          mask = Greater (picked, scale)
          q = Where (mask, picked, scale) }""",
    ),
    "shapes": (
        '"": 18',
        """(float[N, M] x, float[2, 3] u) => (float[] y, float[] z, int64[] w)
        <int64[1] axes = {0}, int64[2] reps = {2, 1}, int64[3] target = {2, 1, 3}, int64[4] pads = {0, 1, 1, 0},
         int64 start = {0}, int64 stop = {6}, int64 step = {2}, int64[2] starts = {1, 0}, int64[2] ends = {9, -1},
         int64[2] both = {0, 1}, int64[2] steps = {1, 1}, float fill = {0.5}, float[4] sizes = {1, 1, 2, 2}>
        { a = Unsqueeze (x, axes)
          b = Squeeze (a, axes)
          c = Tile (b, reps)
          d = Pad <mode = "constant"> (c, pads, fill)
          y = Slice (d, starts, ends, both, steps)
          s = Shape (x)
          zeros = ConstantOfShape <value = float[1] {0.25}> (s)
          t = Size (x)
          r = Range (start, stop, step)
          e = Expand (u, target)
          f = ReduceSum <keepdims = 0> (e, axes)
          h = Unsqueeze (f, both)
          z = Resize <mode = "linear"> (h, , sizes)
          g = CumSum (r, start)
          w = Concat <axis = 0> (g, s) }""",
    ),
    "indices": (
        '"": 18',
        """(float[3, 4] x, int64[2, 4] i) => (float[3, 4] y, float[2, 4] z, int64[3, 1] m, float[3, 4] t)
        <int64[2, 2] at = {0, 1, 2, 3}, float[2] news = {5, 6}, int64 shift = {1}>
        { z = GatherElements <axis = 0> (x, i)
          y = ScatterND (x, at, news)
          m = ArgMax <axis = 1> (x)
          t = Trilu <upper = 0> (x, shift) }""",
    ),
    "recurrence": (
        '"": 14',
        """(float[T, 2, 3] x) => (float[] y, float[] h)
        <float[1, 16, 3] w, float[1, 16, 4] r, float[1, 32] b, float[1, 12, 4] w2, float[1, 12, 4] r2,
         int64[1] one = {1}>
        { l, lh = LSTM <hidden_size = 4, direction = "forward"> (x, w, r, b)
          s = Squeeze (l, one)
          y, h = GRU <hidden_size = 4, linear_before_reset = 1> (s, w2, r2) }""",
    ),
    "pictures": (
        '"": 13',
        """(float[1, 4, H, W] x) => (float[] y, float[] z)
        <float[2] s = {1, 2}, float[2] b = {0, 1}, float[4, 2, 2, 2] w>
        { a = DepthToSpace <blocksize = 2, mode = "CRD"> (x)
          y = SpaceToDepth <blocksize = 2> (a)
          c = ConvTranspose <strides = [2, 2], output_padding = [1, 1]> (x, w)
          d = InstanceNormalization (c, s, b)
          e = LpNormalization <axis = 1, p = 2> (d)
          z = LeakyRelu <alpha = 0.1> (e) }""",
    ),
    "old": (
        '"": 9',
        """(float[2, 4] x, float[4] w) => (float[] y)
        <float[4] w = {1, 2, 3, 4}>
        { a = Mul (x, w)
          b = Slice <axes = [1], starts = [0], ends = [3]> (a)
          c = Unsqueeze <axes = [0, 1]> (b)
          d = Pad <pads = [0, 0, 0, 1, 0, 0, 1, 0], value = 1.5> (c)
          e = Clip <min = -1.0, max = 2.0> (d)
          f = Softmax <axis = 2> (e)
          k = Constant <value = float[4] {1, 1, 2, 2}> ()
          g = Upsample <mode = "nearest"> (f, k)
          y = ReduceMean <axes = [3], keepdims = 0> (g) }""",
    ),
    "functions": (
        '"": 18, "own": 1',
        """(float[2, 3] x) => (float[2, 3] y)
        { a = own.twice <by = 2.0> (x)  b = own.twice <by = 0.5> (a)  c = MeanVarianceNormalization <axes = [0]> (b)
          y = HardSwish (c) }
        <domain: "own", opset_import: ["" : 18]> twice <by> (v) => (r)
        { k = Constant <value_float : float = @by> ()  m = Mul (v, k)  r = Add (m, v) }""",
    ),
    "branches": (
        '"": 18',
        """(float[3] x, bool c) => (float[3] y, float[] z)
        <int64 n = {3}, bool go = {1}>
        { y = If (c) <then_branch = t () => (float[3] p) { p = Relu (x) },
                      else_branch = e () => (float[3] q) { q = Neg (x) }>
          last, z = Loop (n, go, x) <body = l (int64 i, bool on, float[3] carried)
            => (bool next, float[3] more, float[3] scanned)
            { next = Identity (on)  more = Add (carried, x)  scanned = Exp (more) }> }""",
    ),
    "types": (
        '"": 21',
        """(float16[2, 3] h, int32[2, 3] i, uint8[2, 3] u, bfloat16[2, 3] b, double[2, 3] d)
        => (float[2, 3] y, bool[2, 3] z)
        { a = Cast <to = 1> (h)  c = Cast <to = 1> (i)  e = Cast <to = 1> (u)  f = Cast <to = 1> (b)
          g = Cast <to = 1> (d)  y = Sum (a, c, e, f, g)
          k = Equal (i, i)  l = Not (k)  z = Or (k, l) }""",
    ),
}


def build_text(name: str) -> onnx.ModelProto:
    """Return one of the graphs written above; weights without content get some."""
    imports, text = _TEXTS[name]
    model = parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> {name} {text}")
    made = {name for node in model.graph.node for name in node.output}
    rng = np.random.default_rng(7)
    for info in [info for info in model.graph.value_info if info.name not in made]:
        tensor = info.type.tensor_type
        dims = [dim.dim_value for dim in tensor.shape.dim]
        content = rng.standard_normal(dims).astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) / 4
        model.graph.initializer.append(numpy_helper.from_array(content, info.name))
    del model.graph.value_info[:]
    return model


def list_seeds(folder: Path | None = None) -> dict[str, Callable[[], onnx.ModelProto]]:
    """Return the models by name.

    Args:
        folder: More of them, as ``*.onnx`` files.
    """
    seeds: dict[str, Callable[[], onnx.ModelProto]] = {
        f"text/{name}": functools.partial(build_text, name) for name in _TEXTS
    }
    files = [ROOT / "examples" / "models" / "digits.onnx", *ONNX_CASES.glob("*/*/model.onnx")]
    for more in (folder, knobs.models_dir()):
        files += [] if more is None else more.rglob("*.onnx")
    for path in sorted(files):
        if path.stat().st_size <= _LARGEST_BYTES:
            seeds["/".join(path.parts[-3:])] = functools.partial(onnx.load, str(path), load_external_data=False)
    return seeds
