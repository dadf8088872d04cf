import csv
import io

import pytest

from pivot.report.tables import Column, Row, Table, to_csv, to_html, to_latex, to_markdown, write_tables

TABLE = Table(
    "main",
    "Accuracy: 3B, %",
    "Method",
    (Column("Geo3K"), Column("s / step", best="low", form=".1f"), Column("Δ, %", best=None, form="+.2f")),
    (
        Row("base", (90.0, 1.0, None), ranked=False),
        Row("dapo", (41.604, 7.0, None), spreads=(0.5, None, None), rule_above=True),
        Row("vppo", (43.16, 8.3, -1.58)),
        Row("pivot", (43.07, 8.6, 11.27)),
    ),
)


def test_markdown_by_hand():
    assert to_markdown(TABLE) == (
        "| Method | Geo3K | s / step | Δ, % |\n"
        "| :-- | --: | --: | --: |\n"
        "| base | 90.00 | 1.0 | – |\n"
        "| dapo | 41.60 ± 0.50 | **7.0** | – |\n"
        "| vppo | **43.16** | <u>8.3</u> | −1.58 |\n"
        "| pivot | <u>43.07</u> | 8.6 | +11.27 |\n"
        "\nAccuracy: 3B, %\n"
    )


def test_thousands_are_separated_and_ranked():
    rows = tuple(Row(name, (number,)) for name, number in (("a", 1022), ("b", 999)))
    table = Table("answers", "Answers", "Answer", (Column("Responses", form=",d"),), rows)
    assert "| a | **1,022** |" in to_markdown(table)
    assert "1,022" in to_html(table)


def test_latex_by_hand():
    text = to_latex(TABLE)
    assert r"\textbf{Method} & \textbf{Geo3K} & \textbf{s / step} & \textbf{$\Delta$, \%} \\" in text
    assert "\\midrule\ndapo & 41.60 $\\pm$ 0.50 & \\textbf{7.0} & -- \\\\\n" in text
    assert r"pivot & \underline{43.07} & 8.6 & +11.27 \\" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert r"\label{tab:main}" in text


def test_csv_has_the_full_numbers_and_a_column_for_deviations():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows[0] == ["Method", "Geo3K", "s / step", "Δ, %", "Geo3K std"]
    assert rows[2] == ["dapo", "41.604", "7.0", "", "0.5"]
    assert rows[4] == ["pivot", "43.07", "8.6", "11.27", ""]


def test_csv_cells_that_a_spreadsheet_would_run_are_quoted():
    names = ("=1+1", "+1", "-1", "@x", "\t=1")
    table = Table("t", "", "=A1", (Column("-x"),), tuple(Row(name, (-1.5,), note=name) for name in names))
    rows = list(csv.reader(io.StringIO(to_csv(table))))
    assert rows[0] == ["'=A1", "'-x", "Note"]
    assert rows[1:] == [[f"'{name}", "-1.5", f"'{name}"] for name in names]


def test_html_marks_best_and_second():
    text = to_html(TABLE)
    assert "<td><b>43.16</b></td>" in text
    assert "<td><u>43.07</u></td>" in text
    assert '<tr class="rule"><th scope="row">dapo</th>' in text


def test_a_note_stands_in_a_last_column_of_its_row():
    rows = (Row("a", (1.0,), note="8 samples & 5% | <b>"), Row("b", (2.0,), spreads=(0.5,)))
    table = Table("t", "", "Model", (Column("x"),), rows)
    assert to_markdown(table).splitlines()[:4] == [
        "| Model | x | Note |",
        "| :-- | --: | :-- |",
        r"| a | 1.00 | 8 samples &amp; 5% \| &lt;b&gt; |",
        "| b | **2.00 ± 0.50** |  |",
    ]
    latex = to_latex(table)
    assert r"\begin{tabular}{lrp{0.3\linewidth}}" in latex
    assert r"a & 1.00 & 8 samples \& 5\% | <b> \\" in latex
    assert r"b & \textbf{2.00 $\pm$ 0.50} &  \\" in latex
    assert list(csv.reader(io.StringIO(to_csv(table)))) == [
        ["Model", "x", "x std", "Note"],
        ["a", "1.0", "", "8 samples & 5% | <b>"],
        ["b", "2.0", "0.5", ""],
    ]
    assert '<td class="note">8 samples &amp; 5% | &lt;b&gt;</td>' in to_html(table)


def test_numbers_that_print_alike_share_their_place():
    rows = (Row("a", (1.001,)), Row("b", (1.004,)), Row("c", (0.5,)))
    text = to_markdown(Table("t", "", "", (Column("x"),), rows))
    assert "| a | **1.00** |\n| b | **1.00** |\n| c | <u>0.50</u> |" in text


def test_a_lone_number_wins_nothing_and_of_two_only_one_is_marked():
    lone = Table("t", "", "", (Column("x"),), (Row("a", (1.0,)), Row("b", (None,))))
    assert "**" not in to_markdown(lone)
    two = to_markdown(Table("t", "", "", (Column("x"),), (Row("a", (1.0,)), Row("b", (2.0,)))))
    assert "| a | 1.00 |\n| b | **2.00** |" in two


@pytest.mark.parametrize(
    "hostile", ["<script>alert(1)</script>", "a|b", r"\input{x} & 5% $_^~#{}", "</style>"]
)
def test_labels_cannot_break_out(hostile):
    table = Table("t", hostile, hostile, (Column(hostile, best=None),), (Row(hostile, (hostile,)),))
    assert "<script" not in to_html(table)
    assert "<script" not in to_markdown(table)
    assert "</style" not in to_html(table)
    assert all(line.replace(r"\|", "").count("|") == 3 for line in to_markdown(table).splitlines()[:3])
    assert r"\input" not in to_latex(table)
    assert list(csv.reader(io.StringIO(to_csv(table))))[1] == [hostile, hostile]


def test_files_of_every_format(tmp_path):
    write_tables([TABLE], tmp_path / "tables")
    assert sorted(p.name for p in (tmp_path / "tables").iterdir()) == ["main.csv", "main.md", "main.tex"]
    assert (tmp_path / "tables" / "main.md").read_text() == to_markdown(TABLE)


def test_csv_numbers_have_six_digits():
    table = Table("t", "c", "Method", (Column("x"),), (Row("a", (100 / 3,)), Row("b", (7,))))
    assert to_csv(table) == "Method,x\na,33.3333\nb,7\n"
