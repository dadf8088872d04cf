"""Images of data sets: where their bytes are, whether they can be used, and one way to decode them.

Everything here treats the bytes as hostile: only plain raster formats are opened, sizes are checked before a
pixel is decoded, and whatever a decoder raises becomes an `ImageError` that says why.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image, ImageOps

from pivot.types import ImageSource

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""Raster formats alone: no format that runs another program (EPS) or nests files."""
MAX_PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs; a quarter of a 20,000 x 20,000 image."""
MAX_ASPECT_RATIO = 200.0
"""The image processors of the Qwen-VL family refuse longer strips."""
_JPEG_TAIL = 64
_ORIENTATION = 0x0112
_PNG_EXIF = (b"eXIf", b"Raw profile type exif")
_DECODING_ERRORS = (
    OSError,  # includes UnidentifiedImageError and truncated files
    SyntaxError,  # Pillow's word for a broken PNG
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)


class ImageError(Exception):
    """An image that cannot be used; the message says why, the caller knows which row it belongs to."""


@runtime_checkable
class ReadableImage(ImageSource, Protocol):
    """An image source that has a file's bytes behind it."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class BytesImage:
    """An encoded image in memory."""

    data: bytes = field(repr=False)

    def read(self) -> bytes:
        return self.data

    def open(self) -> Image.Image:
        return Image.open(io.BytesIO(self.data), formats=FORMATS)


@dataclass(frozen=True)
class FileImage:
    """An image file on disk."""

    path: Path

    def read(self) -> bytes:
        return self.path.read_bytes()

    def open(self) -> Image.Image:
        return Image.open(self.path, formats=FORMATS)


@dataclass(frozen=True)
class StoredImage:
    """A stretch of an `ImageStore`; it pickles as the bytes themselves."""

    store: ImageStore = field(repr=False, compare=False)
    digest: str
    offset: int
    length: int

    def read(self) -> bytes:
        return os.pread(self.store.fileno(), self.length, self.offset)

    def open(self) -> Image.Image:
        return Image.open(io.BytesIO(self.read()), formats=FORMATS)

    def __reduce__(self) -> tuple[type[BytesImage], tuple[bytes]]:
        return BytesImage, (self.read(),)


class ImageStore:
    """The encoded images of one data set, in an unnamed temporary file instead of memory.

    Parquet files and archives cannot be read at random; the file (in TMPDIR) can, and it is gone when the
    process ends. Equal images are kept once.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="pivot-images-", buffering=0)  # noqa: SIM115 - lives with the store
        self._known: dict[str, StoredImage] = {}
        self._end = 0

    def add(self, data: bytes) -> StoredImage:
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        if digest not in self._known:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            self._known[digest] = StoredImage(self, digest, self._end, len(data))
            self._end += len(data)
        return self._known[digest]

    def fileno(self) -> int:
        return self._file.fileno()


def check(source: ReadableImage, max_pixels: int = MAX_PIXELS, full: bool = False) -> tuple[int, int]:
    """Width and height as the model will see them; raises `ImageError` where the image cannot be used.

    The quick check reads the header, and the checksums of a PNG or the end mark of a JPEG, without decoding
    a pixel; other formats, and every image with `full`, are decoded once.
    """
    with _decoding():
        data = source.read()
        if not data:
            raise ImageError("image is empty (0 bytes)")
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            _check_size(image.size, max_pixels)
            kind = image.format
            if kind == "PNG":
                image.verify()
            size = _upright_size(data)
    ends_well = kind == "PNG" or (kind == "JPEG" and b"\xff\xd9" in data[-_JPEG_TAIL:])
    if full or not ends_well:
        open_rgb(source, max_pixels)
    return size


def open_rgb(source: ImageSource, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image as 8-bit RGB: upright by its EXIF, first frame, transparency on white."""
    with _decoding(), source.open() as image:
        _check_size(image.size, max_pixels)
        return _rgb(ImageOps.exif_transpose(image))


@contextmanager
def _decoding() -> Iterator[None]:
    """Whatever a decoder raises becomes an `ImageError` with one line of reason."""
    try:
        yield
    except Image.DecompressionBombError as bomb:
        raise ImageError(f"image is too large ({_first_line(bomb)})") from bomb
    except _DECODING_ERRORS as broken:
        raise ImageError(f"image cannot be decoded ({_first_line(broken)})") from broken


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and not image.has_transparency_data:
        image.load()
        return image.copy()
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bit(image).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        canvas = Image.new("RGB", rgba.size, (255, 255, 255))
        canvas.paste(rgba, mask=rgba.getchannel("A"))
        return canvas
    return image.convert("RGB")


def _eight_bit(image: Image.Image) -> Image.Image:
    """Deeper greys scaled down: Pillow's own conversion clips them, which turns 16-bit images white."""
    values = np.asarray(image).astype(np.float64)
    deep = image.mode.startswith("I;16") or values.max(initial=0.0) > 255.0
    scale = 255.0 / 65535.0 if deep else 1.0
    return Image.fromarray(np.clip(np.nan_to_num(values) * scale, 0, 255).round().astype(np.uint8))


def _upright_size(data: bytes) -> tuple[int, int]:
    """The size after the EXIF rotation: orientations 5 to 8 lie on their side."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        # Asking a PNG for EXIF decodes it, so only those that carry any are asked.
        has_exif = image.format != "PNG" or any(mark in data for mark in _PNG_EXIF)
        lies = has_exif and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    return (height, width) if lies else (width, height)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"image has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise ImageError(
            f"image is too large ({width} x {height} pixels, at most {max_pixels:,} are decoded)"
        )
    if max(size) > MAX_ASPECT_RATIO * min(size):
        raise ImageError(
            f"image is too long ({width} x {height}, sides may differ {MAX_ASPECT_RATIO:.0f} times)"
        )


def _first_line(broken: BaseException) -> str:
    text = str(broken).splitlines()[0] if str(broken) else type(broken).__name__
    return text if "BytesIO" not in text else "not an image in a known format"
