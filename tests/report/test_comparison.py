import csv
import json

import numpy as np
import pytest

from pivot.errors import UserError
from pivot.report import write_comparison
from pivot.report.charts import LineChart
from pivot.report.comparison import overlaid, sensitivity
from pivot.report.comparison_tables import accuracy_tables, is_out_of_domain, overhead_table
from pivot.report.groups import find_baseline, group_runs
from pivot.report.run import read_run
from pivot.report.tables import to_markdown


def studied(folders):
    return group_runs([read_run(folder) for folder in folders])


def table_named(tables, name):
    return next(table for table in tables if table.name == name)


def test_runs_that_differ_in_their_seed_alone_are_one_group(new_run):
    folders = [new_run(f"r{seed}", steps=12, seed=seed) for seed in range(3)] + [
        new_run("d", steps=12, method="dapo")
    ]
    found = studied(folders)
    assert [(g.label, len(g.runs)) for g in found.groups] == [("pivot", 3), ("dapo", 1)]
    assert found.sweeps == []


def test_sweeps_are_found_by_their_configs_and_have_one_representative(new_run):
    folders = [new_run(f"b{beta}", steps=12, beta=beta) for beta in (1.0, 0.5, 0.1)]
    folders.append(new_run("grey", steps=12, corruption__kind="grey"))
    found = studied(folders)
    assert [(s.key, [value for value, _ in s.members]) for s in found.sweeps] == [
        ("corruption.kind", ["patch", "grey"]),
        ("method.beta", [0.1, 0.5, 1.0]),
    ]
    assert [g.label for g in found.groups] == [
        "pivot (beta = 1.0)",
        "pivot",
        "pivot (beta = 0.1)",
        "pivot (kind = grey)",
    ]
    assert [g.label for g in found.representatives] == ["pivot"]
    (chart,) = sensitivity(found.sweeps)
    assert isinstance(chart, LineChart)
    assert chart.curves[0].steps.tolist() == [0.1, 0.5, 1.0]


def test_mean_deviation_and_relative_gain_by_hand(new_run):
    folders = [
        new_run("d", steps=12, method="dapo", gain=0.25),
        new_run("s", steps=12, method="ser", gain=0.3),
    ]
    folders += [new_run(f"p{seed}", steps=12, seed=seed, gain=gain) for seed, gain in ((0, 0.4), (1, 0.45))]
    tables = accuracy_tables(studied(folders), None)
    ablation = table_named(tables, "ablation")
    dapo, ser, pivot = ablation.rows
    # tiny-test starts at 28% and gains 0.8 of each run's gain.
    assert [c.name for c in ablation.columns] == ["tiny-test", "Δ, %", "Seeds"]
    assert dapo.values == pytest.approx((48.0, None, 1))
    assert ser.values == pytest.approx((52.0, 100 * (52 / 48 - 1), 1))
    assert pivot.values == pytest.approx((62.0, 100 * (62 / 48 - 1), 2))
    assert pivot.spreads[0] == pytest.approx(np.std([60, 64], ddof=1))
    main = table_named(tables, "main")
    assert [row.label for row in main.rows] == ["tiny (before training)", "dapo", "pivot"]
    assert main.rows[0].values == (28.000000000000004, None)
    assert [c.name for c in table_named(tables, "out-of-domain").columns] == ["tiny-ood", "Seeds"]


def test_a_row_of_one_seed_is_not_marked_over_one_of_two(new_run):
    folders = [new_run("d", steps=12, method="dapo", gain=0.6)]
    folders += [new_run(f"s{seed}", steps=12, seed=seed, method="ser", gain=0.2) for seed in (0, 1)]
    folders += [new_run(f"p{seed}", steps=12, seed=seed, gain=0.4) for seed in (0, 1)]
    table = table_named(accuracy_tables(studied(folders), None), "ablation")
    lines = to_markdown(table).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["dapo", "ser", "pivot"]
    assert "**" not in lines[2], "the highest number, from one seed"
    assert "**60.00" in lines[4]
    assert [line.split("|")[-2].strip() for line in lines[2:5]] == ["1", "2", "2"]


