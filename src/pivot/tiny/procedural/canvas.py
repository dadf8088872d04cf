"""A small white canvas with a bitmap font and the shapes that the tasks need."""

from __future__ import annotations

from functools import lru_cache

from PIL import Image, ImageDraw

SIZE = 84
"""Pixels per side: 6 x 6 patches of 14, hence 3 x 3 image tokens."""

Colour = tuple[int, int, int]
Point = tuple[int, int]

BLACK: Colour = (20, 20, 20)
GREY: Colour = (150, 150, 150)
PALE: Colour = (220, 220, 220)
RED: Colour = (215, 45, 40)
BLUE: Colour = (45, 85, 215)
GREEN: Colour = (30, 150, 65)
GOLD: Colour = (225, 170, 20)
PURPLE: Colour = (130, 50, 160)
TEAL: Colour = (15, 130, 140)
NAVY: Colour = (25, 35, 120)
BROWN: Colour = (110, 55, 15)
PINE: Colour = (10, 85, 50)

GLYPH_WIDTH, GLYPH_HEIGHT = 5, 7
_GLYPHS = {
    "0": ".###. #...# #..## #.#.# ##..# #...# .###.",
    "1": "..#.. .##.. #.#.. ..#.. ..#.. ..#.. #####",
    "2": ".###. #...# ....# ..##. .#... #.... #####",
    "3": "####. ....# ....# .###. ....# ....# ####.",
    "4": "#..#. #..#. #..#. ##### ...#. ...#. ...#.",
    "5": "##### #.... ####. ....# ....# #...# .###.",
    "6": ".###. #.... #.... ####. #...# #...# .###.",
    "7": "##### ....# ...#. ..#.. ..#.. .#... .#...",
    "8": ".###. #...# #...# .###. #...# #...# .###.",
    "9": ".###. #...# #...# .#### ....# ....# .###.",
    "A": ".###. #...# #...# ##### #...# #...# #...#",
    "B": "####. #...# #...# ####. #...# #...# ####.",
    "C": ".#### #.... #.... #.... #.... #.... .####",
    "D": "####. #...# #...# #...# #...# #...# ####.",
    "x": "..... ..... #...# .#.#. ..#.. .#.#. #...#",
}


@lru_cache(maxsize=128)
def _mask(text: str, scale: int) -> Image.Image:
    mask = Image.new("1", (_width(text, 1), GLYPH_HEIGHT))
    for place, letter in enumerate(text):
        for row, line in enumerate(_GLYPHS[letter].split()):
            for column, mark in enumerate(line):
                if mark == "#":
                    mask.putpixel((place * (GLYPH_WIDTH + 1) + column, row), 1)
    return mask.resize((mask.width * scale, mask.height * scale), Image.Resampling.NEAREST)


def _width(text: str, scale: int) -> int:
    return (len(text) * (GLYPH_WIDTH + 1) - 1) * scale


class Canvas:
    """An RGB picture under construction; positions are (x, y) from the top left."""

    def __init__(self) -> None:
        self.image = Image.new("RGB", (SIZE, SIZE), "white")
        self._pen = ImageDraw.Draw(self.image)

    def number(self, text: str, centre: Point, ink: Colour = BLACK) -> None:
        """A number to be read by the model: 10 x 14 pixels per digit."""
        self._text(text, centre, 2, ink)

    def name(self, text: str, centre: Point, ink: Colour = BLACK) -> None:
        """A small label, 5 x 7 pixels per letter, for human readers."""
        self._text(text, centre, 1, ink)

    def _text(self, text: str, centre: Point, scale: int, ink: Colour) -> None:
        corner = (centre[0] - _width(text, scale) // 2, centre[1] - GLYPH_HEIGHT * scale // 2)
        self._pen.bitmap(corner, _mask(text, scale), fill=ink)

    def line(self, start: Point, end: Point, ink: Colour = BLACK, width: int = 1) -> None:
        self._pen.line([start, end], fill=ink, width=width)

    def box(self, corner: Point, opposite: Point, ink: Colour) -> None:
        self._pen.rectangle([corner, opposite], fill=ink)

    def frame(self, corner: Point, opposite: Point, ink: Colour) -> None:
        self._pen.rectangle([corner, opposite], outline=ink)

    def disc(self, centre: Point, radius: int, ink: Colour, *, filled: bool = True) -> None:
        (x, y), r = centre, radius
        around = [x - r, y - r, x + r, y + r]
        if filled:
            self._pen.ellipse(around, fill=ink)
        else:
            self._pen.ellipse(around, outline=ink, width=2)

    def polygon(self, corners: list[Point], ink: Colour, *, filled: bool = True) -> None:
        if filled:
            self._pen.polygon(corners, fill=ink)
        else:
            for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
                self.line(start, end, ink, width=2)
