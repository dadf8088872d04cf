"""`pivot report`: the page and the figures of one run."""

from __future__ import annotations

import json
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from pivot.durable import write_bytes
from pivot.report import panels
from pivot.report.charts import Chart, short
from pivot.report.curves import smoothing_width
from pivot.report.evaluation import category_table, evaluation_table
from pivot.report.figures import save_figures
from pivot.report.headline import headline
from pivot.report.page import Page, definition_list
from pivot.report.rollouts import telling_groups
from pivot.report.run import Run, read_run
from pivot.report.tables import to_html
from pivot.report.token_figure import save_token_figures


def write_report(run_dir: Path | str, *, figures: bool = True) -> Path:
    """Write `report.html` and `figures/` into a run's folder and return the page's path.

    Works on whatever a finished, running or crashed run has left behind; the page names what is missing.
    The page takes a moment, the figures some seconds: without them a running trainer can refresh it often.
    """
    run = read_run(run_dir)
    page = Page(title=f"{run.name} · {run.method} · pivot", brand="pivot")
    page.groups = telling_groups(run)
    charts = [*_training(page, run), *_evaluation(page, run)]
    _token_map(page)
    charts += [*_buffer(page, run), *_time(page, run)]
    _setup(page, run)
    page.header = _header(run)
    path = run.folder / "report.html"
    write_bytes(path, page.html().encode("utf-8", "backslashreplace"))
    if figures:
        save_figures(charts, run.folder / "figures")
        save_token_figures(page.groups, run.folder / "figures")
    return path


def _header(run: Run) -> str:
    planned = run.setting("train.steps")
    progress = f"step {run.num_steps}" + (f" of {planned}" if planned else "")
    known = run.status if run.status in ("finished", "running", "stopped", "failed") else ""
    said = ((run.method, ""), (run.status, known), (progress, ""))
    chips = "".join(f'<span class="chip {style}">{escape(text)}</span>' for text, style in said)
    facts = [run.setting("model.path"), run.setting("data.train")]
    lead = ", trained on ".join(str(fact) for fact in facts if fact) + _ending(run)
    gaps = "".join(f"<li>{escape(gap)}</li>" for gap in run.gaps)
    missing = f'<aside class="gaps"><b>Not all is here</b><ul>{gaps}</ul></aside>' if gaps else ""
    title = f'<div class="chips">{chips}</div><h1>{escape(run.name)}</h1><p class="lead">{escape(lead)}</p>'
    return title + headline(run) + missing


def _ending(run: Run) -> str:
    """How a run that did not finish ended, or when it was last heard of."""
    if run.status in ("failed", "stopped"):
        return f". It {run.status}: {run.info.get('reason') or 'no reason was recorded'}"
    metrics = run.folder / "metrics.jsonl"
    if run.status == "running" and metrics.is_file():
        last = datetime.fromtimestamp(metrics.stat().st_mtime).strftime("%d %B %Y, %H:%M")
        return f". Still running, or killed without a word; its last step was written on {last}"
    return ""


def _training(page: Page, run: Run) -> list[Chart]:
    charts = panels.line_charts(run, panels.TRAINING)
    if charts:
        width = round(smoothing_width(run.series("step")))
        intro = (
            f"Strong lines are smoothed (Gaussian, σ = {width} steps), faint lines are the steps as logged."
        )
        page.add("training", "Training dynamics", page.charts(charts), intro)
    return charts


def _evaluation(page: Page, run: Run) -> list[Chart]:
    charts = panels.evaluation_charts(run)
    if charts:
        intro = (
            "Before and after training, with confidence intervals. With a blank image the model sees nothing:"
            " what it still solves there needs no eyes."
        )
        inside = page.charts(charts) + to_html(evaluation_table(run))
        categories = category_table(run)
        if categories is not None:
            inside += f"<details><summary>By category</summary>{to_html(categories)}</details>"
        page.add("evaluation", "Evaluation", inside, intro)
    return charts


def _token_map(page: Page) -> None:
    if not page.groups:
        return
    intro = (
        "Each token is coloured by what the image does for it: warm is high, blue is below zero. Point at a "
        "token, or walk with the arrow keys, for all its numbers; choose another group from the gallery."
    )
    inside = (
        '<div id="token-map"></div><noscript><p class="intro">The token map needs JavaScript.</p></noscript>'
    )
    page.add("tokens", "Token utility map", inside, intro)


def _buffer(page: Page, run: Run) -> list[Chart]:
    if not len(run.series("buffer/size")):
        return []
    charts = [*panels.success_histogram(run), *panels.line_charts(run, panels.BUFFER)]
    megabytes = run.series("buffer/megabytes").last
    size = "" if megabytes is None else f" At the end it held {short(megabytes)} MB."
    intro = f"The experience buffer keeps solved responses; prompts it solves sometimes are replayed.{size}"
    page.add("buffer", "Buffer life", page.charts(charts), intro)
    return charts


def _time(page: Page, run: Run) -> list[Chart]:
    charts = panels.phase_times(run)
    shares = panels.phase_shares(run)
    if not shares:
        return charts
    bar = "".join(f'<span class="c{i}" style="flex:{s:.4f}"></span>' for i, (_, _, s) in enumerate(shares))
    keys = "".join(
        f'<div class="c{i}"><dt>{phase}</dt><dd>{100 * share:.1f}% <small>{short(seconds)} s</small></dd>'
        "</div>"
        for i, (phase, seconds, share) in enumerate(shares)
    )
    bars = f'<div class="shares" aria-hidden="true">{bar}</div><dl class="share-keys">{keys}</dl>'
    summary = f'<div class="wide"><p class="intro">Mean over {len(run.metrics)} steps</p>{bars}</div>'
    drawn = "".join(map(page.chart, charts))
    page.add("time", "Where the time goes", f'<div class="charts">{drawn}{summary}</div>')
    return charts


def _setup(page: Page, run: Run) -> None:
    facts: dict[str, Any] = {"Method": run.method}
    facts |= {"Model": run.setting("model.path"), "Data": run.setting("data.train")}
    facts |= {
        key.capitalize(): value for key, value in run.info.items() if isinstance(value, str | int | float)
    }
    config = escape(json.dumps(run.config, indent=2, ensure_ascii=False))
    folded = (
        f"<details><summary>Resolved configuration</summary><pre>{config}</pre></details>"
        if run.config
        else ""
    )
    page.add("setup", "What was run", definition_list(facts) + folded)