def test_grpo_gains_are_relative_to_the_model_before_training(new_run):
    folders = [
        new_run("g", steps=12, method="grpo", gain=0.2),
        new_run("p", steps=12, method="pivot-grpo", gain=0.3),
    ]
    table = table_named(accuracy_tables(studied(folders), None), "grpo")
    assert [row.values[-2] for row in table.rows] == pytest.approx(
        [None, 100 * (44 / 28 - 1), 100 * (52 / 28 - 1)]
    )


def test_interventions_stand_below_the_baseline(new_run):
    folders = [new_run("d", steps=12, method="dapo")]
    folders += [new_run(kind, steps=12, corruption__kind=kind) for kind in ("patch", "grey", "gaussian")]
    table = table_named(accuracy_tables(studied(folders), None), "interventions")
    assert [r.label for r in table.rows] == [
        "dapo",
        "pivot, kind = patch",
        "pivot, kind = grey",
        "pivot, kind = gaussian",
    ]


def test_two_models_never_share_a_table(new_run):
    folders = [new_run("a", steps=12), new_run("b", steps=12, model__path="other")]
    tables = accuracy_tables(studied(folders), None)
    assert [t.name for t in tables] == ["main-1", "out-of-domain-1", "main-2", "out-of-domain-2"]
    assert [len(table_named(tables, f"main-{i}").rows) for i in (1, 2)] == [2, 2]


def test_without_evaluations_the_last_validation_accuracy_stands_in(new_run):
    folders = [new_run("a", steps=20), new_run("d", steps=20, method="dapo")]
    for folder in folders:
        (folder / "eval" / "scores.json").unlink()
    table = table_named(accuracy_tables(studied(folders), None), "main")
    last = json.loads((folders[0] / "metrics.jsonl").read_text().splitlines()[-1])["eval/accuracy"]
    assert [c.name for c in table.columns] == ["validation", "Seeds"]
    assert {row.label: row.values[0] for row in table.rows}["pivot"] == pytest.approx(100 * last)


def record_settings(folder, when=("before", "after"), **settings):
    """Give a run's entries the settings that they were measured with."""
    path = folder / "eval" / "scores.json"
    scores = json.loads(path.read_text())
    for entry in scores["evaluations"]:
        if entry["when"] in when:
            entry["settings"] = {"min_pixels": 3136, "max_pixels": 12544, "grader": "pivot"} | settings
    path.write_text(json.dumps(scores))
    return folder


def test_a_row_that_was_measured_otherwise_says_so_in_every_format(new_run, tmp_path):
    folders = [record_settings(new_run(name, steps=12, method=name)) for name in ("dapo", "grpo", "papo")]
    folders.append(record_settings(new_run("p", steps=12), max_pixels=25088, grader="mathruler"))
    page = write_comparison(folders, tmp_path / "out")
    note = "image limits 3136 to 25088 pixels (others 3136 to 12544 pixels); grader mathruler (others pivot)"
    main = tmp_path / "out" / "tables" / "main"
    rows = list(csv.DictReader(main.with_suffix(".csv").open()))
    assert {row["Method"]: row["Note"] for row in rows} == {
        "tiny (before training)": "",
        "grpo": "",
        "dapo": "",
        "papo": "",
        "pivot": note,
    }
    for path in (main.with_suffix(".md"), main.with_suffix(".tex"), page):
        assert note in path.read_text()


def test_the_model_before_training_is_compared_too(new_run):
    folders = [
        record_settings(new_run(name, steps=12, method=name), when=("after",), max_pixels=784)
        for name in ("dapo", "pivot")
    ]
    for folder in folders:
        record_settings(folder, when=("before",))
    table = table_named(accuracy_tables(studied(folders), None), "main")
    assert [row.note for row in table.rows] == [
        "image limits 3136 to 12544 pixels (others 3136 to 784 pixels)",
        "",
        "",
    ]


