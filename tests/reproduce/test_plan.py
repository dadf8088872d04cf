"""The plan: what it must contain, that it is the size it says, and that a cell's name hangs on what determines it."""

from dataclasses import replace

import pytest

from pivot.errors import UserError
from pivot.reproduce.cells import cell_config, cell_name, identity
from pivot.reproduce.plan import QUICK_PLAN, Cell, Claim, Group, Side, load_plan
from pivot.reproduce.tables import lines

PLAN = load_plan()


def arms(group: str) -> set[str]:
    return set(PLAN.groups[group].arms)


def test_the_issues_tables_are_planned():
    assert arms("main") == {"base", "grpo", "dapo", "papo", "vppo", "pivot"}
    parts = {"ser", "vaa", "off-pg-vaa", "off-sft-vaa", "ser-vaa-local", "calibrl", "calibrl-vaa", "pivot"}
    assert arms("ablation") >= parts
    assert {PLAN.groups[name].seeds for name in ("main", "ablation")} == {5}
    five = ("main", "ablation", "bounded", "strict", "tuned", "weighted")
    assert {group.seeds for name, group in PLAN.groups.items() if name not in five} == {3}
    # Every trained arm of the main tables has the same learning-rate sweep.
    assert arms("learning-rate") >= (arms("main") | arms("ablation") | arms("bounded") | arms("weighted")) - {
        "base"
    }
    assert len(PLAN.groups["main"].variants()) == 1
    assert len(PLAN.cells(["main"])) == 26


def test_every_trained_cell_has_the_same_budget():
    """Same prompts, steps and rollouts for every method of a world."""
    for world in PLAN.worlds:
        configs = [cell_config(PLAN, c) for c in PLAN.cells() if c.world == world and not c.is_single]
        budgets = {
            (c.train.steps, c.train.prompts_per_step, c.rollout.responses, c.data.size) for c in configs
        }
        assert len(budgets) == 1
        assert {c.model.path for c in configs} == {configs[0].model.path}
        assert all(c.train.threads == 1 for c in configs)


def test_names_are_unique_and_shared_cells_are_not_redone():
    cells = PLAN.cells()
    assert len({cell_name(PLAN, cell) for cell in cells}) == len(cells)
    assert len(cells) < sum(len(PLAN.group_cells(name)) for name in PLAN.groups)
    assert not set(PLAN.group_cells("grpo")).isdisjoint(PLAN.group_cells("main"))


def test_a_name_changes_with_what_determines_the_cell_and_with_nothing_else():
    cell = Cell("main", "pivot", 1)
    name = cell_name(PLAN, cell)
    assert cell_name(replace(PLAN, digest="another", changes=("a word",)), cell) == name
    logged = replace(PLAN, settings=(*PLAN.settings, "log.rollouts_every=7", "checkpoint.every=3"))
    assert cell_name(logged, cell) == name
    for changed in (
        replace(PLAN, version=2),
        replace(PLAN, settings=(*PLAN.settings, "train.lr=1e-3")),
        replace(PLAN, measure=replace(PLAN.measure, prompts=7)),
    ):
        assert cell_name(changed, cell) != name
    assert cell_name(PLAN, Cell("main", "pivot", 2)) != name


def test_a_new_setting_that_is_off_by_default_leaves_cells_valid():
    """Only what differs from the defaults counts, so the identity does not list the defaults."""
    found = identity(PLAN, Cell("main", "dapo", 0))
    assert "method" not in found["config"]
    assert "beta" not in identity(PLAN, Cell("main", "pivot", 0))["config"]["method"]
    varied = identity(PLAN, Cell("main", "pivot", 0, ("method.beta=1.0",)))
    assert varied["config"]["method"]["beta"] == 1.0


def test_variants_are_varied_one_at_a_time():
    group = Group(vary=("method.beta = 0.1 | recipe", "method.support_floor = recipe | null"))
    assert group.variants() == [("method.beta=0.1",), (), ("method.support_floor=null",)]
    assert Group().variants() == [()]


def test_a_groups_settings_are_in_every_variant():
    group = Group(settings=("method.beta=0.1",), vary=("method.anchor_coef = recipe | 0.3",))
    assert group.variants() == [("method.beta=0.1",), ("method.beta=0.1", "method.anchor_coef=0.3")]
    assert replace(group, vary=()).variants() == [("method.beta=0.1",)]
    # What varies is compared with the group's own arm as the group has it, or with an arm of another group as it is.
    group = replace(group, arms=("pivot",))
    assert [line.reference for line in lines(group, "pivot")] == [
        None,
        Side("pivot", settings=("method.beta=0.1",)),
    ]
    assert {line.reference for line in lines(group, "dapo")} == {Side("dapo")}


def test_a_label_says_what_is_special():
    assert Cell("main", "pivot", 3, ("method.beta=1.0",)).label == "main pivot beta=1.0 seed 3"
    assert Cell("small", "base").label == "small base"


def test_the_quick_plan_has_every_kind_of_cell():
    quick = load_plan(QUICK_PLAN)
    assert {"base", "overhead", "dapo", "pivot"} <= {cell.arm for cell in quick.cells()}
    assert any(world.start.origin for world in quick.worlds.values())
    assert quick.claims


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worlds: {main: {}}\ngroups: {a: {worlds: [mian], arms: [dapo]}}", "names world 'mian'; the nearest is main"),
        ("worlds: {main: {}}\ngroups: {a: {arm: [dapo]}}", r"groups\.a\.arm"),
        ("worlds: {main: {}}\ngroups: {a: {arms: [dapo]}}\nclaims: [{text: x, first: {arm: pivot}}]",
         "needs a cell that no group has: main pivot seed 0"),
        ("wolrds: {}", "wolrds"),
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_plan(path)


def test_an_unknown_group_names_the_nearest():
    with pytest.raises(UserError, match="--only ablations is no group of the plan; the nearest is ablation"):
        PLAN.cells(["ablations"])


def test_words_pick_cells_by_whole_words_of_their_names():
    picked = PLAN.cells(["learning-rate"], ["pivot lr=5e-5", "dapo lr=5e-5 0"])
    assert [cell.label for cell in picked] == [
        "main dapo lr=5e-5 seed 0", *(f"main pivot lr=5e-5 seed {seed}" for seed in range(3)),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"--match 'lr=5' fits none of .* names like 'main base'"):
        PLAN.cells(match=["lr=5"])


def test_every_claim_compares_within_one_world():
    assert len({claim.text for claim in PLAN.claims}) == len(PLAN.claims)
    assert all(claim.first.world == claim.second.world for claim in PLAN.claims)
    assert Claim().second == Side("dapo")
