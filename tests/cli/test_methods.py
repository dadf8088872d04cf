"""`pivot methods` says what every preset turns on."""

import json

import pytest

from pivot.cli import main
from pivot.cli.methods import COLUMNS, turned_on
from pivot.config import from_dict
from pivot.method import PRESETS, Method
from pivot.method.presets import GROUPS


def test_the_table_has_a_row_per_method(capsys):
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip() and line.split()[0] in PRESETS}
    assert list(rows) == list(PRESETS)
    assert "0.2 / 0.28" in rows["dapo"]
    cells = {name: " ".join(row.split()[1:]) for name, row in rows.items()}
    assert cells["pivot"] == "0.2 / 0.28 token - yes future 0.1 50% calibrate"
    assert cells["grpo"] == "0.2 / 0.2 sequence 0.01 - - - -"
    assert cells["sapo"] == "sapo 1 / 1.05 sequence - - - - -"
    assert max(map(len, lines)) <= 100
    titles = [line for line in lines if line and not line.startswith((" ", "`", "--", "method"))]
    assert titles == list(GROUPS)


def test_every_switch_that_is_on_shows_up_in_the_table(capsys):
    main(["methods"])
    words = capsys.readouterr().out
    spoken_for = {name for names, _ in COLUMNS.values() for name in names}
    for method in PRESETS.values():
        for name in turned_on(method):
            assert name in spoken_for or name in words


def test_what_is_on_is_read_off_the_switches():
    neutral = Method("anything", "the defaults are DAPO")
    assert turned_on(neutral) == {}
    assert turned_on(PRESETS["vaa"]) == {"utility": "future"}
    assert turned_on(PRESETS["pivot"]) == {"utility": "future", "replay": True, "anchor_use": "calibrate"}


def test_one_method_is_listed_with_all_docs(capsys):
    assert main(["methods", "vppo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"vppo: {PRESETS['vppo'].summary}"
    assert "* method.token_keep_share = 0.4  (float)" in lines
    assert "  method.clip_low = 0.2  (float)" in lines
    shown = [
        line.split()[-4 if "|" in line else 0]
        for line in lines
        if line.startswith(("  method.", "* method."))
    ]
    assert len(shown) == len(PRESETS["vppo"].own_settings())
    assert not any("beta" in line for line in lines), "a method lists the settings of its own parts"
    assert any(line.startswith("TokenSelection: VPPO: ") for line in lines)


@pytest.mark.parametrize("name", PRESETS)
def test_json_gives_a_method_that_loads_again(name, capsys):
    assert main(["methods", name, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert from_dict({"method": described["fields"]}).method == PRESETS[name]
    turned_on = from_dict({"method": {"name": "dapo", **described["turns_on"]}}).method
    assert turned_on.settings() == PRESETS[name].settings()


def test_json_of_all_methods_is_a_list(capsys):
    main(["methods", "--json"])
    assert [method["name"] for method in json.loads(capsys.readouterr().out)] == list(PRESETS)


def test_an_unknown_method_is_one_sentence(capsys):
    assert main(["methods", "pivott"]) == 2
    assert capsys.readouterr().err == "pivot methods: There is no method 'pivott'; the nearest is pivot.\n"
