"""ImageDecoder: the pixels of an encoded image, by Pillow."""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuexec.errors import InputError, UnsupportedError
from gpuexec.ir.host_values import require_const
from gpuexec.ir.operator import Array, Operator, Out, Tolerance, operator
from gpuexec.ir.spec import TensorSpec
from gpuexec.ops.lib.checks import check_dtype

_UINT8 = np.dtype(np.uint8)
_CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
_FILES = ("BMP", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
# Exceptions of Pillow's readers for bytes of no known or of a damaged file.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error)


@operator("ImageDecoder")
@dataclass(frozen=True, slots=True)
class ImageDecoder(Operator):
    """The pixels ``[height, width, channels]`` of a BMP, JPEG, JPEG 2000, TIFF, PNG, WebP or PNM file, 8 bits each.

    What can't be decoded gives no pixels, ``[0, 0, channels]``. Transparency is left out; of several images the first
    is taken, as it is stored: a note of how the camera was held changes nothing.
    """

    pixel_format: str = "RGB"
    tolerance = Tolerance.EXACT
    host_reason = "images are decoded by Pillow"
    example = "uint8[64]"
    flops_per_output = None
    keeps_dtype = True

    def __post_init__(self) -> None:
        if self.pixel_format not in _CHANNELS:
            raise InputError(f"pixel_format expects {', '.join(_CHANNELS)}, got {self.pixel_format!r}.")

    def infer(self, encoded: TensorSpec) -> tuple[TensorSpec, ...]:
        """Decode, which tells the size; the bytes must be known for that.

        Raises:
            InputError: They are no list of bytes.
        """
        check_dtype(self.name, encoded, (_UINT8,))
        if encoded.rank != 1:
            raise InputError(f"{self.name} expects the bytes of a file, uint8[count], got {encoded}.")
        return (TensorSpec(self._decode(require_const(encoded, "encoded_stream", 0)).shape, _UINT8),)

    def compute(self, encoded: Array, *, out: Out = None) -> tuple[Array, ...]:
        """Decode."""
        return (self._decode(encoded),)

    def _decode(self, encoded: Array) -> Array:
        """Return the pixels.

        Raises:
            InputError: There are more than Pillow takes to be meant well (``PIL.Image.MAX_IMAGE_PIXELS``, twice).
            UnsupportedError: Pillow is not installed.
        """
        try:
            from PIL import Image
        except ImportError:
            raise UnsupportedError("ImageDecoder needs Pillow: pip install 'gpuexec[images]'.") from None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(io.BytesIO(encoded.tobytes()), formats=_FILES) as image:
                    return self._arrange(Image, image)
        except Image.DecompressionBombError as error:
            raise InputError(f"ImageDecoder: {error}") from None
        except _BROKEN:
            return np.zeros((0, 0, _CHANNELS[self.pixel_format]), _UINT8)

    def _arrange(self, pillow: Any, image: Any) -> Array:
        """Return an image as an array of the wanted channels."""
        # Of 16 bits the upper ones count. Some readers give them as 32; TIFF alone has these.
        if image.mode.startswith("I;16") or (image.mode == "I" and image.format != "TIFF"):
            image = pillow.fromarray((np.asarray(image) >> 8).astype(_UINT8))
        if self.pixel_format == "Grayscale":
            return np.array(image.convert("L"))[:, :, None]
        pixels = np.array(image.convert("RGB"))
        return np.ascontiguousarray(pixels[:, :, ::-1]) if self.pixel_format == "BGR" else pixels
