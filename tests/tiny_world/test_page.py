"""The page from known results: planted effects are found, missing cells are said to be missing, and the committed
page is what the committed numbers give."""

import hashlib
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from experiments.tiny_world.__main__ import Study, list_groups
from experiments.tiny_world.cells import cell_name, identity
from experiments.tiny_world.figures import (
    WIDEST,
    WORLD_ARMS,
    claims_figure,
    figures,
    push_figure,
    sensitivity_figure,
    worlds_figure,
)
from experiments.tiny_world.page import BEGIN, END, FIGURES, HOMES, fill, page_body, tables_body, write_page
from experiments.tiny_world.plan import Cell, Side, load_plan
from experiments.tiny_world.results import (
    Judged,
    Results,
    at_equal_time,
    best_side,
    due_cells,
    judge,
    values_of,
)
from experiments.tiny_world.tables import fair_table, lines, markdown, seeds_table, sweep_table
from pivot.errors import UserError
from pivot.sweep.statistics import Difference

HERE = Path(__file__).parents[2] / "experiments" / "tiny_world"
PLAN = load_plan()
EFFECT = {"base": -0.2, "pivot": 0.18, "vppo": -0.2}


def planted(cell) -> float:
    """DAPO at 0.6, PIVOT above it, VPPO below; beta = 1.0 is PIVOT's best."""
    return 0.6 + EFFECT.get(cell.arm, 0.0) + (0.1 if cell.settings == ("method.beta=1.0",) else 0.0)


@pytest.fixture(scope="module")
def full(write_results, tmp_path_factory) -> Results:
    return Results.load(PLAN, write_results(PLAN, tmp_path_factory.mktemp("results"), planted))


def body(plan, results: Results, drawn: list[str]) -> str:
    """All that is written: the page and its tables."""
    return page_body(plan, results, drawn) + "\n\n" + tables_body(plan, results, drawn)


def verdicts(results: Results) -> dict[str, str]:
    return {claim.text: judge(results, claim).verdict for claim in PLAN.claims}


def test_planted_effects_are_found_and_none_where_there_is_none(full):
    found = verdicts(full)
    assert found["PIVOT beats DAPO in domain"] == "holds"
    assert found["PIVOT beats VPPO out of domain"] == "holds"
    assert found["PIVOT beats DAPO after the same time"] == "holds"
    assert found["bounded PIVOT beats PIVOT in domain"] == "reversed"
    nulls = [
        found[f"{module} alone beats DAPO {where} domain"]
        for module in ("SER", "VAA")
        for where in ("in", "out of")
    ]
    assert nulls.count("no difference seen") >= 3


def test_a_claim_is_not_judged_before_all_its_seeds_are_there(write_results, tmp_path):
    folder = write_results(PLAN, tmp_path, planted, skip=lambda c: (c.arm, c.seed) == ("pivot", 4))
    results = Results.load(PLAN, folder)
    found = verdicts(results)
    assert found["PIVOT beats DAPO in domain"] == "not run yet"
    assert found["SER alone beats DAPO in domain"] != "not run yet"
    text = body(PLAN, results, [])
    assert "| pivot | not run yet (4 of 5) |" in text
    assert "not run yet (9 of 10 cells)" in text


def test_every_group_has_its_section_when_all_is_there(full):
    text = body(PLAN, full, list(figures(PLAN, full)))
    assert "not run yet" not in text.lower()
    for heading in (
        "Main table",
        "Ablation",
        "PIVOT on GRPO",
        "Learning rate",
        "Sensitivity: beta",
        "Overhead",
    ):
        assert f"## {heading}\n" in text
    for world in PLAN.worlds:
        assert f"- **{world}**" in text
    assert "learning-steps.svg" in text


def test_what_is_tuned_is_chosen_on_the_validation_split(full):
    group = PLAN.groups["beta"]
    sides = [line.side for line in lines(group)]
    assert best_side(full, sides, group) == Side("pivot", "main", ("method.beta=1.0",))
    chosen = [row for row in sweep_table(full, group).splitlines() if "(chosen)" in row]
    assert len(chosen) == 1
    assert chosen[0].startswith("| beta=1.0 (chosen) |")


def test_every_arm_is_judged_at_its_own_best_and_at_the_common_learning_rate(full):
    rows = fair_table(full, PLAN.groups["learning-rate"]).splitlines()[2:]
    by_arm = {row.split("|")[1].strip(): row for row in rows}
    assert set(by_arm) == set(PLAN.groups["learning-rate"].arms)
    assert by_arm["pivot"].rstrip(" |").endswith("holds")
    assert by_arm["vppo"].rstrip(" |").endswith("reversed")


def test_nothing_run_is_said_of_every_group(tmp_path):
    page = write_page(PLAN, tmp_path / "results", tmp_path / "docs" / "README.md")
    text = page.read_text() + page.with_name("tables.md").read_text()
    due = due_cells(Results(PLAN, {}), PLAN.cells())
    assert f"0 of {len(due)} cells are finished" in text
    assert text.count("*Not run yet: 0 of") == len(PLAN.groups)
    assert not (tmp_path / "docs" / "images").exists()


