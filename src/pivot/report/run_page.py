"""`pivot report`: the page and the figures of one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from pivot.durable import write_bytes
from pivot.report import panels
from pivot.report.answers import add_answers
from pivot.report.charts import Chart, short
from pivot.report.evaluations import category_table, evaluation_charts, evaluation_table
from pivot.report.figures import save_figures
from pivot.report.page import Page, chips, definition_list, gaps_note
from pivot.report.run import RunData, read_run
from pivot.report.series import smoothing_width
from pivot.report.tables import to_html
from pivot.report.tokens import save_token_figures, select_groups


def write_report(run_dir: Path | str, *, figures: bool = True) -> Path:
    """Write `report.html` and `figures/` into a run's folder and return the path of the page.

    The run may be finished, running or crashed; the page lists missing files. The page takes a moment, the figures take
    some seconds.
    """
    run = read_run(run_dir)
    page = Page(title=f"{run.name} · {run.method} · pivot", brand="pivot", has_figures=figures)
    page.groups = select_groups(run)
    charts = [*_training(page, run), *_evaluation(page, run)]
    _token_map(page)
    charts += [*add_answers(page, run), *_buffer(page, run), *_time(page, run)]
    _setup(page, run)
    page.header = _header(run)
    path = run.folder / "report.html"
    write_bytes(path, page.html().encode("utf-8", "backslashreplace"))
    if figures:
        save_figures(charts, run.folder / "figures")
        save_token_figures(page.groups, run.folder / "figures")
    return path


def _header(run: RunData) -> str:
    planned = run.setting("train.steps")
    progress = f"step {run.num_steps}" + (f" of {planned}" if planned else "")
    if budget := run.setting("train.max_responses"):
        progress = f"step {run.num_steps}, at most {budget} responses"
    known = run.status if run.status in ("finished", "running", "stopped", "failed") else ""
    labels = chips(((run.method, ""), (run.status, known), (progress, "")))
    facts = [run.setting("model.path"), run.setting("data.train")]
    lead = ", trained on ".join(str(fact) for fact in facts if fact) + _ending(run)
    title = f'{labels}<h1>{escape(run.name)}</h1><p class="lead">{escape(lead)}</p>'
    return title + _tiles(run) + gaps_note(run.gaps)


def _ending(run: RunData) -> str:
    """How a run that did not finish ended, or when it last wrote a step."""
    if run.status in ("failed", "stopped"):
        return f". It {run.status}: {run.info.get('reason') or 'no reason recorded'}"
    metrics = run.folder / "metrics.jsonl"
    if run.status == "running" and metrics.is_file():
        last = datetime.fromtimestamp(metrics.stat().st_mtime).strftime("%d %B %Y, %H:%M")
        return f". Still running, or killed; its last step was written on {last}"
    return ""


def _tiles(run: RunData) -> str:
    """The headline numbers, as far as they were logged."""
    tiles = (_evaluation_tile, _validation_tile, _training_tile, _support_tile, _buffer_tile, _time_tile)
    shown = "".join(tile(run) for tile in tiles)
    return f'<div class="tiles">{shown}</div>' if shown else ""


def _tile(name: str, label: str, value: str, detail: str) -> str:
    """`value` and `detail` are HTML; `label` is text."""
    return (
        f'<div class="tile" data-tile="{name}"><div class="label">{escape(label)}</div>'
        f'<div class="value">{value}</div><div class="detail">{detail}</div></div>'
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f}<small>%</small>"


def _change(before: float, after: float) -> str:
    points = 100 * (after - before)
    style = "up" if points >= 0 else "down"
    return f'<span class="{style}">{points:+.1f} points</span> from {100 * before:.1f}%'.replace("-", "−")


def _evaluation_tile(run: RunData) -> str:
    """The first benchmark that was evaluated after training, with images shown."""
    seen = {
        (e.get("name"), e.get("when")): float(e["accuracy"]) for e in run.evaluations if not e.get("blank")
    }
    for (name, when), after in seen.items():
        if when == "after":
            before = seen.get((name, "before"))
            detail = "after training" if before is None else _change(before, after)
            return _tile("evaluation", f"Accuracy on {name}", _share(after), detail)
    return ""


def _validation_tile(run: RunData) -> str:
    series = run.series("eval/accuracy")
    if not len(series):
        return ""
    best = int(series.values.argmax())
    detail = f"best {100 * series.values[best]:.1f}% at step {series.steps[best]:g}"
    return _tile("validation", "Validation accuracy", _share(float(series.values[-1])), detail)


def _training_tile(run: RunData) -> str:
    series = run.series("reward/accuracy")
    if not len(series):
        return ""
    return _tile("training", "Training accuracy", _share(series.values[-1]), _change(*series.values[[0, -1]]))


def _support_tile(run: RunData) -> str:
    correct, wrong = run.series("visual/support_correct").last, run.series("visual/support_wrong").last
    if correct is None or wrong is None:
        return ""
    value = f"{correct:+.3f}".replace("-", "−")
    return _tile(
        "support", "Visual support", value, f"of correct responses; wrong {wrong:+.3f}".replace("-", "−")
    )


def _buffer_tile(run: RunData) -> str:
    size, eligible = run.series("buffer/size").last, run.series("buffer/eligible").last
    if size is None:
        return ""
    detail = "prompts" if eligible is None else f"prompts, {eligible:,.0f} eligible"
    return _tile("buffer", "Experience buffer", f"{size:,.0f}", detail)


def _time_tile(run: RunData) -> str:
    series = run.series("time/step")
    if not len(series):
        return ""
    hours = series.values.sum() / 3600
    whole = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    value = f"{short(float(series.values.mean()))}<small> s</small>"
    return _tile("time", "Mean time per step", value, f"{len(series)} steps in {whole}")


def _training(page: Page, run: RunData) -> Sequence[Chart]:
    charts = panels.line_charts(run, panels.TRAINING)
    if charts:
        width = round(smoothing_width(run.series("step")))
        intro = "Values of every step."
        if any(curve.smoothed is not None for chart in charts for curve in chart.curves):
            intro = (
                f"Strong lines are smoothed (Gaussian, σ = {width} steps), faint lines are the logged values."
            )
        page.add("training", "Training dynamics", page.charts(charts), intro)
    return charts


def _evaluation(page: Page, run: RunData) -> list[Chart]:
    charts = evaluation_charts(run)
    if charts:
        intro = (
            "Accuracy before and after training. With a blank image the model sees nothing, so whatever it still "
            "solves comes from the text alone."
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
        "How much each token depends on the image: orange is high, blue is below zero. Point at a token, or move with "
        "the arrow keys, to see all its numbers. Choose another group of responses in the gallery."
    )
    inside = (
        '<div id="token-map"></div><noscript><p class="intro">The token map needs JavaScript.</p></noscript>'
    )
    page.add("tokens", "Token utility map", inside, intro)


def _buffer(page: Page, run: RunData) -> list[Chart]:
    if not len(run.series("buffer/size")):
        return []
    charts = [*panels.success_histogram(run), *panels.line_charts(run, panels.BUFFER)]
    megabytes = run.series("buffer/megabytes").last
    size = "" if megabytes is None else f" At the last step it takes {short(megabytes)} MB."
    intro = f"The experience buffer keeps correct responses; prompts that are solved only sometimes are replayed.{size}"
    page.add("buffer", "Experience buffer", page.charts(charts), intro)
    return charts


def _time(page: Page, run: RunData) -> list[Chart]:
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
    page.add("time", "Time per step", f'<div class="charts">{drawn}{summary}</div>')
    return charts


def _setup(page: Page, run: RunData) -> None:
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
    page.add("setup", "Setup", definition_list(facts) + folded)
