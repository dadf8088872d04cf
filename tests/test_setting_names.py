"""The names that are read from source files are those that the configuration has."""

import pytest

from pivot.config import Config
from pivot.config.schema import all_fields, hints
from pivot.errors import UserError
from pivot.method.presets import GROUPS
from pivot.setting_names import check_setting, method_names, setting_docs, unknown_setting


def test_settings_and_their_docs_are_those_of_the_configuration():
    found = {f"{s}.{name}": doc for s, docs in setting_docs().items() for name, doc in docs.items() if s}
    known = {info.path: info.doc for info in all_fields(Config()) if "." in info.path}
    del known["method.summary"], known["method.name"], found["method.name"]
    assert found == known
    assert list(setting_docs()[""]) == list(hints(Config))


def test_methods_are_the_presets():
    named = [name for title, names in GROUPS.items() if title != "Registered" for name in names]
    assert sorted(method_names()) == sorted(named)


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("train.lrr", "train.lr"),
        ("trian.lr", "train"),
        ("seed", "train.seed"),
        ("learning_rate", "train.lr"),
        ("method.betta", "method.beta"),
        ("method.learning_rate", "train.lr"),
    ],
)
def test_a_mistyped_setting_names_the_nearest(path, near):
    with pytest.raises(UserError) as told:
        check_setting(path)
    assert f"There is no setting {path.split('.')[0]}" in str(told.value)
    assert str(told.value).endswith(f"the nearest is {near}.")


def test_settings_of_a_method_from_outside_are_left_to_it():
    check_setting("method.warmth", own_method=True)
    check_setting("reward.function")
    check_setting("train.lr")
    with pytest.raises(UserError):
        check_setting("method.warmth")


def test_nothing_near_lists_what_there_is():
    assert "there are a, b" in str(unknown_setting("zzzzzz", ["a", "b"], ""))
