"""Image transforms: resizing, channel order, layout, scaling, in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError
from gpuexec.importer.load import ImportedModel
from gpuexec.ir.graphs import Graph, Node, Value
from gpuexec.ir.spec import DeclaredSpec, Dim, TensorSpec, dtype_row
from gpuexec.model.model import Model
from gpuexec.ops.vision.image import LAYOUTS, NUMBERS, ORIGINS, PIXELS, ImageToTensor, TensorToImage

# Letters of channels by their number, where none are given.
_USUAL = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_OPSET = 24


@dataclass(frozen=True, slots=True)
class ImageTransform:
    """Mapping between image and tensor, used in both directions; each undoes the other but for rounding.

    tensor = (pixel * scale - mean) / std, channel by channel. The image is ``[h, w]``, ``[h, w, c]`` or ``[n, h, w,
    c]`` of uint8, uint16 or float32, the tensor has four axes.

    Attributes:
        size: Height and width of the result, in either direction, sampled linearly at pixel centres as the operator
            Resize does; None: as they are.
        layout: Of the tensor, ``"NCHW"`` or ``"NHWC"``.
        pixels: Letters of the image's channels in their order, such as ``"BGR"``; None: L, LA, RGB or RGBA by number.
        swizzle: Letters of the tensor's channels, each one of the image's; None: all, in the image's order. L stands
            for any of R, G and B, so that ``"RGB"`` of a grey image repeats it. A that is not there is opaque.
        scale: Factor of pixels; None: the one that takes the largest pixel to 1.
        mean: One number, or one for each channel of the tensor; so is ``std``.
        mask: Channels that are not taken over but hold this value, by letter, in units of the result.
        origin: Where the tensor's first row is in the image, ``"top_left"`` or ``"bottom_left"``.
        antialias: Shrink with a filter as wide as the pixels of the result.
        dtype: Of the tensor, float32 or float16.
        pixel_dtype: Of images made of tensors.

    Raises:
        InputError: One of them is something else; says which, expected and got.

    Example:
        >>> transform = gx.ImageTransform(size=(8, 8), pixels="BGR", swizzle="G", scale=1 / 15, origin="bottom_left")
        >>> gx.to_tensor(np.zeros((480, 640, 3), np.uint8), transform).shape
        (1, 1, 8, 8)
    """

    size: tuple[int, int] | None = None
    layout: str = "NCHW"
    pixels: str | None = None
    swizzle: str | None = None
    scale: float | None = None
    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    mask: Mapping[str, float] | tuple[tuple[str, float], ...] = ()
    origin: str = "top_left"
    antialias: bool = False
    dtype: Any = "float32"
    pixel_dtype: Any = "uint8"

    def __post_init__(self) -> None:
        for name, known in (("layout", LAYOUTS), ("origin", ORIGINS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"ImageTransform expects {name} among {', '.join(known)}, got {getattr(self, name)!r}."
                )
        for name, dtypes in (("dtype", NUMBERS), ("pixel_dtype", PIXELS)):
            object.__setattr__(self, name, _take_dtype(name, getattr(self, name), dtypes))
        for name in ("pixels", "swizzle"):
            letters = getattr(self, name)
            if letters is not None and (not isinstance(letters, str) or not letters):
                raise InputError(f"ImageTransform expects {name} as letters, such as 'RGB', got {letters!r}.")
        if self.pixels is not None and len(set(self.pixels)) < len(self.pixels):
            raise InputError(f"ImageTransform expects pixels that name each channel once, got {self.pixels!r}.")
        if self.size is not None:
            object.__setattr__(self, "size", _take_size(self.size))
        for name in ("mean", "std"):
            object.__setattr__(self, name, _take_numbers(name, getattr(self, name)))
        if 0.0 in _numbers(self.std):
            raise InputError(f"ImageTransform divides by std, got {self.std!r}.")
        if self.scale is not None:
            object.__setattr__(self, "scale", _take_number("scale", self.scale))
            if self.scale == 0.0:
                raise InputError("ImageTransform expects a scale other than 0.")
        if self.antialias not in (False, True):
            raise InputError(f"ImageTransform expects antialias as True or False, got {self.antialias!r}.")
        object.__setattr__(self, "mask", _take_mask(self.mask))

    def _to_tensor_operator(self, image: TensorSpec) -> ImageToTensor:
        """Return the operator that makes the tensor of an image.

        Raises:
            InputError: The image does not fit; says expected and got.
        """
        if image.dtype not in PIXELS or not 2 <= image.rank <= 4:
            names = ", ".join(dtype_row(dtype).name for dtype in PIXELS)
            raise InputError(f"An image is [h, w], [h, w, c] or [n, h, w, c] of {names}, got {image}.")
        count = 1 if image.rank == 2 else image.shape[-1]
        given = _name_channels("pixels", self.pixels, count)
        wanted = self.swizzle or given
        mean, std = self._per_channel(len(wanted))
        scale = self._scale(image.dtype)
        masked, channels, fill = dict(self.mask), [], []
        _check_masked(masked, wanted)
        for index, letter in enumerate(wanted):
            source = -1 if letter in masked else _find_channel(letter, given, "image", "swizzle")
            opaque = (_largest(image.dtype) * scale - mean[index]) / std[index]
            channels.append(source)
            fill.append(masked.get(letter, opaque if source < 0 else 0.0))
        return ImageToTensor(
            self.size or (),
            tuple(channels),
            tuple(scale / each for each in std),
            tuple(-middle / each for middle, each in zip(mean, std, strict=True)),
            tuple(fill),
            self.layout,
            self.origin,
            int(self.antialias),
            dtype_row(self.dtype).code,
        )

    def _to_image_operator(self, tensor: TensorSpec) -> TensorToImage:
        """Return the operator that makes the image, or the images, of a tensor.

        Raises:
            InputError: The tensor does not fit; says expected and got.
        """
        if tensor.dtype not in NUMBERS or not 3 <= tensor.rank <= 4:
            names = ", ".join(dtype_row(dtype).name for dtype in NUMBERS)
            raise InputError(f"A tensor to make an image of has three or four axes of {names}, got {tensor}.")
        count = tensor.shape[-3 if self.layout == "NCHW" else -1]
        given = _name_channels("swizzle", self.swizzle or (self.pixels if self._has_all(count) else None), count)
        usual = _USUAL.get(count, given)
        wanted = self.pixels or (usual if set(usual) == set(given) else given)
        mean, std = self._per_channel(count)
        scale = self._scale(self.pixel_dtype)
        masked, rows = dict(self.mask), []
        _check_masked(masked, wanted)
        for letter in wanted:
            source = -1 if letter in masked else _find_channel(letter, given, "tensor", "pixels")
            own = max(source, 0)
            fill = masked.get(letter, _largest(self.pixel_dtype))
            rows.append((source, std[own] / scale, mean[own] / scale, fill))
        channels, factors, biases, fills = zip(*rows, strict=True)
        size, code = self.size or (), dtype_row(self.pixel_dtype).code
        flags = (self.layout, self.origin, int(self.antialias), code)
        return TensorToImage(size, channels, factors, biases, fills, *flags)

    def as_model(self, dims: Sequence[Dim] | None = None, dtype: Any = None, *, inverse: bool = False) -> Model:
        """Return a model of this step alone: ``image`` to ``tensor`` or, ``inverse``, ``tensor`` to ``image``.

        Args:
            dims: Declared dims of the input; the number of channels must be known. None: ``("height", "width", 3)``,
                or a tensor of three channels.
            dtype: Element type of the input; None: uint8, or the transform's own.
            inverse: Make images of tensors.

        Raises:
            InputError: The input does not fit the transform.
        """
        if dims is None:
            planes: tuple[Dim, ...] = ("batch", 3, "height", "width")
            rows: tuple[Dim, ...] = ("batch", "height", "width", 3)
            dims = (planes if self.layout == "NCHW" else rows) if inverse else ("height", "width", 3)
        given = self.dtype if inverse else self.pixel_dtype
        declared = DeclaredSpec(given if dtype is None else dtype_row(dtype).numpy, tuple(dims))
        # Only the channels of the shape are needed; other extents may be free.
        tried = TensorSpec(tuple(dim if isinstance(dim, int) else 1 for dim in dims), declared.dtype)
        at = (-3 if self.layout == "NCHW" else -1) if inverse else -1
        if (inverse or tried.rank > 2) and not isinstance(dims[at], int):
            raise InputError(f"as_model expects the number of channels among its dims, got {list(dims)}.")
        op = self._to_image_operator(tried) if inverse else self._to_tensor_operator(tried)
        (made,) = op.infer(tried)
        names = ("tensor", "image") if inverse else ("image", "tensor")
        source = Value(names[0], declared)
        target = Value(names[1], DeclaredSpec(made.dtype, self._declare(dims, made.shape, inverse=inverse)))
        graph = Graph((source,), (target,), (Node(op, (source,), (target,), "image"),), {}, f"{names[0]}_to_{names[1]}")
        return make_step(graph)

    def _declare(self, dims: Sequence[Dim], made: Sequence[int], *, inverse: bool) -> tuple[Dim, ...]:
        """Return the result's declared extents; free ones keep their names."""
        if inverse:
            height, width = dims[-2:] if self.layout == "NCHW" else dims[-3:-1]
        else:
            height, width = dims[:2] if len(dims) < 4 else dims[1:3]
        height, width = self.size or (height, width)
        at = 1 if inverse or self.layout == "NHWC" else 2
        alone: tuple[Dim, ...] = (dims[0],) if len(dims) == 4 else () if inverse else (1,)
        rest: list[Dim] = [height, width]
        rest.insert(2 if at == 1 else 0, made[-1] if at == 1 else made[1])
        return (*alone, *rest)

    def _has_all(self, count: int) -> bool:
        """Return whether the letters of the image are as many as there are channels."""
        return self.pixels is not None and len(self.pixels) == count

    def _per_channel(self, count: int) -> tuple[list[float], list[float]]:
        both = []
        for name, numbers in (("mean", _numbers(self.mean)), ("std", _numbers(self.std))):
            if len(numbers) not in (1, count):
                raise InputError(
                    f"ImageTransform has {len(numbers)} numbers as {name}, for a tensor of {count} channels."
                )
            both.append(list(numbers) * (1 if len(numbers) == count else count))
        return both[0], both[1]

    def _scale(self, dtype: np.dtype[Any]) -> float:
        return 1.0 / _largest(dtype) if self.scale is None else self.scale


