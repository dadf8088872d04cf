"""Which charts a run has to show: each is drawn from the keys that its method logged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pivot.report.charts import Chart, Curve, Estimate, HeatMap, IntervalChart, LineChart, StackChart, short
from pivot.report.curves import bin_means, smooth
from pivot.report.run import Run, is_number

MOST_BINS = 120
PHASES = ("rollout", "score", "update", "anchors", "verify", "other")


@dataclass(frozen=True)
class Panel:
    """A line chart of some metrics; it is left out where none of them was logged."""

    title: str
    note: str
    keys: dict[str, str]
    """Metric -> its label."""
    percent: bool = False
    from_zero: bool = False
    dots: bool = False
    smoothed: bool = True


TRAINING = (
    Panel(
        "Training accuracy",
        "Correct responses among all rollouts, before filtering",
        {"reward/accuracy": "training"},
        percent=True,
    ),
    Panel(
        "Validation accuracy",
        "On held-out prompts",
        {"eval/accuracy": "validation"},
        percent=True,
        dots=True,
        smoothed=False,
    ),
    Panel("Reward", "Accuracy and format, as the advantages see it", {"reward/mean": "reward"}),
    Panel("Response length", "Tokens, mean over rollouts", {"rollout/length_mean": "mean"}, from_zero=True),
    Panel("Entropy", "Mean token entropy, nats", {"rollout/entropy": "entropy"}, from_zero=True),
    Panel(
        "Groups per step",
        "Trained on, asked for, and sampled to get them",
        {
            "rollout/groups": "sampled",
            "rollout/groups_wanted": "asked for",
            "rollout/groups_kept": "trained on",
        },
        from_zero=True,
        smoothed=False,
    ),
    Panel("Gradient norm", "Before clipping, mean over updates", {"optim/grad_norm": "norm"}, from_zero=True),
    Panel(
        "Visual support",
        "Mean c of correct and of wrong responses (Eq. 10)",
        {"visual/support_correct": "correct", "visual/support_wrong": "wrong"},
    ),
    Panel(
        "Visual utility",
        "Quantiles of U over tokens (Eq. 13)",
        {f"visual/utility_p{q}": f"{int(q)}%" for q in ("95", "75", "50", "25", "05")},
    ),
    Panel(
        "Format and truncation",
        "Share of responses",
        {"reward/format": "in form", "rollout/truncated_share": "truncated"},
        percent=True,
    ),
)
BUFFER = (
    Panel(
        "Rows",
        "Prompts in the buffer; the eligible ones can be replayed",
        {"buffer/size": "all", "buffer/eligible": "eligible"},
        from_zero=True,
        smoothed=False,
    ),
    Panel(
        "Accuracy by source",
        "Correct responses of fresh and of replayed prompts",
        {"reward/fresh_accuracy": "fresh", "reward/replay_accuracy": "replayed"},
        percent=True,
    ),
    Panel(
        "Replay share",
        "Replayed groups among those trained on",
        {"buffer/replay_share": "share"},
        percent=True,
        from_zero=True,
        smoothed=False,
    ),
    Panel(
        "Age",
        "Steps, mean over the anchors drawn",
        {"buffer/score_age": "of scores", "buffer/anchor_age": "of responses"},
        from_zero=True,
        smoothed=False,
    ),
)


def line_charts(run: Run, panels: tuple[Panel, ...]) -> list[Chart]:
    """The charts of a group of panels, with a mark where replay started."""
    marks = replay_start(run)
    charts: list[Chart] = []
    for panel in panels:
        logged = [(label, run.series(key)) for key, label in panel.keys.items()]
        curves = tuple(
            Curve(label, series.steps, series.values, smooth(series) if panel.smoothed else None, colour=i)
            for i, (label, series) in enumerate(logged)
            if len(series)
        )
        if curves:
            name = panel.title.lower().replace(" ", "-")
            chart = LineChart(name, panel.title, panel.note, curves, percent=panel.percent, dots=panel.dots)
            charts.append(replace(chart, from_zero=panel.from_zero, marks=marks, span=run.span))
    return charts


def replay_start(run: Run) -> tuple[tuple[float, str], ...]:
    active = run.series("buffer/replay_active")
    opened = active.steps[active.values > 0]
    return ((float(opened[0]), "replay starts"),) if len(opened) else ()


def success_histogram(run: Run) -> list[Chart]:
    """Rows of the buffer by success rate over the steps, as shares of a step's rows."""
    key = "buffer/success_histogram"
    lines = [m for m in run.metrics if isinstance(m.get(key), list) and all(is_number(n) for n in m[key])]
    if not lines or not lines[-1][key]:
        return []
    width = len(lines[-1][key])
    lines = [line for line in lines if len(line[key]) == width]
    counts = np.array([line[key] for line in lines], dtype=float)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    steps, shares = bin_means(np.array([line["step"] for line in lines], dtype=float), shares, MOST_BINS)
    edges = tuple(short(i / width) for i in range(width + 1))
    note = "Rows of the buffer by success rate, share of the step"
    return [HeatMap("success-rates", "Success rates", note, steps, shares.T, edges, "success rate")]


