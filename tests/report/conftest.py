"""Run folders as a trainer leaves them, made from a few formulas: what the report's tests read."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

WORDS = (
    "<think>| In| the| figure|,| angle| A| is| |{a}|°| and| angle| B| is| |{b}|°|.| Since| the| angles| of| a"
    "| triangle| sum| to| |180|°|,| x| =| |180| -| |{a}| -| |{b}| =| |{x}|.|\n|</think>| The| answer| is"
    "| \\|boxed|{{|{x}|}}"
)
PHASES = {"rollout": 6.0, "score": 1.4, "update": 3.0, "anchors": 0.5, "verify": 0.1, "other": 0.2}


def triangle(a: int, b: int, corrupted: bool, rng: np.random.Generator) -> str:
    """A labelled triangle as an embedded PNG; corrupted: 14x14 cells black with probability 0.6."""
    image = Image.new("RGB", (224, 196), "white")
    draw = ImageDraw.Draw(image)
    corners = [(20, 170), (204, 170), (60 + a, 26)]
    draw.polygon(corners, outline="black", width=2)
    for text, (x, y) in zip((f"{a}°", f"{b}°", "x"), [(38, 152), (168, 152), (54 + a, 44)], strict=True):
        draw.text((x, y), text, fill="black")
    if corrupted:
        pixels = np.asarray(image).copy()
        hidden = rng.random((14, 16)) < 0.6
        pixels[np.kron(hidden, np.ones((14, 14), dtype=bool))] = 0
        image = Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def response(rng: np.random.Generator, a: int, b: int, correct: bool, visual: bool) -> dict[str, Any]:
    seen = a if correct else a + int(rng.integers(5, 25))
    tokens = [part.format(a=seen, b=b, x=180 - seen - b) for part in WORDS.split("|")] + ["<|im_end|>"]
    n = len(tokens)
    entropy = rng.gamma(0.6, 0.4, n)
    support = np.where([t.strip().isdigit() or t.strip() in ("figure", "angle") for t in tokens], 0.6, 0.02)
    support = np.clip(support + rng.normal(0, 0.12, n), -5, 1) * (1 if correct else 0.4) - 0.05
    future = np.array([support[i + 1 : i + 33].mean() if i + 1 < n else 0.0 for i in range(n)])
    gate = 1 - np.exp(-entropy / entropy.mean())
    utility = support + 0.5 * (gate * future - (gate * future).mean())
    advantage = 0.93 if correct else -0.93
    final = advantage + 0.5 * abs(advantage) * utility
    final = np.maximum(final, 0) if correct else np.minimum(final, 0)
    kept = {"logprobs": -rng.gamma(0.5, 0.5, n), "entropy": entropy, "advantage_final": final}
    if visual:
        kept |= {"support": support, "future": future, "gate": gate, "utility": utility}
    return {
        "text": "".join(tokens),
        "tokens": tokens,
        "correct": correct,
        "format": True,
        "reason": "correct" if correct else "wrong",
        "extracted": str(180 - seen - b),
        "truncated": False,
        "advantage": advantage,
        "dependency": float(rng.gamma(2, 0.15)) if visual else None,
    } | {key: values.round(5).tolist() for key, values in kept.items()}


def group(rng: np.random.Generator, step: int, index: int, num_correct: int, visual: bool) -> dict[str, Any]:
    a, b = int(rng.integers(30, 70)), int(rng.integers(30, 70))
    replayed = visual and step > 10 and index % 2 == 1
    old = response(rng, a, b, True, False)
    anchor = {
        "text": old["text"],
        "tokens": old["tokens"],
        "mean_logprob": -0.2,
        "entropy": 0.1,
        "dependency": 0.4,
    }
    anchor |= {"probability": 0.02, "age": 5, "times_drawn": 2}
    return {
        "step": step,
        "prompt_id": f"angle/train/{a}-{b}-{index}",
        "task": "angle",
        "question": "Two angles of the triangle are marked. Find x.",
        "answer": str(180 - a - b),
        "images": [triangle(a, b, False, rng)],
        "corrupted_images": [triangle(a, b, True, rng)],
        "replayed": replayed,
        "anchor": anchor if replayed else None,
        "responses": [response(rng, a, b, i < num_correct, visual) for i in range(5)],
    }


def metrics(rng: np.random.Generator, step: int, steps: int, gain: float, visual: bool) -> dict[str, Any]:
    share = step / steps
    accuracy = 0.25 + gain * (1 - math.exp(-3 * share)) + rng.normal(0, 0.03)
    line = {
        "step": step,
        "reward/accuracy": accuracy,
        "reward/format": 0.9 + 0.1 * share,
        "reward/mean": accuracy + 0.1,
        "rollout/length_mean": 60 + 20 * share + rng.normal(0, 3),
        "rollout/truncated_share": 0.02,
        "rollout/entropy": 0.5 * math.exp(-share) + rng.normal(0, 0.02),
        "optim/grad_norm": float(rng.gamma(8, 0.05)),
    }
    times = {
        f"time/{p}": s * (1 + 0.1 * rng.random())
        for p, s in PHASES.items()
        if visual or p not in ("score", "anchors")
    }
    line |= times | {"time/step": sum(times.values())}
    if step % max(1, steps // 10) == 0:
        line["eval/accuracy"] = accuracy - 0.03
    if visual:
        active = step > steps // 5
        center = 0.25 + 0.5 * share
        bins = 60 * (1 + 4 * share) * np.exp(-((np.arange(10) / 10 + 0.05 - center) ** 2) / 0.06)
        line |= {
            "visual/support_correct": 0.1 + 0.2 * share,
            "visual/support_wrong": 0.05 + 0.02 * rng.random(),
        }
        line |= {
            f"visual/utility_p{q}": (int(q) - 50) / 100 + 0.03 * rng.random()
            for q in ("05", "25", "50", "75", "95")
        }
        line |= {
            "buffer/size": int(bins.sum()),
            "buffer/eligible": int(bins[1:9].sum()),
            "buffer/replay_active": int(active),
        }
        line |= {"buffer/success_histogram": bins.astype(int).tolist(), "buffer/megabytes": 0.1 + share}
        line |= {"buffer/score_age": 0, "buffer/replay_share": 0.5 * active}
        if active:
            line |= {
                "reward/fresh_accuracy": accuracy - 0.05,
                "reward/replay_accuracy": accuracy + 0.05,
                "buffer/anchor_age": 9 * share,
            }
    return line


def evaluations(gain: float) -> list[dict[str, Any]]:
    made = []
    for name, start in (("tiny-test", 0.28), ("tiny-ood", 0.22)):
        for when, blank, accuracy in (
            ("before", False, start),
            ("after", False, start + gain),
            ("before", True, 0.1),
            ("after", True, 0.12),
        ):
            made.append(
                {"name": name, "when": when, "model": "tiny", "blank": blank, "samples": 8, "prompts": 200}
                | {
                    "accuracy": accuracy,
                    "interval": [accuracy - 0.03, accuracy + 0.03],
                    "format": 0.98,
                    "length": 61.2,
                }
                | {
                    "pass_at_k": {
                        "1": accuracy,
                        "2": accuracy + 0.1,
                        "4": accuracy + 0.2,
                        "8": accuracy + 0.28,
                    }
                }
                | {"categories": {"angle": {"accuracy": accuracy, "prompts": 40}}}
            )
    return made


def make_run(
    folder: Path, *, method: str = "pivot", steps: int = 60, seed: int = 0, gain: float = 0.4, **settings: Any
) -> Path:
    """A run's folder; `settings` are fields of the config's method, or `section__field` of another."""
    visual = "pivot" in method or "vaa" in method
    rng = np.random.default_rng([seed, len(method), steps])
    config: dict[str, Any] = {
        "model": {"path": "tiny"},
        "data": {"train": "tiny"},
        "corruption": {"kind": "patch"},
    }
    config |= {
        "method": {"name": method, "beta": 0.5, "anchor_coef": 0.1},
        "train": {"steps": steps, "seed": seed, "lr": 1e-6},
    }
    for key, value in settings.items():
        section, _, field = key.rpartition("__")
        config[section or "method"][field] = value
    info = {"pivot": "0.1.0", "torch": "2.13.0", "command": "pivot train --recipe tiny", "status": "finished"}
    (folder / "eval").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "run.json").write_text(json.dumps(info))
    lines = [metrics(rng, step, steps, gain, visual) for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = [1, steps // 2, steps]
    groups = [group(rng, step, i, 1 + i + (step > 1), visual) for step in shown for i in range(3)]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(g) + "\n" for g in groups))
    scores = {"version": 1, "evaluations": evaluations(gain * 0.8)}
    (folder / "eval" / "scores.json").write_text(json.dumps(scores))
    return folder


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run's folder of a given name: `new_run("a", steps=20, beta=1.0)`."""
    return lambda name, **settings: make_run(tmp_path / name, **settings)
