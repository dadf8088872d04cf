"""Every image mode and format becomes RGB; hostile bytes become an ImageError."""

import contextlib
import pickle
import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pivot.data.images import BytesImage, FileImage, ImageError, ImageStore, check, open_rgb


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def picture(mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> Image.Image:
    """Left half dark, right half light."""
    image = Image.new("RGB", size, (20, 40, 60))
    image.paste((200, 220, 240), (size[0] // 2, 0, *size))
    return image.quantize(8) if mode == "P" else image.convert(mode)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("RGB", "PNG"), ("RGB", "JPEG"), ("CMYK", "JPEG"), ("L", "PNG"), ("P", "GIF"), ("P", "PNG"),
     ("RGB", "WEBP"), ("RGBA", "PNG"), ("LA", "PNG"), ("RGB", "BMP"), ("RGB", "TIFF"), ("YCbCr", "JPEG")],
)  # fmt: skip
def test_every_mode_and_format_becomes_rgb(mode: str, kind: str) -> None:
    source = BytesImage(encode(picture(mode), kind))
    assert check(source, full=True) == (40, 30)
    image = open_rgb(source)
    assert image.mode == "RGB"
    assert image.size == (40, 30)
    dark, light = image.getpixel((5, 15)), image.getpixel((35, 15))
    assert np.allclose(np.mean(dark), 40, atol=8)
    assert np.allclose(np.mean(light), 220, atol=8)


def test_one_bit_image_is_black_and_white() -> None:
    image = open_rgb(BytesImage(encode(picture("L").point(lambda v: 255 * (v > 128)).convert("1"))))
    assert image.getpixel((5, 15)) == (0, 0, 0)
    assert image.getpixel((35, 15)) == (255, 255, 255)


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    deep = Image.fromarray(np.full((8, 8), 32896, dtype=np.uint16))
    assert open_rgb(BytesImage(encode(deep))).getpixel((3, 3)) == (128, 128, 128)


def test_transparency_lies_on_white() -> None:
    clear = Image.new("RGBA", (10, 10), (255, 0, 0, 0))
    assert open_rgb(BytesImage(encode(clear))).getpixel((5, 5)) == (255, 255, 255)
    palette = Image.new("P", (10, 10), 0)
    palette.putpalette([10, 20, 30] * 256)
    assert open_rgb(BytesImage(encode(palette, transparency=0))).getpixel((5, 5)) == (255, 255, 255)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_rotation_is_applied_and_counted_in_the_size(kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    source = BytesImage(encode(picture(), kind, exif=exif))
    assert check(source) == (30, 40)
    upright = open_rgb(source)
    assert upright.size == (30, 40)
    assert np.mean(upright.getpixel((15, 2))) < 60 < np.mean(upright.getpixel((15, 38)))


def test_animation_gives_its_first_frame() -> None:
    first, second = Image.new("RGB", (10, 10), (250, 0, 0)), Image.new("RGB", (10, 10), (0, 250, 0))
    for kind in ("GIF", "WEBP"):
        data = encode(first, kind, save_all=True, append_images=[second])
        red, green, _ = open_rgb(BytesImage(data)).getpixel((5, 5))
        assert red > 200 > 50 > green, kind


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size but has almost no data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"no image at all", "cannot be decoded"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "cannot be decoded"),
        (encode(picture())[:-40], "cannot be decoded"),
        (encode(picture())[:20], "cannot be decoded"),
        (encode(picture("RGB", (400, 300)), "JPEG")[:-200], "cannot be decoded"),
        (encode(picture(), "WEBP")[:-30], "cannot be decoded"),
        (png_header(20_000, 20_000), "too large"),
        (png_header(65_000, 65_000), "too large"),
        (png_header(20_000, 50), "too long"),
        (encode(picture())[:60] + b"\0\0" + encode(picture())[62:], "cannot be decoded"),
    ],
    ids=["empty", "text", "postscript", "cut", "header", "jpeg", "webp", "huge", "bomb", "strip", "flipped"],
)  # fmt: skip
def test_bad_images_are_named_by_the_quick_check(data: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        check(BytesImage(data))


def test_what_only_decoding_shows_is_an_image_error_too() -> None:
    source = BytesImage(png_header(40, 30))
    assert check(source) == (40, 30)
    for decode in (lambda: open_rgb(source), lambda: check(source, full=True)):
        with pytest.raises(ImageError, match="cannot be decoded"):
            decode()


def test_a_jpeg_with_bytes_after_its_end_is_fine() -> None:
    assert check(BytesImage(encode(picture(), "JPEG") + b"\0" * 500)) == (40, 30)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_flipped_bytes_decode_or_raise_image_error(which: int, flips: list[tuple[int, int]]) -> None:
    kinds = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")
    data = bytearray(encode(picture(), kinds[which]))
    for position, value in flips:
        data[position % len(data)] = value
    source = BytesImage(bytes(data))
    for decode in (lambda: check(source), lambda: open_rgb(source)):
        with contextlib.suppress(ImageError):
            decode()


def test_store_keeps_equal_images_once_and_pickles_as_bytes(tmp_path: Path) -> None:
    one, two = encode(picture()), encode(picture("L"))
    store = ImageStore()
    stored = [store.add(data) for data in (one, two, one)]
    assert [source.read() for source in stored] == [one, two, one]
    assert stored[0] is stored[2]
    assert store._end == len(one) + len(two)
    assert pickle.loads(pickle.dumps(stored[1])) == BytesImage(two)
    (tmp_path / "a.png").write_bytes(one)
    assert FileImage(tmp_path / "a.png").read() == one
