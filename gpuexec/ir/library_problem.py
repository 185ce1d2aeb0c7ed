"""Problems that libraries solve: products and convolutions, as data without slots.

A problem says all that a library is told but the addresses, so equal problems have equal plans of the library. Its
text is what tune files know it by, and what `explain` prints. Types go by the names of NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

# What follows a product or convolution before its result is stored. GELU is that of tanh: libraries know no other.
NO_ACTIVATION, RELU, GELU_TANH = "", "relu", "gelu_tanh"
# What operands of float are rounded to on their way to tensor cores, if at all.
FLOAT32, TF32_PRODUCTS = "float32", "tf32"


@dataclass(frozen=True, slots=True)
class ProductProblem:
    """Batches of ``y = activation(alpha * a @ b + beta * c + bias)``; strides in elements.

    Attributes:
        dtype: Type of a and b.
        result: Type of c, bias and y; sums are float.
        compute: `FLOAT32` or `TF32_PRODUCTS`, of operands of float.
        extents: Rows, columns and the inner extent of one product.
        a: Strides by row and inner.
        b: Strides by inner and column.
        c_row: Stride of c by row, whose columns are dense; None: there is no c.
        y_row: Stride of y by row, whose columns are dense.
        scale: alpha, beta.
        count: How many products there are.
        walks: Strides of a, b, c and y from product to product.
        has_bias: Whether a number is added to each column.
        activation: What follows.
        alignments: Bytes that a, b, c and y start at a multiple of, each a power of two.
    """

    dtype: str
    result: str
    compute: str
    extents: tuple[int, int, int]
    a: tuple[int, int]
    b: tuple[int, int]
    c_row: int | None
    y_row: int
    scale: tuple[float, float] = (1.0, 1.0)
    count: int = 1
    walks: tuple[int, int, int, int] = (0, 0, 0, 0)
    has_bias: bool = False
    activation: str = NO_ACTIVATION
    alignments: tuple[int, int, int, int] = (16, 16, 16, 16)

    @property
    def is_on_floats(self) -> bool:
        """Whether what is multiplied stays float: no tensor cores."""
        return self.dtype == self.compute == FLOAT32

    @property
    def flops(self) -> int:
        """Operations; a multiply-add is two."""
        rows, columns, inner = self.extents
        return 2 * self.count * rows * columns * inner

    def __str__(self) -> str:
        rows, columns, inner = self.extents
        lies = f"a {_name_lie(*self.a)}, b {_name_lie(*self.b)}, y by {self.y_row}"
        scale = "" if self.scale == (1.0, 1.0) else f", scale {self.scale[0]:g} {self.scale[1]:g}"
        beside = "" if self.c_row is None else f", c by {self.c_row}"
        batch = "" if self.count == 1 else f" x {self.count} by {' '.join(map(str, self.walks))}"
        aligned = "" if self.alignments == (16,) * 4 else f", aligned {' '.join(map(str, self.alignments))}"
        return (
            f"product {rows}x{columns}x{inner}{batch}, {_name_types(self.dtype, self.result, self.compute)}, {lies}"
            f"{beside}{scale}{_name_end(self.has_bias, self.activation)}{aligned}"
        )


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution ``y = activation(w * x + bias)``; strides in elements.

    Attributes:
        dtype: Type of x and w.
        result: Type of bias and y; sums are float.
        compute: `FLOAT32` or `TF32_PRODUCTS`, of operands of float.
        x: Shape ``[batch, channels, ...]`` and strides.
        w: Shape ``[out channels, channels of a group, ...]`` and strides.
        y: Shape ``[batch, out channels, ...]`` and strides.
        strides: Of the windows, for each spatial axis.
        dilations: Of their taps.
        begins: Padding before each spatial axis.
        ends: Padding behind it.
        has_bias: Whether a number is added to each output channel.
        activation: What follows.
    """

    dtype: str
    result: str
    compute: str
    x: tuple[tuple[int, ...], tuple[int, ...]]
    w: tuple[tuple[int, ...], tuple[int, ...]]
    y: tuple[tuple[int, ...], tuple[int, ...]]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    has_bias: bool = False
    activation: str = NO_ACTIVATION

    @property
    def groups(self) -> int:
        """Groups of channels."""
        return self.x[0][1] // max(1, self.w[0][1])

    @property
    def is_on_floats(self) -> bool:
        """Whether what is multiplied stays float: no tensor cores."""
        return self.dtype == self.compute == FLOAT32

    @property
    def flops(self) -> int:
        """Operations; a multiply-add is two."""
        return 2 * _count(self.y[0]) * _count(self.w[0][1:])

    def __str__(self) -> str:
        names = [
            f"{name} {'x'.join(map(str, shape))} by {' '.join(map(str, strides))}"
            for name, (shape, strides) in (("x", self.x), ("w", self.w), ("y", self.y))
        ]
        windows = (("strides", self.strides), ("dilations", self.dilations), ("pads", (*self.begins, *self.ends)))
        rest = ", ".join(f"{name} {' '.join(map(str, numbers))}" for name, numbers in windows)
        types = _name_types(self.dtype, self.result, self.compute)
        return f"convolution {', '.join(names)}, {types}, {rest}{_name_end(self.has_bias, self.activation)}"


Problem = ProductProblem | ConvProblem


def _name_types(dtype: str, result: str, compute: str) -> str:
    stored = dtype if dtype == result else f"{dtype} to {result}"
    return stored if compute == FLOAT32 else f"{stored} as {compute}"


def _name_lie(outer: int, inner: int) -> str:
    return f"by {outer} {inner}"


def _name_end(has_bias: bool, activation: str) -> str:
    return (", bias" if has_bias else "") + (f", {activation}" if activation else "")


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
