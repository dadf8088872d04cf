"""Folders of runs that have finished."""

import json

from pivot.config import to_dict


def write_run(run, shift):
    """As `pivot train` and `pivot eval` leave a run of 150 steps."""
    run.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(1, 151):
        row = {"step": step, "rollout/groups": 8, "rollout/groups_kept": 5 + step % 3, "rollout/groups_wanted": 8,
               "rollout/tokens": 3000 + shift, "time/step": 2.5, "time/processor": 1.0 + shift / 1000,
               "reward/accuracy": step / 300}  # fmt: skip
        row |= {"eval/accuracy": 0.2 + step / 500 + shift / 1000} if step % 15 == 0 else {}
        row |= {"buffer/replay_gain": 0.1} if step > 30 else {}
        rows.append(row)
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run.folder / "config.json").write_text(json.dumps(to_dict(run.config)))
    (run.folder / "run.json").write_text(json.dumps({"status": "finished", "saved_step": 150, "torch": "2"}))
    (run.folder / "checkpoints" / "step-150").mkdir(parents=True)


def write_scores(run, names):
    common = {"when": run.when, "blank": False, "samples": 8, "limit": 120, "settings": run.eval_settings()}
    entries = [{"name": name, "accuracy": 0.5 + place / 10, **common} for place, name in enumerate(names)]
    (run.folder / "eval").mkdir(parents=True, exist_ok=True)
    (run.folder / "eval" / "scores.json").write_text(json.dumps({"version": 1, "evaluations": entries}))
