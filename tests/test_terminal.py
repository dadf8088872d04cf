"""Text that is safe to print to a terminal."""

import json

from pivot.seeding import stable_seed
from pivot.terminal import printable


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
