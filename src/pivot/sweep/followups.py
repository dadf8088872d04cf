"""Commands that a plan runs after its models are trained: token maps, attention."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pivot.sweep.plan import FILLED, PLACEHOLDER, Plan
from pivot.sweep.pool import Command
from pivot.sweep.runs import SweepRun


@dataclass
class FollowUp:
    """A `pivot` command and the runs it reads."""

    words: list[str]
    reads: list[SweepRun]
    log: Path
    done: Path
    """Holds the command once it has succeeded, so that it is not repeated."""
    started: bool = False

    @property
    def label(self) -> str:
        return f"pivot {self.words[0]}"

    @property
    def waits_for(self) -> list[str]:
        """The runs that are not finished."""
        return [run.label for run in self.reads if not run.is_trained]

    @property
    def is_done(self) -> bool:
        return self.done.exists() and self.done.read_text(encoding="utf-8") == shlex.join(self.words)

    def next_command(self) -> Command | None:
        """Asked for again only after the command has succeeded."""
        if not self.started:
            self.started = True
            return Command(self.words, "running")
        self.done.parent.mkdir(parents=True, exist_ok=True)
        self.done.write_text(shlex.join(self.words), encoding="utf-8")
        return None


def results_folder(plan: Plan, runs: Sequence[SweepRun]) -> Path:
    """Where tables and figures of a plan go, beside the runs that other plans may share."""
    return runs[0].folder.parent / "results" / plan.name


def followups(plan: Plan, runs: Sequence[SweepRun]) -> list[FollowUp]:
    """The plan's `then` with `{ARM}`, `{data}`, `{limits}` and `{results}` filled in.

    A command about an arm that `--only` leaves out is left out too.
    """
    first = {run.arm: run for run in reversed(runs)}
    folder = results_folder(plan, runs)
    found: list[FollowUp] = []
    for text in plan.then:
        arms = [name for name in PLACEHOLDER.findall(text) if name not in FILLED]
        if all(name in first for name in arms):
            number = len(found) + 1
            log = folder.parents[1] / "logs" / f"{plan.name}-then-{number}.log"
            reads = [first[name] for name in arms]
            found.append(FollowUp(_fill(text, plan, first), reads, log, folder / f"then-{number}.done"))
    return found


def _fill(text: str, plan: Plan, first: dict[str, SweepRun]) -> list[str]:
    some = next(iter(first.values()))
    wanted = {name: value for name, value in some.eval_settings().items() if name not in ("engine", "grader")}
    limits = [
        w for name, v in wanted.items() if v is not None for w in (f"--{name.replace('_', '-')}", str(v))
    ]
    values = {name: [run.model] for name, run in first.items()}
    values |= {
        "limits": limits,
        "data": plan.sets[:1],
        "results": [str(results_folder(plan, list(first.values())))],
    }
    words: list[str] = []
    for word in shlex.split(text):
        whole = PLACEHOLDER.fullmatch(word)
        words += values[whole[1]] if whole else [PLACEHOLDER.sub(lambda match: values[match[1]][0], word)]
    return words