def make_step(graph: Graph) -> Model:
    """Return a graph of operators of our own as a model."""
    operators = {node.operator.name: 1 for node in graph.nodes}
    return Model(ImportedModel(graph, graph.name, 10, {"": _OPSET}, "gpuexec", "", {}, operators), graph, {})


def _largest(dtype: np.dtype[Any]) -> float:
    """Return the value of full intensity."""
    return float(np.iinfo(dtype).max) if dtype.kind == "u" else 1.0


def _name_channels(role: str, letters: str | None, count: int) -> str:
    """Return a letter for each channel.

    Raises:
        InputError: There are more or fewer letters than channels.
    """
    named = letters or _USUAL.get(count, "".join(map(chr, range(0x100, 0x100 + count))))
    if len(named) != count:
        raise InputError(f"ImageTransform has {role}={letters!r}, for {count} channels.")
    return named


def _find_channel(letter: str, given: str, what: str, role: str) -> int:
    """Return the channel that a letter stands for; -1: full opacity.

    Raises:
        InputError: There is none.
    """
    if letter in given:
        return given.index(letter)
    if letter in "RGB" and "L" in given:
        return given.index("L")
    if letter == "A":
        return -1
    raise InputError(f"ImageTransform asks for channel {letter!r} in {role}, the {what} has {given!r}.")