def test_prose_around_the_marks_stays(tmp_path, full):
    text = f"# Mine\n\nabove\n\n{BEGIN}\nold\n{END}\n\nbelow\n"
    once = fill(text, "new", tmp_path)
    assert once == f"# Mine\n\nabove\n\n{BEGIN}\n\nnew\n\n{END}\n\nbelow\n"
    assert fill(once, "new", tmp_path) == once
    with pytest.raises(UserError, match="lacks the marks"):
        fill("# Mine\n", "new", tmp_path)


def test_figures_are_written_beside_the_page(write_results, tmp_path):
    folder = write_results(
        PLAN, tmp_path / "results", planted, skip=lambda c: c.world != "main" or c.settings != ()
    )
    page = write_page(PLAN, folder, tmp_path / "docs" / "README.md")
    drawn = {path.name for path in (page.parent / "images").iterdir()}
    # One world and one value of each setting are nothing to compare.
    assert drawn == {f"{name}.svg" for name in FIGURES if name not in ("worlds", "sensitivity", "push")}
    before = page.read_bytes()
    assert write_page(PLAN, folder, page).read_bytes() == before


def test_a_figure_stands_in_its_section(full):
    drawn = figures(PLAN, full)
    assert set(drawn) == set(FIGURES)
    text = body(PLAN, full, list(drawn))
    for name in FIGURES:
        section = text[: text.index(f"images/{name}.svg")].rpartition("\n## ")[2].partition("\n")[0]
        assert section == HOMES[name]


def test_the_figure_of_worlds_has_a_dot_for_every_seed_and_a_bar_at_their_mean(full):
    axes = worlds_figure(PLAN, full).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(PLAN.worlds)
    dots = sorted(
        round(float(y), 6) for line in axes.lines for y in line.get_ydata() if line.get_marker() == "o"
    )
    expected = []
    for world, arm in itertools.product(PLAN.worlds, WORLD_ARMS):
        for seed in range(PLAN.seeds_of(Side(arm, world))):
            ours, theirs = (
                values_of(full.by_cell[Cell(world, a, seed)], "test").mean() for a in (arm, "dapo")
            )
            expected.append(round(float(100 * (ours - theirs)), 6))
    assert dots == sorted(expected)


def test_a_claim_beyond_the_figures_width_is_an_arrow_on_its_side():
    far = Judged(PLAN.claims[0], Difference(mean=-0.66, low=-0.72, high=-0.60, seeds=2), 2, 2)
    near = Judged(PLAN.claims[1], Difference(mean=0.1, low=-0.1, high=0.9, seeds=2), 2, 2)
    axes = claims_figure([far, near]).axes[0]
    drawn = [line for line in axes.lines if line.get_marker() != "None"]
    marks = {(line.get_marker(), round(float(line.get_xdata()[0]), 6)) for line in drawn}
    assert marks == {("<", -WIDEST), ("o", 10.0), (">", WIDEST)}
    assert all(abs(x) <= WIDEST for line in axes.lines for x in line.get_xdata())


def test_the_figure_of_the_push_has_both_sweeps_on_one_scale(full):
    axes = push_figure(PLAN, full).axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.08", "0.2", "0.4", "0.8", "1.6"]
    dots = sum(len(line.get_ydata()) for line in axes.lines if line.get_marker() == "o")
    assert dots == 3 * (len(PLAN.groups["push"].variants()) + len(PLAN.groups["beta"].variants()))


def test_the_figure_of_settings_names_the_value_that_the_preset_has(full):
    beta, weight = sensitivity_figure(PLAN, full).axes
    assert [tick.get_text() for tick in beta.get_xticklabels()] == ["0.1", "0.25", "0.5", "1.0", "2.0"]
    assert [tick.get_text() for tick in weight.get_xticklabels()] == ["0.03", "0.1", "0.3", "1.0"]


def test_the_committed_page_is_what_the_committed_numbers_give():
    page = HERE / "README.md"
    results = Results.load(PLAN, HERE / "results")
    text = page.read_text(encoding="utf-8")
    drawn = list(figures(PLAN, results))
    command = "run `python -m experiments.tiny_world --report`"
    assert fill(text, page_body(PLAN, results, drawn), page) == text, command
    assert tables_body(PLAN, results, drawn) == page.with_name("tables.md").read_text(encoding="utf-8"), (
        command
    )
    for name in drawn:
        assert (HERE / "images" / f"{name}.svg").is_file()


def test_every_committed_number_belongs_to_a_finished_cell_and_no_cell_is_missing():
    """A changed default must not orphan what was run with the old one: the plan keeps it, under `defaults`."""
    files = {path.name for path in (HERE / "results").glob("*.json")}
    results = Results.load(PLAN, HERE / "results")
    assert len(files) == len(results.by_cell) == 420
    assert files == {f"{cell_name(PLAN, cell)}.json" for cell in results.by_cell}
    assert set(due_cells(results, PLAN.cells())) == set(results.by_cell)
    for cell, raw in results.by_cell.items():
        assert raw["cell"] == {**asdict(cell), "settings": list(cell.settings)}
        assert raw["identity"] == json.loads(json.dumps(identity(PLAN, cell)))
        # The digest in the name is that of the identity stored when the cell ran.
        stored = hashlib.sha256(json.dumps(raw["identity"], sort_keys=True).encode()).hexdigest()[:8]
        assert cell_name(PLAN, cell).endswith(f"-{stored}")


