"""The plan: what it must contain, that it is the size it says, and that a cell's name depends on what determines it."""

from dataclasses import replace

import pytest

from experiments.tiny_world.cells import cell_config, cell_name, identity
from experiments.tiny_world.plan import QUICK_PLAN, Cell, Claim, Group, Plan, Side, load_plan
from experiments.tiny_world.tables import lines
from pivot.config import apply_settings
from pivot.errors import UserError
from pivot.method import PRESETS, Method

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


def method_of(plan: Plan, arm: str, *settings: str) -> Method:
    return cell_config(plan, Cell("main", arm, 0, settings)).method


def test_the_plan_keeps_the_beta_and_lambda_exp_of_its_time():
    """The presets have others today. An arm's own value stays, and so does what a cell or a group sets."""

    def strengths(method: Method) -> tuple[float | None, float | None]:
        own = method.own_settings()
        return own.get("beta"), own.get("anchor_coef")

    assert strengths(PRESETS["pivot"]) == (0.1, 0.3)
    for arm in ("pivot", "pivot-grpo", "off-sft-vaa", "pivot-bounded", "calibrl-vaa"):
        assert strengths(method_of(PLAN, arm)) == (0.5, 0.1)
    assert strengths(method_of(PLAN, "vaa")) == (0.5, None)
    assert strengths(method_of(PLAN, "ser")) == (None, 0.1)
    for arm in ("pivot-adaptive", "pivot-absolute", "pivot-weighted"):
        assert strengths(method_of(PLAN, arm)) == (1.0, 0.1)
    tuned = method_of(PLAN, "pivot", "method.beta=0.1", "method.anchor_coef=0.3")
    assert strengths(tuned) == (0.1, 0.3)
    assert tuned == PRESETS["pivot"]
    assert method_of(replace(PLAN, defaults=()), "pivot") == PRESETS["pivot"]


@pytest.mark.parametrize(
    "kept",
    ["rollout.max_tries=7", "corruption.sigma=50.0", "method.format_coef=0.5", "method.dual_clip=null"],
)
def test_one_line_keeps_a_default_that_has_changed(kept):
    """As if the default had been `kept` when the plan was written: the cells run with it, and are called the same."""
    keeping = replace(PLAN, defaults=(*PLAN.defaults, kept))
    for cell in (Cell("main", "base"), Cell("main", "overhead"), Cell("wordy", "pivot", 2)):
        config = cell_config(keeping, cell)
        assert config != cell_config(PLAN, cell)
        assert apply_settings(cell_config(PLAN, cell), [kept]) == config
        assert cell_name(keeping, cell) == cell_name(PLAN, cell)


def test_a_setting_of_the_plan_is_stronger_than_a_kept_default():
    keeping = replace(PLAN, defaults=("rollout.max_tries=7",), settings=("rollout.max_tries=2",))
    cell = Cell("main", "dapo")
    assert cell_config(keeping, cell).rollout.max_tries == 2
    assert identity(keeping, cell)["config"]["rollout"]["max_tries"] == 2
    same = replace(keeping, settings=("rollout.max_tries=7",))
    assert "max_tries" not in identity(same, cell)["config"]["rollout"]


def test_a_changed_preset_keeps_its_values_in_the_plan():
    keeping = replace(PLAN, presets={"vppo": ("method.shaping_floor=null",)})
    assert PRESETS["vppo"].settings()["shaping_floor"] == 0.9
    assert method_of(keeping, "vppo").settings()["shaping_floor"] is None
    assert method_of(keeping, "vppo", "method.shaping_floor=0.5").settings()["shaping_floor"] == 0.5
    assert cell_name(keeping, Cell("main", "vppo")) != cell_name(PLAN, Cell("main", "vppo"))
    assert cell_name(keeping, Cell("main", "papo")) == cell_name(PLAN, Cell("main", "papo"))


def test_presets_are_read_from_the_file(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("presets: {vppo: [method.shaping_floor=null]}\ndefaults: [method.beta=0.7]")
    plan = load_plan(path)
    assert plan.presets == {"vppo": ("method.shaping_floor=null",)}
    assert plan.defaults == ("method.beta=0.7",)


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
        ("defaults: [method.bta=0.5]", r"'method.bta=0.5' is not a setting; the nearest is method.beta"),
        ("defaults: [method=pivot]", "'method=pivot' is not a setting"),
        ("presets: {vpo: [method.beta=0.5]}", "presets names method 'vpo'; the nearest is vppo"),
        ("presets: {vppo: [beta=0.5]}", r"'beta=0.5' is not a setting"),
    ],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(tmp_path, text, message):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_plan(path)


def test_an_unknown_group_names_the_nearest():
    with pytest.raises(
        UserError, match="--only ablations is not a group of the plan; the nearest is ablation"
    ):
        PLAN.cells(["ablations"])


def test_every_claim_compares_within_one_world():
    assert len({claim.text for claim in PLAN.claims}) == len(PLAN.claims)
    assert all(claim.first.world == claim.second.world for claim in PLAN.claims)
    assert Claim().second == Side("dapo")