def _check_masked(masked: Mapping[str, float], wanted: str) -> None:
    strange = [letter for letter in masked if letter not in wanted]
    if strange:
        raise InputError(f"ImageTransform masks channel {strange[0]!r}, the result has {wanted!r}.")


def _numbers(given: float | Sequence[float]) -> tuple[float, ...]:
    """Return a field as `_take_numbers` read it."""
    assert isinstance(given, tuple)
    return given


def _take_dtype(name: str, given: Any, known: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a supported element type.

    Raises:
        InputError: It is another, or none.
    """
    dtype = dtype_row(given).numpy
    if dtype not in known:
        names = ", ".join(dtype_row(each).name for each in known)
        raise InputError(f"ImageTransform expects {name} among {names}, got {dtype.name}.")
    return dtype


def _take_size(given: Sequence[int]) -> tuple[int, int]:
    """Return height and width.

    Raises:
        InputError: They are no two whole numbers, 1 or more.
    """
    size = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(size) != 2 or not all(_is_count(each) for each in size):
        raise InputError(f"ImageTransform expects size as (height, width), 1 or more, got {given!r}.")
    return int(size[0]), int(size[1])


def _take_number(name: str, given: Any) -> float:
    """Return one number.

    Raises:
        InputError: It is none, or more, or not finite.
    """
    numbers = _read_numbers(given)
    if len(numbers) != 1:
        raise InputError(f"ImageTransform expects {name} as one finite number, got {given!r}.")
    return numbers[0]


def _take_numbers(name: str, given: Any) -> tuple[float, ...]:
    """Return numbers.

    Raises:
        InputError: There are none, or they are not finite.
    """
    numbers = _read_numbers(given)
    if not numbers:
        raise InputError(f"ImageTransform expects {name} as one finite number, or one per channel, got {given!r}.")
    return numbers


def _take_mask(given: Any) -> tuple[tuple[str, float], ...]:
    """Return pairs of a letter and a value, of a mapping or of pairs.

    Raises:
        InputError: It is neither, or they are something else.
    """
    try:
        values = dict(given)
    except (TypeError, ValueError):
        raise InputError(
            f"ImageTransform expects mask as values by letter, such as {{'A': 1.0}}, got {given!r}."
        ) from None
    strange = [letter for letter in values if not isinstance(letter, str) or len(letter) != 1]
    if strange:
        raise InputError(f"ImageTransform expects mask as values by letter, got {strange[0]!r} for one.")
    return tuple((letter, _take_number(f"mask[{letter!r}]", value)) for letter, value in values.items())


def _is_count(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and bool(number >= 1)


def _read_numbers(given: Any) -> tuple[float, ...]:
    """Return finite numbers; nothing where they are something else."""
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        return ()
    if numbers.ndim > 1 or not np.isfinite(numbers).all():
        return ()
    return tuple(numbers.reshape(-1).tolist())
