"""The training, buffer and time charts of a run, each drawn from the metrics that its method logged."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pivot.report.charts import Chart, Curve, HeatMap, LineChart, StackChart, short
from pivot.report.run import RunData, is_number
from pivot.report.series import bin_means, smooth

MOST_BINS = 120
PHASES = ("rollout", "score", "update", "anchors", "verify", "other")


@dataclass(frozen=True)
class Panel:
    """A line chart of some metrics, left out if none of them was logged."""

    title: str
    note: str
    keys: dict[str, str]
    """Metric -> its label in the legend."""
    percent: bool = False
    from_zero: bool = False
    dots: bool = False
    smoothed: bool = True

    def chart(self, curves: tuple[Curve, ...], prefix: str = "") -> LineChart:
        name = prefix + self.title.lower().replace(" ", "-")
        chart = LineChart(name, self.title, self.note, curves, percent=self.percent, dots=self.dots)
        return replace(chart, from_zero=self.from_zero)


TRAINING = (
    Panel(
        "Training accuracy",
        "Share of correct rollouts, before filtering",
        {"reward/accuracy": "training"},
        percent=True,
    ),
    Panel(
        "Validation accuracy",
        "Mean over samples of held-out prompts",
        {"eval/accuracy": "validation"},
        percent=True,
        dots=True,
        smoothed=False,
    ),
    Panel("Reward", "Accuracy and format reward, mean over rollouts", {"reward/mean": "reward"}),
    Panel(
        "Response length",
        "Tokens, mean over rollouts",
        {"rollout/length_mean": "mean"},
        from_zero=True,
    ),
    Panel("Entropy", "Nats per token, mean over rollouts", {"rollout/entropy": "entropy"}, from_zero=True),
    Panel(
        "Groups per step",
        "Sampled, requested, and trained on after filtering",
        {
            "rollout/groups": "sampled",
            "rollout/groups_wanted": "requested",
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
        "Quantiles of U over all tokens (Eq. 13)",
        {f"visual/utility_p{q}": f"{int(q)}%" for q in ("95", "75", "50", "25", "05")},
    ),
    Panel(
        "Format and truncation",
        "Share of responses",
        {"reward/format": "well-formed", "rollout/truncated_share": "truncated"},
        percent=True,
    ),
)
BUFFER = (
    Panel(
        "Buffer size",
        "Prompts; eligible ones can be replayed",
        {"buffer/size": "all", "buffer/eligible": "eligible"},
        from_zero=True,
        smoothed=False,
    ),
    Panel(
        "Accuracy by source",
        "Correct rollouts of fresh and replayed prompts",
        {"reward/fresh_accuracy": "fresh", "reward/replay_accuracy": "replayed"},
        percent=True,
    ),
    Panel(
        "Replay share",
        "Share of replayed groups among those trained on",
        {"buffer/replay_share": "share"},
        percent=True,
        from_zero=True,
        smoothed=False,
    ),
    Panel(
        "Informative groups",
        "Sampled groups that are neither all right nor all wrong, by source",
        {"buffer/informative_fresh": "fresh", "buffer/informative_replayed": "replayed"},
        percent=True,
        from_zero=True,
    ),
    Panel(
        "Age",
        "Steps since recorded, mean over anchors",
        {"buffer/score_age": "scores", "buffer/anchor_age": "responses"},
        from_zero=True,
        smoothed=False,
    ),
)


def line_charts(run: RunData, panels: tuple[Panel, ...]) -> list[LineChart]:
    """The charts of some panels, with a mark at the step where replay starts."""
    marks = replay_start(run)
    charts: list[LineChart] = []
    for panel in panels:
        logged = [(label, run.series(key)) for key, label in panel.keys.items()]
        curves = tuple(
            Curve(label, series.steps, series.values, smooth(series) if panel.smoothed else None, colour=i)
            for i, (label, series) in enumerate(logged)
            if len(series)
        )
        if curves:
            charts.append(replace(panel.chart(curves), marks=marks, span=run.span))
    return charts


def replay_start(run: RunData) -> tuple[tuple[float, str], ...]:
    active = run.series("buffer/replay_active")
    opened = active.steps[active.values > 0]
    return ((float(opened[0]), "replay starts"),) if len(opened) else ()


def success_histogram(run: RunData) -> list[Chart]:
    """Success rates of the buffer's prompts over the steps, as shares of all prompts in the buffer."""
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
    note = "Prompts in the buffer by success rate; darker is more"
    return [HeatMap("success-rates", "Success rates", note, steps, shares.T, edges, "success rate")]


def phase_times(run: RunData) -> list[Chart]:
    """Seconds of each phase, stacked; neighbouring steps of long runs are averaged."""
    phases = [p for p in PHASES if len(run.series(f"time/{p}"))]
    lines = [m for m in run.metrics if phases and all(is_number(m.get(f"time/{p}")) for p in phases)]
    if not lines:
        return []
    seconds = np.array([[line[f"time/{p}"] for p in phases] for line in lines], dtype=float)
    steps, seconds = bin_means(np.array([line["step"] for line in lines], dtype=float), seconds, MOST_BINS)
    return [StackChart("phases", "Seconds per step", "By phase, stacked", steps, tuple(phases), seconds.T)]


def phase_shares(run: RunData) -> list[tuple[str, float, float]]:
    """(phase, mean seconds per step, share of the total), over the steps that logged it."""
    means = {p: float(run.series(f"time/{p}").values.mean()) for p in PHASES if len(run.series(f"time/{p}"))}
    whole = sum(means.values()) or 1.0
    return [(phase, seconds, seconds / whole) for phase, seconds in means.items()]