def test_old_runs_are_unknown_beside_new_ones_and_silent_among_themselves(new_run):
    old, older = new_run("d", steps=12, method="dapo"), new_run("g", steps=12, method="grpo")
    new = record_settings(new_run("p", steps=12))
    table = table_named(accuracy_tables(studied([old, older]), None), "main")
    assert not table.has_notes
    table = table_named(accuracy_tables(studied([old, new]), None), "main")
    assert {row.label: row.note for row in table.rows} == {
        "tiny (before training)": "evaluation settings not recorded",
        "dapo": "evaluation settings not recorded",
        "pivot": "",
    }


def test_overhead_is_relative_to_the_baseline(new_run):
    folders = [new_run("d", steps=12, method="dapo"), new_run("p", steps=12)]
    found = studied(folders)
    table = overhead_table(found.representatives, find_baseline(found.groups, None))
    assert table is not None
    seconds = [read_run(folder).series("time/step").values.mean() for folder in folders]
    columns = [column.name for column in table.columns]
    assert columns == [
        "s / step",
        "Δ, %",
        *(f"{p}, s" for p in ("rollout", "score", "update", "anchors", "verify", "other")),
        "buffer, MB",
    ]
    assert [row.values[0] for row in table.rows] == pytest.approx(seconds)
    assert [row.values[1] for row in table.rows] == pytest.approx([None, 100 * (seconds[1] / seconds[0] - 1)])
    assert table.rows[0].values[columns.index("score, s")] is None


def test_the_baseline_by_method_folder_or_default(new_run):
    groups = studied(
        [new_run("p", steps=12), new_run("g", steps=12, method="grpo"), new_run("d", steps=12, method="dapo")]
    ).groups
    assert find_baseline(groups, None).method == "dapo"
    assert find_baseline(groups, "g").method == "grpo"
    assert find_baseline(groups, "pivot").method == "pivot"
    assert find_baseline(groups[:1], None) is groups[0]
    assert find_baseline(groups, "nobody") is None


def test_an_unknown_baseline_is_a_users_mistake(new_run, tmp_path):
    with pytest.raises(UserError, match=r"--baseline nobody is not among the runs; .* \(pivot\)"):
        write_comparison([new_run("p", steps=12)], tmp_path / "out", baseline="nobody")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny-ood", True),
        ("tiny-test", False),
        ("HallusionBench", True),
        ("chart_qa_pro", True),
        ("food", False),
    ],
)
def test_out_of_domain_by_name(name, expected):
    assert is_out_of_domain(name) is expected


def test_many_variants_leave_the_curves_to_the_representatives(new_run):
    few = studied([new_run(f"x{i}", steps=2, beta=i / 10) for i in range(8)])
    assert {len(chart.curves) for chart in overlaid(few)} == {8}
    many = studied([new_run(f"y{i}", steps=2, beta=i / 10) for i in range(9)])
    assert {len(chart.curves) for chart in overlaid(many)} == {1}


def test_the_folder_that_comparing_leaves_behind(new_run, tmp_path):
    folders = [new_run("p", steps=12), new_run("q", steps=12, beta=1.0)]
    (folders[1] / "run.json").unlink()
    for folder in folders:
        (folder / "metrics.jsonl").write_text(
            "".join(f'{{"step": {i}, "reward/accuracy": 0.5}}\n' for i in range(1, 13))
        )
    page = write_comparison([*folders, folders[0]], tmp_path / "out")
    text = page.read_text()
    assert page == tmp_path / "out" / "comparison.html"
    assert "2 runs compared" in text
    assert "q: run.json is missing" in text
    figures = {path.name for path in (tmp_path / "out" / "figures").iterdir()}
    assert figures == {
        f"{name}.{e}"
        for name in ("compared-training-accuracy", "sensitivity-method-beta")
        for e in ("svg", "pdf")
    }
    rows = list(csv.reader((tmp_path / "out" / "tables" / "main.csv").open()))
    assert rows[0] == ["Method", "tiny-test", "Seeds"]
