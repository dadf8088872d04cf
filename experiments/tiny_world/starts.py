"""Starting checkpoints of worlds that do not start from a shipped one.

A start is made by a short supervised phase after a shipped checkpoint, or after a shortened first phase. It is
counted in steps and seeded, so it is the same everywhere; the first cell that needs it makes it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from pivot.tiny.procedural.chain import Words


@dataclass(frozen=True)
class Start:
    """How a world's starting point is made.

    Example:
        Start(origin="tiny-hard", habit_steps=160, guess_by_wording=(0.1, 0.3, 0.5), misperceive=0.2, words="many")
    """

    origin: str = ""
    """A shipped checkpoint, or `nothing`; empty: the world starts from the recipe's model."""
    skill_steps: int = 0
    """Steps of right chains, for origin `nothing`; fewer than the shipped checkpoints' means a weaker reader."""
    word_steps: int = 0
    """Steps of right chains in this start's words, before the habits."""
    habit_steps: int = 0
    """Steps of habits after that."""
    guess_by_wording: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Probability of a guess for each of the three phrasings."""
    misperceive: float = 0.0
    """Probability that a percept is named from the language prior."""
    words: Words = "usual"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]


def start_path(start: Start, folder: Path) -> Path:
    """The start's checkpoint in `folder`, made now if it is not there; one process makes it, others wait."""
    path = folder / f"start-{start.digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / f"start-{start.digest}.lock"):
        if not path.is_dir():
            unfinished = path.with_name(f"{path.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _make(start, unfinished)
            unfinished.rename(path)
    return path


def _make(start: Start, path: Path) -> None:
    from pivot.models.loading import load_policy
    from pivot.tiny.habits import Habits, skilled
    from pivot.tiny.model import build_model, save
    from pivot.tiny.pretrain import Phase, Plan
    from pivot.tiny.tokenizer import build_tokenizer

    plan, tokenizer = Plan(), build_tokenizer()
    if start.origin == "nothing":
        model = build_model(tokenizer, seed=plan.seed)
        rates = [plan.skill_rate(step) for step in range(start.skill_steps)]
        Phase(tokenizer, model, skilled, f"skill {plan.seed}", plan).run(rates, _silent, weighted=True)
    else:
        model = load_policy(start.origin).model
    first, second, third = start.guess_by_wording
    right = Habits((0.0, 0.0, 0.0), 0.0, start.words)
    habits = Habits((first, second, third), start.misperceive, start.words)
    for taught, steps in ((right, start.word_steps), (habits, start.habit_steps)):
        phase = Phase(tokenizer, model, taught.respond, f"start {start.digest}", plan)
        phase.run([plan.habit_lr] * steps, _silent)
    save(model, tokenizer, path)


def _silent(phase: str, loss: float) -> None:
    pass


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its process."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