def test_results_that_no_table_counts_are_kept():
    assert len(list((HERE / "results" / "dropped").glob("*.json"))) == 3


def test_the_page_says_which_defaults_are_those_of_the_plans_time(full):
    text = body(replace(PLAN, presets={"vppo": ("method.shaping_floor=0.8",)}), full, [])
    assert "`method.beta=0.5`, `method.anchor_coef=0.1`" in text
    assert "`method.shaping_floor=0.8` (vppo)" in text
    assert "defaults that have changed" not in body(replace(PLAN, defaults=(), presets={}), full, [])


def test_a_damaged_result_is_named(write_results, tmp_path):
    folder = write_results(PLAN, tmp_path, planted, skip=lambda c: c.arm != "base")
    broken = next(iter(folder.glob("main-base-*.json")))
    broken.write_text("{")
    with pytest.raises(UserError, match=r"is damaged .*: remove it, and its cell runs again"):
        Results.load(PLAN, folder)


def test_list_counts_what_is_done(write_results, tmp_path):
    folder = write_results(
        PLAN, tmp_path, planted, skip=lambda c: c.arm != "dapo" or c.settings != () or c.world != "main"
    )
    shown = list_groups(Study(Path(), PLAN, tmp_path, folder, tmp_path / "README.md"), [])
    rows = {line.split()[0]: line.split()[1:4] for line in shown.splitlines()[1:]}
    assert rows["main"] == ["26", "0", "5"]
    assert rows["ablation"] == ["45", "10", "5"]
    due = due_cells(Results.load(PLAN, folder), PLAN.cells())
    assert rows["all"][:2] == [str(len(due)), "5"]


def test_who_keeps_the_format_and_what_a_step_takes_stand_in_the_tables(write_results, tmp_path):
    folder = write_results(PLAN, tmp_path, planted, skip=lambda c: c.world != "main")
    results = Results.load(PLAN, folder)
    raw = results.get(lines(PLAN.groups["main"])[1].cells)[0]
    text = body(PLAN, results, [])
    row = next(line for line in text.splitlines() if line.startswith("| dapo |"))
    assert row.rstrip(" |").endswith(f"{100 * raw['sets']['test']['format']:.1f} ± 0.0")
    # 1 + i / 10 seconds for the i-th of the plan's timed methods.
    assert "| dapo | 1.10 s |" in text
    assert "| pivot | 1.60 s |" in text


def test_equal_time_waits_for_the_methods_to_be_timed(write_results, tmp_path):
    folder = write_results(PLAN, tmp_path, planted, skip=lambda c: c.world != "main" or c.arm == "overhead")
    claim = next(claim for claim in PLAN.claims if claim.metric == "equal_time")
    assert judge(Results.load(PLAN, folder), claim).verdict == "not run yet"
    write_results(PLAN, tmp_path, planted, skip=lambda c: c.world != "main")
    assert judge(Results.load(PLAN, folder), claim).difference is not None


def test_a_bar_in_a_cell_does_not_start_another():
    assert (
        markdown(["claim", "verdict"], [["|U| <= 1", "holds"]]).splitlines()[2] == r"| \|U\| <= 1 | holds |"
    )


def test_every_finished_cell_stands_in_the_table_of_seeds(write_results, tmp_path):
    folder = write_results(
        PLAN, tmp_path, planted, skip=lambda c: c.arm != "vaa" or (c.world, c.seed) == ("main", 1)
    )
    results = Results.load(PLAN, folder)
    head, _, *rows = (row.strip("| ").split(" | ") for row in seeds_table(results).splitlines())
    assert head == [f"seed {seed}" for seed in range(5)]
    by_name = {row[0]: row[1:] for row in rows}
    assert set(by_name) >= {"main vaa", "main vaa lr=5e-5", "prior vaa"}
    raw = results.by_cell[Cell("main", "vaa", 3)]
    correct = 100 * sum(raw["sets"]["test"]["correct"]) / 8 / len(raw["sets"]["test"]["correct"])
    assert by_name["main vaa"][3] == f"{correct:.1f} (100.0)"
    assert by_name["main vaa"][1] == "–"
    assert by_name["prior vaa"][3:] == ["–", "–"]


def test_equal_time_is_when_the_faster_one_is_done():
    fast = {"curve": {"steps": [10, 20], "accuracy": [0.3, 0.5]}}
    slow = {"curve": {"steps": [10, 20], "accuracy": [0.4, 0.8]}}
    # At 5 and 8 seconds a step the fast one ends after 100 seconds, a quarter of the way from 80 to 160.
    assert at_equal_time(fast, slow, (5.0, 8.0)) == pytest.approx((0.5, 0.5))
    assert at_equal_time(slow, fast, (8.0, 5.0)) == pytest.approx((0.5, 0.5))
