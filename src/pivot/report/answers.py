"""The run page's section about rewarded answers: by which path, which ones most, and with other text than the truth."""

from __future__ import annotations

from collections import Counter, defaultdict

from pivot.report import panels
from pivot.report.charts import Chart
from pivot.report.page import Page
from pivot.report.panels import Panel
from pivot.report.run import RunData
from pivot.report.tables import Column, Row, Table, to_html
from pivot.runs.answers import MANY_TRUTHS, AnswerWatch
from pivot.terminal import printable

CHARTS = (
    Panel(
        "Rewards by path",
        "Rewarded responses by the part of the verifier that decided",
        {f"answers/path_{name}": name for name in ("fast", "structured", "library")},
        from_zero=True,
        smoothed=False,
    ),
    Panel(
        "Answers",
        "Solved prompts with the most frequent answer; rewards whose text is not the truth's",
        {"answers/top_share": "most frequent answer", "answers/differing_share": "other text"},
        percent=True,
        from_zero=True,
    ),
)
MOST_ROWS = 25
"""Of a table."""
INTRO = (
    "Which boxed answers earned rewards. A policy that finds a hole in the reward gives one answer to many prompts: "
    "look for an answer that is rewarded across prompts with different truths."
)


def add_answers(page: Page, run: RunData) -> list[Chart]:
    """Add the section; runs without these metrics have none."""
    charts = panels.line_charts(run, CHARTS)
    rows = [row for row in run.metrics if row.get("answers/top")]
    if not rows:
        return charts
    suspicious = AnswerWatch(run.metrics).suspicious
    tables = [_most_rewarded(rows), _differing(rows, suspicious)]
    shown = "".join(to_html(table) for table in tables if table.rows)
    steps = f"<details><summary>By step</summary>{to_html(_by_step(rows))}</details>"
    page.add("answers", "Rewarded answers", page.charts(charts) + shown + steps, _intro(suspicious))
    return charts


def _intro(suspicious: dict[str, list[str]]) -> str:
    if not suspicious:
        return f"{INTRO} No answer was rewarded for {MANY_TRUTHS} or more different truths."
    worst = max(suspicious, key=lambda answer: len(suspicious[answer]))
    return (
        f"{INTRO} Suspicious: {len(suspicious)} answers were rewarded for {MANY_TRUTHS} or more different truths, "
        f"above all “{printable(worst)}”, for {len(suspicious[worst])} of them."
    )


def _most_rewarded(rows: list[dict]) -> Table:
    prompts: Counter[str] = Counter()
    responses: Counter[str] = Counter()
    truths: Counter[str] = Counter()
    for row in rows:
        for answer, num_prompts, num_responses, num_truths in row["answers/top"]:
            prompts[answer] += num_prompts
            responses[answer] += num_responses
            truths[answer] = max(truths[answer], num_truths)
    columns = (
        Column("Prompts", best=None, form=",d"),
        Column("Responses", best=None, form=",d"),
        Column("Truths in one step", best=None, form="d"),
    )
    found = tuple(
        Row(printable(answer), (count, responses[answer], truths[answer]))
        for answer, count in prompts.most_common(MOST_ROWS)
    )
    caption = "Most rewarded: sums over the steps in which an answer was among the five most frequent"
    return Table("answers", caption, "Answer", columns, found)


def _differing(rows: list[dict], suspicious: dict[str, list[str]]) -> Table:
    responses: Counter[tuple[str, str, str]] = Counter()
    steps: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for row in rows:
        for answer, truth, path, count in row.get("answers/differing", ()):
            responses[answer, truth, path] += count
            steps[answer, truth, path].append(row["step"])
    order = sorted(responses, key=lambda pair: (-len(suspicious.get(pair[0], ())), -responses[pair], pair))
    found = tuple(
        Row(
            printable(pair[0]),
            (printable(pair[1]), pair[2] or "function", responses[pair], _span(steps[pair])),
            note=f"rewarded for {len(suspicious[pair[0]])} different truths" if pair[0] in suspicious else "",
        )
        for pair in order[:MOST_ROWS]
    )
    columns = (
        Column("Truth", best=None),
        Column("Path", best=None),
        Column("Responses", best=None, form=",d"),
        Column("Steps", best=None),
    )
    caption = f"Rewarded with other text than the truth's: {len(found)} of {len(order)} pairs"
    return Table("differing", caption, "Answer", columns, found)


def _by_step(rows: list[dict]) -> Table:
    found = tuple(
        Row(
            f"{row['step']}",
            (", ".join(f"{printable(answer)} ({prompts})" for answer, prompts, *_ in row["answers/top"]),),
        )
        for row in rows[-2 * MOST_ROWS :]
    )
    caption = f"The most frequent rewarded answers and the prompts they solved: the last {len(found)} steps"
    return Table("answers-by-step", caption, "Step", (Column("Answers", best=None),), found)


def _span(steps: list[int]) -> str:
    return f"{steps[0]}" if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
