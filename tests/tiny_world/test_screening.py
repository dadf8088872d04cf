"""A screened sweep: every value with the first seeds, the rest at the common value and at an arm's own best."""

from dataclasses import replace

import pytest

from experiments.tiny_world.__main__ import main
from experiments.tiny_world.plan import Cell, Group, Plan, World, load_plan
from experiments.tiny_world.results import (
    Results,
    best_side,
    due_of_group,
    seeds_of_choice,
    sides_of,
    values_of,
)
from experiments.tiny_world.tables import area_table, fair_table
from pivot.errors import UserError

LOW, HIGH = ("train.lr=5e-5",), ("train.lr=2e-4",)
SWEEP = Group(arms=("dapo", "pivot"), screened=1, vary=("train.lr = 5e-5 | recipe | 2e-4",))
PLAN = Plan(worlds={"main": World()}, groups={"sweep": SWEEP})


def accuracy(cell: Cell) -> float:
    """DAPO likes the common rate, PIVOT the low one; on the later seeds it would be the high one for both."""
    if cell.settings == HIGH:
        return 0.4 if cell.seed == 0 else 0.9
    return {"dapo": 0.5, "pivot": 0.7}[cell.arm] if cell.settings == LOW else 0.6


@pytest.fixture
def finished(write_results, tmp_path):
    """Results of the cells that a condition picks."""

    def write(done) -> Results:
        folder = write_results(PLAN, tmp_path / "results", accuracy, skip=lambda cell: not done(cell))
        return Results.load(PLAN, folder)

    return write


def own_best(results: Results, arm: str) -> tuple[str, ...] | None:
    best = best_side(results, sides_of(SWEEP, arm), SWEEP)
    return None if best is None else best.settings


def due(results: Results) -> set[tuple[str, tuple[str, ...], int]]:
    return {(cell.arm, cell.settings, cell.seed) for cell in due_of_group(results, "sweep")}


def test_at_first_every_value_is_due_with_the_first_seed_and_the_common_one_with_all():
    first = {(arm, value, 0) for arm in SWEEP.arms for value in (LOW, (), HIGH)}
    common = {(arm, (), seed) for arm in SWEEP.arms for seed in range(3)}
    assert due(Results(PLAN, {})) == first | common


def test_the_value_that_was_best_on_the_first_seed_gets_the_others(finished):
    results = finished(lambda cell: cell.seed == 0)
    assert own_best(results, "dapo") == ()
    assert own_best(results, "pivot") == LOW
    more = due(results) - due(Results(PLAN, {}))
    assert more == {("pivot", LOW, 1), ("pivot", LOW, 2)}


def test_an_unfinished_screening_chooses_nothing(finished):
    results = finished(lambda cell: cell.seed == 0 and cell.settings != HIGH)
    assert own_best(results, "pivot") is None
    assert due(results) == due(Results(PLAN, {}))


def test_seeds_after_the_screening_change_no_choice_unless_every_value_has_them(finished):
    partly = finished(lambda cell: cell.seed == 0 or cell.settings != HIGH)
    assert seeds_of_choice(partly, sides_of(SWEEP, "pivot"), SWEEP) == 1
    assert own_best(partly, "pivot") == LOW
    whole = finished(lambda cell: True)
    assert seeds_of_choice(whole, sides_of(SWEEP, "pivot"), SWEEP) == 3
    assert own_best(whole, "pivot") == HIGH


def test_without_screening_all_seeds_choose(finished):
    unscreened = replace(SWEEP, screened=0)
    results = finished(lambda cell: cell.seed < 2)
    assert best_side(results, sides_of(SWEEP, "pivot"), unscreened) is None
    assert (
        len(due_of_group(replace(results, plan=replace(PLAN, groups={"sweep": unscreened})), "sweep")) == 18
    )


def test_an_arm_is_judged_at_its_best_only_with_all_seeds(finished):
    rows = fair_table(finished(lambda cell: cell.seed == 0 or cell.settings == ()), SWEEP).splitlines()
    assert rows[3].split("|")[5:7] == [" 1 ", " lr=5e-5 "]
    assert rows[3].rstrip(" |").endswith("not run yet")
    rows = fair_table(finished(lambda cell: cell.seed == 0 or cell.settings != HIGH), SWEEP).splitlines()
    assert rows[3].rstrip(" |").endswith("holds")


def test_areas_are_those_of_the_seeds_that_choose(finished):
    results = finished(lambda cell: cell.seed == 0 or cell.settings == ())
    name, seeds, *areas = area_table(results, SWEEP).splitlines()[3].strip("| ").split(" | ")
    assert (name, seeds) == ("pivot", "1")
    cells = [Cell("main", "pivot", 0, value) for value in (LOW, (), HIGH)]
    assert areas == [f"{100 * values_of(results.by_cell[cell], 'auc').item():.1f}" for cell in cells]


def test_more_screening_seeds_than_seeds_are_refused(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("groups:\n  sweep: {arms: [dapo], screened: 4}\nworlds: {main: {}}\n")
    with pytest.raises(UserError, match=r"group sweep has screened: 4; give 0 .* to 3"):
        load_plan(path)


def test_cells_that_the_screening_left_out_are_neither_run_nor_called_missing(
    write_results, tmp_path, capsys
):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "worlds: {main: {}}\n"
        "groups:\n  sweep: {arms: [dapo, pivot], screened: 1, vary: ['train.lr = 5e-5 | recipe | 2e-4']}\n"
    )
    plan = load_plan(path)
    wanted = {(cell.arm, cell.seed) for cell in plan.cells() if cell.settings == HIGH and cell.seed}
    work = tmp_path / "work"
    write_results(
        plan, work / "results", accuracy,
        skip=lambda cell: cell.seed > 0 and (cell.settings == HIGH or (cell.arm == "dapo" and cell.settings == LOW)),
    )  # fmt: skip
    assert main(["--plan", str(path), "--work", str(work)]) == 0
    said = capsys.readouterr().out
    assert f"all {18 - len(wanted) - 2} cells are finished; screening leaves out 6 more" in said
    assert not list(work.glob("main-*"))
