"""The section about rewarded answers."""

import json

from pivot.report import write_report

ROWS = [
    {"step": 1, "answers/path_fast": 7, "answers/path_structured": 0, "answers/path_library": 2,
     "answers/top_share": 0.5, "answers/differing_share": 0.25,
     "answers/top": [["3", 4, 9, 1], ["<b>hole\x1b</b>", 2, 2, 2]],
     "answers/differing": [["<b>hole\x1b</b>", "7", "library", 2], ["0.5", "1/2", "fast", 6]]},
    {"step": 2, "answers/path_fast": 3, "answers/path_structured": 1, "answers/path_library": 4,
     "answers/top_share": 0.75, "answers/differing_share": 0.5,
     "answers/top": [["<b>hole\x1b</b>", 3, 5, 2]],
     "answers/differing": [["<b>hole\x1b</b>", "7", "library", 1], ["<b>hole\x1b</b>", "9", "library", 4]]},
    {"step": 3, "answers/top": 5, "answers/differing": ["x", ["y"], [1, 2, 3, 4], None]},
]  # fmt: skip


def page_of(tmp_path, rows):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(tmp_path, figures=False).read_text()
    return text[text.find('id="answers"') :] if 'id="answers"' in text else ""


def test_tables_charts_and_the_alarm(tmp_path):
    section = page_of(tmp_path, ROWS)
    hole = "&lt;b&gt;hole\\u001b&lt;/b&gt;"
    assert f'<th scope="row">{hole}</th><td>5</td><td>7</td><td>2</td>' in section
    assert f'<th scope="row">{hole}</th><td>7</td><td>library</td><td>3</td><td>1 to 2</td>' in section
    assert '<th scope="row">0.5</th><td>1/2</td><td>fast</td><td>6</td><td>1</td>' in section
    assert f"3 (4), {hole} (2)" in section
    assert "No answer was rewarded for 3 or more different truths" in section
    assert "Rewards by path" in section
    third = ROWS[1] | {"step": 4, "answers/differing": [["<b>hole\x1b</b>", "11", "library", 1]]}
    section = page_of(tmp_path, [*ROWS, third])
    assert f"above all “{hole}”, for 3 of them" in section
    assert section.count("rewarded for 3 different truths") == 3


def test_a_run_of_an_earlier_version_has_no_section(tmp_path):
    assert page_of(tmp_path, [{"step": 1, "reward/accuracy": 0.5}]) == ""
