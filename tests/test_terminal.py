"""Text that is safe to print to a terminal."""

import io
import json

from rich.table import Table

from pivot.console import Console
from pivot.seeding import stable_seed
from pivot.terminal import SafeStream, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("\x1b[31mred\x07\r\x9b2J") == "\\u001b[31mred\\u0007\\u000d\\u009b2J"
    assert printable("a\u202eb\ud800") == "a\\u202eb\\ud800"


def test_ordinary_text_is_unchanged() -> None:
    for text in ("5 cm\n\tx", "مثلث", "面积\u3000是", "é √2 👩\u200d🔬", "\u00a0"):
        assert printable(text) == text


def test_json_keeps_its_value() -> None:
    value = {"id": "\x1b\x9b\u202e\ud800 é"}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_a_seed_of_any_text_exists() -> None:
    assert stable_seed("\ud800", 3) != stable_seed("\ud801", 3)
    assert stable_seed("a", 1) == 4665976284724862560, "seeds never change"


def test_a_safe_stream_shows_escapes_and_lets_progress_bars_return() -> None:
    raw = io.StringIO()
    stream = SafeStream(raw)
    print("a\x1b[2Jb", "c\rd", file=stream)
    stream.write("\r50%\x07")
    assert raw.getvalue() == "a\\u001b[2Jb c\\u000dd\n\r50%\\u0007"


def test_a_console_keeps_its_own_colours_and_no_others() -> None:
    """Text, markup, table cells and titles, on a terminal."""
    for hostile in ("\x1b[8mhidden", "[red]x[/red]", ":smile:", "[link=file:///x]y[/link]"):
        stream = Terminal()
        console = Console(file=stream)
        table = Table("a wide heading " + hostile, title=hostile)
        table.add_row(hostile)
        console.print(hostile, style="bold", soft_wrap=True)
        console.print(table)
        text = stream.getvalue()
        assert "\x1b[1m" in text, "its own style"
        for own in ("\x1b[1m", "\x1b[3m", "\x1b[0m"):
            text = text.replace(own, "")
        assert "\x1b" not in text
        assert text.count(printable(hostile)) == 4
