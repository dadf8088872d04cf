"""Images of data sets: where their bytes are, whether they are usable, and one way to decode them.

Image bytes are untrusted: only plain raster formats are opened, sizes are checked before any pixel is decoded, and
whatever a decoder raises becomes an `ImageError` with a reason.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import os
import re
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image, ImageOps

from pivot.data import web
from pivot.errors import UserError
from pivot.types import ImageSource

FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")
"""Raster formats only: none that runs another program (EPS) or nests files."""
MAX_PIXELS = 89_478_485
"""Pillow's limit against decompression bombs; a quarter of a 20,000 x 20,000 image."""
MAX_ASPECT_RATIO = 200.0
"""The image processors of the Qwen-VL family refuse larger ratios."""
_JPEG_TAIL = 64
_ORIENTATION = 0x0112
_PNG_EXIF = (b"eXIf", b"Raw profile type exif")
_DECODING_ERRORS = (
    OSError,  # includes UnidentifiedImageError and truncated files
    SyntaxError,  # Pillow raises this for a broken PNG
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
    """An image that cannot be used; the message is the reason."""


@runtime_checkable
class ReadableImage(ImageSource, Protocol):
    """An image source with encoded bytes."""

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
    """A byte range of an `ImageStore`; it pickles as the bytes themselves."""

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
    """The encoded images of one data set, in an unnamed temporary file (in TMPDIR) instead of memory.

    Unlike parquet files and archives it allows random access. It disappears when the process ends, and equal images
    are stored once.
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
    """Width and height as the model sees them; raises `ImageError` if the image cannot be used.

    The quick check reads the header and a PNG's checksums or a JPEG's end marker without decoding a pixel. Other
    formats, and every image with `full`, are decoded once.
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
    """The image as 8-bit RGB: rotated by its EXIF orientation, first frame, transparency on white."""
    with _decoding(), source.open() as image:
        _check_size(image.size, max_pixels)
        return _rgb(ImageOps.exif_transpose(image))


@contextmanager
def _decoding() -> Iterator[None]:
    """Turn whatever a decoder raises into an `ImageError` with one line of reason."""
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
    """Scale 16-bit greys down; Pillow's own conversion clips them, which turns such images white."""
    values = np.asarray(image).astype(np.float64)
    deep = image.mode.startswith("I;16") or values.max(initial=0.0) > 255.0
    scale = 255.0 / 65535.0 if deep else 1.0
    return Image.fromarray(np.clip(np.nan_to_num(values) * scale, 0, 255).round().astype(np.uint8))


def _upright_size(data: bytes) -> tuple[int, int]:
    """The size after EXIF rotation; orientations 5 to 8 swap width and height."""
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        width, height = image.size
        # Reading EXIF decodes a PNG, so only do it for those that contain any.
        has_exif = image.format != "PNG" or any(mark in data for mark in _PNG_EXIF)
        is_rotated = has_exif and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
    return (height, width) if is_rotated else (width, height)


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


MAX_FILE_BYTES = 1 << 28
"""An encoded image of more than 256 MiB is not read, whatever size an archive declares."""
MISSING = "image missing"
_DATA_URI = "data:image/"
_BASE64 = re.compile(r"[A-Za-z0-9+/\s]{32,}={0,2}\s*")
_CELL_KEYS = ("bytes", "path", "image", "url", "image_url", "base64")
"""Where a cell that is an object holds its image: parquet's structs, and the parts of chat messages."""
_ENCODED = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*", b"P6")
"""How the bytes of an image in one of the known formats begin."""


def content_of(cell: Any) -> Any:
    """What a cell holds: bytes, a text (path, URL or base64), an opened image, or None."""
    while isinstance(cell, dict):
        cell = next((cell[key] for key in _CELL_KEYS if cell.get(key)), None)
    if isinstance(cell, Image.Image):
        buffer = io.BytesIO()
        (cell if cell.mode in ("RGB", "RGBA", "L", "P", "1") else cell.convert("RGB")).save(buffer, "PNG")
        return buffer.getvalue()
    return None if cell == "" else cell


class ImageFinder:
    """Turns the image cells of rows into image sources, without leaving the data set's folder.

    Bytes, base64, downloads and archive members go to an `ImageStore`; files are read in place. Paths are relative to
    the folder: no absolute paths (unless the user allows them), no `..`, no symbolic link that leads outside.
    """

    def __init__(
        self,
        root: Path,
        boundary: Path | None = None,
        allow_absolute_paths: bool = False,
        allow_urls: bool = False,
    ) -> None:
        self._root = root
        self._boundary = (boundary or root).resolve()
        self._absolute_paths = allow_absolute_paths
        self._urls = allow_urls
        self._store: ImageStore | None = None
        self._archives: list[tuple[zipfile.ZipFile, frozenset[str]]] | None = None

    def find(self, cell: Any) -> ReadableImage:
        """The image source of a cell; raises `ImageError` with the reason if there is none."""
        cell = content_of(cell)
        if cell is None:
            raise ImageError(MISSING)
        if isinstance(cell, bytes):
            return self._stored(cell)
        if not isinstance(cell, str):
            raise ImageError(f"image has the wrong type ({type(cell).__name__} instead of bytes or a path)")
        if cell.startswith(_DATA_URI):
            return self._stored(_decode_uri(cell))
        if cell.startswith(("http://", "https://")):
            return self._stored(self._download(cell))
        encoded = _plain_base64(cell)
        if encoded is not None:
            return self._stored(encoded)
        return self._by_path(cell.removeprefix("file://"))

    def _download(self, url: str) -> bytes:
        if not self._urls:
            raise ImageError(
                f"image is a URL, allow downloads with --set data.allow_urls=true ({url[:80]!r})"
            )
        try:
            return web.download(url)
        except web.DownloadError as refused:
            raise ImageError(f"image cannot be downloaded ({url[:80]!r}: {refused})") from refused

    def _stored(self, data: bytes) -> ReadableImage:
        if len(data) > MAX_FILE_BYTES:
            raise ImageError(f"image is too large ({len(data):,} bytes)")
        self._store = self._store or ImageStore()
        try:
            return self._store.add(data)
        except OSError as full:
            raise UserError(
                f"the images do not fit into the temporary folder ({full}): set TMPDIR to a larger disk."
            ) from full

    def _by_path(self, path: str) -> ReadableImage:
        pure = PurePosixPath(path.replace("\\", "/"))
        if "\0" in path or ".." in pure.parts:
            raise ImageError(f"image path leaves the data set's folder ({path[:80]!r})")
        if pure.is_absolute():
            if not self._absolute_paths:
                raise ImageError(
                    f"image path is absolute, allow it with --set data.allow_absolute_paths=true ({path[:80]!r})"
                )
            return self._file(Path(path), path)
        # Paths are relative to the folder a set was made in: ./data/images/a/b.png may be in images/a/.
        for start in range(len(pure.parts)):
            tail = PurePosixPath(*pure.parts[start:])
            if _is_file(self._root / tail):
                return self._inside(self._root / tail, path)
            for archive, members in self._zips():
                if str(tail) in members:
                    return self._stored(_member(archive, str(tail)))
        raise ImageError(f"image file missing ({path[:80]!r})")

    def _inside(self, file: Path, path: str) -> ReadableImage:
        if not self._absolute_paths and not file.resolve().is_relative_to(self._boundary):
            raise ImageError(f"image path leaves the data set's folder ({path[:80]!r})")
        return self._file(file, path)

    @staticmethod
    def _file(file: Path, path: str) -> ReadableImage:
        if not _is_file(file):
            raise ImageError(f"image file missing ({path[:80]!r})")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ImageError(f"image is too large ({file.stat().st_size:,} bytes)")
        return FileImage(file)

    def _zips(self) -> list[tuple[zipfile.ZipFile, frozenset[str]]]:
        if self._archives is None:
            self._archives = []
            for file in sorted(self._root.glob("**/*.zip")):
                try:
                    archive = zipfile.ZipFile(file)
                except (zipfile.BadZipFile, OSError) as broken:
                    raise UserError(
                        f"{file} is not a readable archive ({broken}): download it again."
                    ) from broken
                self._archives.append((archive, frozenset(archive.namelist())))
        return self._archives


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # A name that is too long, or a folder that may not be read.
        return False


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    declared = archive.getinfo(name).file_size
    if declared > MAX_FILE_BYTES:
        raise ImageError(f"image is too large ({declared:,} bytes)")
    try:
        with archive.open(name) as member:
            return member.read(MAX_FILE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError) as broken:
        raise ImageError(f"image cannot be read from its archive ({broken})") from broken


def _decode_uri(uri: str) -> bytes:
    head, _, body = uri.partition(",")
    try:
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else b""
    except (binascii.Error, ValueError) as broken:
        raise ImageError("image is not valid base64") from broken


def _plain_base64(text: str) -> bytes | None:
    """The bytes of an image that is written as base64 without a data URI; None for any other text."""
    if not _BASE64.fullmatch(text):
        return None
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if data.startswith(_ENCODED) else None
