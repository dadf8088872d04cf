"""From an image cell of a row to an image source, without ever leaving the data set's own folder."""

from __future__ import annotations

import base64
import binascii
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from pivot.data.images import FileImage, ImageStore, ReadableImage
from pivot.data.layout import BadRow
from pivot.errors import UserError

MAX_FILE_BYTES = 1 << 28
"""An encoded image of more than 256 MiB is not read, whatever an archive says of it."""
MISSING = "image missing"
_DATA_URI = "data:image/"


class ImageFinder:
    """Knows the folder of a data set and the archives in it.

    Bytes and archive members go to an `ImageStore`; files are read where they are. Paths are relative to the
    folder: no absolute paths (unless the user allows them), no `..`, no symbolic link that leads outside.
    """

    def __init__(self, root: Path, boundary: Path | None = None, absolute_paths: bool = False) -> None:
        self._root = root
        self._boundary = (boundary or root).resolve()
        self._absolute_paths = absolute_paths
        self._store: ImageStore | None = None
        self._archives: list[tuple[zipfile.ZipFile, frozenset[str]]] | None = None

    def find(self, cell: Any) -> ReadableImage:
        """The source behind a cell; `BadRow` says why there is none."""
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if cell is None or cell == "":
            raise BadRow(MISSING)
        if isinstance(cell, bytes):
            return self._stored(cell)
        if not isinstance(cell, str):
            raise BadRow(f"image has the wrong type ({type(cell).__name__} instead of bytes or a path)")
        if cell.startswith(_DATA_URI):
            return self._stored(_decode_uri(cell))
        return self._by_path(cell)

    def _stored(self, data: bytes) -> ReadableImage:
        if len(data) > MAX_FILE_BYTES:
            raise BadRow(f"image is too large ({len(data):,} bytes)")
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
            raise BadRow(f"image path leaves the data set's folder ({path[:80]!r})")
        if pure.is_absolute():
            if not self._absolute_paths:
                raise BadRow(f"image path is absolute, allow it with --absolute-paths ({path[:80]!r})")
            return self._file(Path(path), path)
        # Sets name images from the folder they were made in: ./data/images/a/b.png may lie in images/a/.
        for start in range(len(pure.parts)):
            tail = PurePosixPath(*pure.parts[start:])
            if (self._root / tail).is_file():
                return self._inside(self._root / tail, path)
            for archive, members in self._zips():
                if str(tail) in members:
                    return self._stored(_member(archive, str(tail)))
        raise BadRow(f"image file missing ({path[:80]!r})")

    def _inside(self, file: Path, path: str) -> ReadableImage:
        if not self._absolute_paths and not file.resolve().is_relative_to(self._boundary):
            raise BadRow(f"image path leaves the data set's folder ({path[:80]!r})")
        return self._file(file, path)

    @staticmethod
    def _file(file: Path, path: str) -> ReadableImage:
        if not file.is_file():
            raise BadRow(f"image file missing ({path[:80]!r})")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadRow(f"image is too large ({file.stat().st_size:,} bytes)")
        return FileImage(file)

    def _zips(self) -> list[tuple[zipfile.ZipFile, frozenset[str]]]:
        if self._archives is None:
            self._archives = []
            for file in sorted(self._root.glob("**/*.zip")):
                try:
                    archive = zipfile.ZipFile(file)
                except (zipfile.BadZipFile, OSError) as broken:
                    raise UserError(
                        f"{file} is no readable archive ({broken}): download it again."
                    ) from broken
                self._archives.append((archive, frozenset(archive.namelist())))
        return self._archives


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    declared = archive.getinfo(name).file_size
    if declared > MAX_FILE_BYTES:
        raise BadRow(f"image is too large ({declared:,} bytes)")
    try:
        with archive.open(name) as member:
            return member.read(MAX_FILE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError) as broken:
        raise BadRow(f"image cannot be read from its archive ({broken})") from broken


def _decode_uri(uri: str) -> bytes:
    head, _, body = uri.partition(",")
    try:
        return base64.b64decode(body, validate=True) if head.endswith(";base64") else b""
    except (binascii.Error, ValueError) as broken:
        raise BadRow("image is no valid base64") from broken