def phase_times(run: Run) -> list[Chart]:
    """Seconds of each phase, stacked; averaged over neighbouring steps of long runs."""
    phases = [p for p in PHASES if len(run.series(f"time/{p}"))]
    lines = [m for m in run.metrics if phases and all(is_number(m.get(f"time/{p}")) for p in phases)]
    if not lines:
        return []
    seconds = np.array([[line[f"time/{p}"] for p in phases] for line in lines], dtype=float)
    steps, seconds = bin_means(np.array([line["step"] for line in lines], dtype=float), seconds, MOST_BINS)
    return [StackChart("phases", "Seconds a step", "By phase, stacked", steps, tuple(phases), seconds.T)]


def phase_shares(run: Run) -> list[tuple[str, float, float]]:
    """(phase, mean seconds a step, share of all), over the steps that logged them."""
    means = {p: float(run.series(f"time/{p}").values.mean()) for p in PHASES if len(run.series(f"time/{p}"))}
    whole = sum(means.values()) or 1.0
    return [(phase, seconds, seconds / whole) for phase, seconds in means.items()]


def evaluation_charts(run: Run) -> list[Chart]:
    """Before, after and blank-image accuracy with intervals; and pass@k where several k were counted."""
    rows: dict[str, list[Estimate]] = {}
    for evaluation in run.evaluations:
        low, high = interval(evaluation)
        when, blank = str(evaluation.get("when") or "evaluated"), bool(evaluation.get("blank"))
        estimate = Estimate(when, float(evaluation["accuracy"]), low, high, hollow=blank)
        rows.setdefault(str(evaluation.get("name", "evaluation")), []).append(estimate)
    if not rows:
        return []
    note = "With confidence intervals; rings: blank image"
    whole = tuple((name, tuple(estimates)) for name, estimates in rows.items())
    return [IntervalChart("evaluation", "Accuracy", note, whole), *_pass_at_k(run)]


def evaluation_label(evaluation: dict) -> str:
    blank = ", blank image" if evaluation.get("blank") else ""
    return f"{evaluation.get('when') or 'evaluated'}{blank}"


def interval(evaluation: dict) -> tuple[float | None, float | None]:
    """The confidence interval, (None, None) where it was not measured."""
    given = evaluation.get("interval")
    if isinstance(given, list) and len(given) == 2 and all(is_number(n) for n in given):
        return float(given[0]), float(given[1])
    return None, None


def _pass_at_k(run: Run) -> list[Chart]:
    by_name: dict[str, list[Curve]] = {}
    for evaluation in run.evaluations:
        counted = evaluation.get("pass_at_k")
        if evaluation.get("blank") or not isinstance(counted, dict):
            continue
        pairs = sorted((int(k), float(v)) for k, v in counted.items() if k.isdigit() and is_number(v))
        if len(pairs) > 1:
            curves = by_name.setdefault(str(evaluation.get("name", "evaluation")), [])
            ks, values = np.array(pairs, dtype=float).T
            curves.append(Curve(evaluation_label(evaluation), ks, values, colour=len(curves)))
    note = "At least one of k samples is correct"
    return [
        LineChart(
            f"pass-at-k-{i}", f"pass@k, {name}", note, tuple(curves), x_label="k", percent=True, dots=True
        )
        for i, (name, curves) in enumerate(by_name.items(), start=1)
    ]
