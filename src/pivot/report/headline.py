"""The few numbers at the top of a run's page."""

from __future__ import annotations

from html import escape

from pivot.report.charts import short
from pivot.report.run import Run


def headline(run: Run) -> str:
    """Tiles, each only where its numbers were logged."""
    tiles = [_evaluation(run), _validation(run), _training(run), _utility(run), _buffer(run), _time(run)]
    shown = "".join(tile for tile in tiles if tile)
    return f'<div class="tiles">{shown}</div>' if shown else ""


def _tile(name: str, label: str, value: str, detail: str) -> str:
    """`value` and `detail` are markup made here; `label` may come from the run."""
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


def _evaluation(run: Run) -> str:
    """The first benchmark that was evaluated before and after, images shown."""
    seen = {
        (e.get("name"), e.get("when")): float(e["accuracy"]) for e in run.evaluations if not e.get("blank")
    }
    for (name, when), after in seen.items():
        if when == "after":
            before = seen.get((name, "before"))
            detail = "after training" if before is None else _change(before, after)
            return _tile("evaluation", f"Accuracy on {name}", _share(after), detail)
    return ""


def _validation(run: Run) -> str:
    series = run.series("eval/accuracy")
    if not len(series):
        return ""
    best = int(series.values.argmax())
    detail = f"best {100 * series.values[best]:.1f}% at step {series.steps[best]:g}"
    return _tile("validation", "Validation accuracy", _share(float(series.values[-1])), detail)


def _training(run: Run) -> str:
    series = run.series("reward/accuracy")
    if not len(series):
        return ""
    return _tile("training", "Training accuracy", _share(series.values[-1]), _change(*series.values[[0, -1]]))


def _utility(run: Run) -> str:
    correct, wrong = run.series("visual/support_correct").last, run.series("visual/support_wrong").last
    if correct is None or wrong is None:
        return ""
    value = f"{correct:+.3f}".replace("-", "−")
    return _tile("support", "Visual support, correct", value, f"wrong {wrong:+.3f}".replace("-", "−"))


def _buffer(run: Run) -> str:
    size, eligible = run.series("buffer/size").last, run.series("buffer/eligible").last
    if size is None:
        return ""
    detail = "rows" if eligible is None else f"rows, {eligible:,.0f} eligible"
    return _tile("buffer", "Experience buffer", f"{size:,.0f}", detail)


def _time(run: Run) -> str:
    series = run.series("time/step")
    if not len(series):
        return ""
    hours = series.values.sum() / 3600
    whole = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    value = f"{short(float(series.values.mean()))}<small> s</small>"
    return _tile("time", "Mean time a step", value, f"{len(series)} steps in {whole}")
