"""Soak: every kind of damage to a run's folder, with the command that meets it and what comes of it."""

from collections import Counter

import pytest
from soak_table import record

damages = pytest.importorskip("damages")


def test_every_damage_is_refused_repaired_or_named(small_config, tmp_path):
    whole = damages.make_run(small_config(damages.METHOD, *damages.SETTINGS), tmp_path / "whole")
    outcomes, failed = Counter(), []
    for number, damage in enumerate(damages.DAMAGES):
        ended = damages.inflict(damage, whole, tmp_path / str(number))
        outcomes[damage.outcome] += 1
        if found := damages.wrong(damage, ended):
            failed.append(f"{damage.name}: {'; '.join(found)}")
    for outcome, count in outcomes.items():
        names = [damage.name for damage in damages.DAMAGES if damage.outcome == outcome]
        record("damages", f"{count}, such as {'; '.join(names[:: max(1, count // 4)])}", outcome)
    assert not failed
