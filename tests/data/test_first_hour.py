"""A user's first hour with twenty rows of their own: look at them, train on them, evaluate on them, mix and resume."""

import json
from pathlib import Path

import pytest
import torch
from chat_rows import FORMATS, easyr1, rows, table, trl_messages, verl

from pivot import recipes
from pivot.cli import main
from pivot.config import apply_settings, to_dict
from pivot.config.methods import settings_for
from pivot.engines.local import LocalEngine
from pivot.errors import UserError
from pivot.runs import run as run_module
from pivot.runs.run import resume, train
from pivot.training.prompts import hold_out, load_prompts, training_prompts

SMALL = ["train.steps=1", "train.prompts_per_step=6", "train.minibatch_prompts=3", "rollout.responses=4",
         "rollout.max_tokens=48", "rollout.max_tries=1", "eval.every=1", "eval.samples=1", "eval.final_prompts=0",
         "log.rollouts_per_step=0"]  # fmt: skip


def small(*settings: str, method: str = "pivot"):
    config = apply_settings(recipes.get("tiny"), [f"method={method}", *SMALL])
    return apply_settings(config, settings_for(config.method, settings))


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_every_format_are_shown_and_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    write, recognised = FORMATS[name]
    path = write(tmp_path)
    assert main(["data", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Recognised as {recognised}." in shown
    assert "20 of 20 rows are used, 2 of them without an image." in shown
    assert "`pivot train` uses 19 rows and holds out 1 for validation (data.holdout=0.05)" in shown
    options = [word for setting in SMALL for word in ("--set", setting)]
    out = tmp_path / "run"
    assert main(["train", "--data", str(path), "--out", str(out), "--no-report", *options]) == 0
    said = capsys.readouterr().out
    assert (
        "recipe tiny: lr 0.0002, float32, 1 steps, 6 prompts x 4 responses per step, at most 48 tokens"
        in said
    )
    assert "1 of 20 rows of mine are held out for validation" in said
    assert "of 20 rows of mine have no image and are trained as text" in said
    (row,) = metrics(out)
    assert row["rollout/groups"] == 6
    assert "eval/accuracy" in row
    assert json.loads((out / "run.json").read_text())["data"]["prompts"] == 19


@pytest.mark.parametrize("layout", ["tree", "repeated"])
def test_a_step_on_pictures_and_text_together(tmp_path: Path, layout: str) -> None:
    """Rows of text have no visual support: c = 0 and V = 0 exactly; rows with pictures have some."""
    from pivot.runs.progress import Progress
    from pivot.training.build import build_judge, build_trainer
    from pivot.types import Anchor

    config = small(
        f"data.train={easyr1(tmp_path)}", "data.holdout=0", "train.prompts_per_step=20", f"train.layout={layout}",
        "method.dynamic_sampling=false", "method.replay_share=0",
        f"reward.functions={Path(__file__).with_name('first_hour_rewards.py')}:by_length",
    )  # fmt: skip
    prompts = training_prompts(config)
    engine = LocalEngine.open(config, None)
    with Progress(1, quiet=True) as progress:
        judge = build_judge(config)
        trainer = build_trainer(config, engine, prompts.by_id, judge, progress.clock)
        outcome = trainer.step()
        judge.close()
    batch, found = outcome.batch, outcome.diagnostics
    assert batch is not None
    assert found is not None
    is_text_B = torch.tensor([not group.prompt.images for group in outcome.groups for _ in group.responses])
    assert int(is_text_B.sum()) == 2 * 4
    support_BT = found.support_BT * batch.mask_BT
    assert torch.equal(batch.corrupted_logprobs_BT[is_text_B], batch.clean_logprobs_BT[is_text_B])
    assert torch.count_nonzero(support_BT[is_text_B]) == 0
    assert torch.count_nonzero(support_BT[~is_text_B]) > 0
    assert outcome.update is not None
    assert outcome.update.num_updates > 0
    assert all(norm > 0 for norm in outcome.update.grad_norms)
    for group in outcome.groups:
        group.prepared = engine.prepare(group.prompt)
        group.candidates = tuple(Anchor(response.token_ids_T) for response in group.responses[:4])
    trainer.anchor_selector._score_candidates(outcome.groups, 1)
    dependency = {bool(g.prompt.images): [c.dependency for c in g.candidates] for g in outcome.groups}
    assert dependency[False] == [0.0] * 4
    assert min(dependency[True]) > 0


def test_all_rows_are_used_unless_a_number_is_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "big.jsonl"
    path.write_text("".join(json.dumps({"problem": f"{i} + 1?", "answer": i + 1}) + "\n" for i in range(640)))
    config = small(f"data.train={path}", "data.holdout=0")
    assert len(training_prompts(config)) == 640
    limited = training_prompts(apply_settings(config, ["data.size=512"]))
    assert len(limited) == 512
    assert "only the first 512 of 640 rows of big/train are read." in limited.notes
    assert main(["data", str(path), "--set", "data.size=512"]) == 0
    assert "only the first 512 of 640 rows" in capsys.readouterr().err


def test_held_out_rows_are_stable_and_apart(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    lines = [json.dumps({"problem": f"{i}?", "answer": "1"}) + "\n" for i in range(200)]
    path.write_text("".join(lines))
    data = small().data
    kept, held = hold_out(load_prompts(str(path), None, None, data), 0.05, None)
    assert (len(kept), len(held)) == (190, 10)
    assert not {prompt.id for prompt in held} & set(kept.by_id)
    path.write_text("".join(reversed(lines)))
    again = hold_out(load_prompts(str(path), None, None, data), 0.05, 4)[1]
    assert {prompt.id for prompt in again} < {prompt.id for prompt in held}
    assert len(again) == 4
    path.write_text("".join(lines[:3] * 50))  # three rows, fifty times each
    kept, held = hold_out(load_prompts(str(path), None, None, data), 0.05, None)
    assert {prompt.question for prompt in held}.isdisjoint(p.question for p in kept.by_id.values())
    assert (len(kept), len(held)) == (100, 50)


def test_a_set_that_is_too_small_says_which_settings_fit(tmp_path: Path) -> None:
    config = small(f"data.train={table(tmp_path)}", "train.prompts_per_step=64", "train.minibatch_prompts=32")
    with pytest.raises(UserError, match=r"mine has 19 training prompts.*--set train.prompts_per_step=19 --set "
                       r"train.minibatch_prompts=19"):  # fmt: skip
        training_prompts(config)


def mixed(tmp_path: Path, *settings: str):
    for name, write in (("a", trl_messages), ("b", verl)):
        (tmp_path / name).mkdir(exist_ok=True)
        write(tmp_path / name)
    sets = f"[{tmp_path / 'a' / 'mine.jsonl'}, {tmp_path / 'b' / 'mine.parquet'}]"
    return small(f"data.train={sets}", "data.weights=2,1", "train.steps=2", "checkpoint.every=1",
                 "method.dynamic_sampling=false", *settings)  # fmt: skip


def test_several_sets_have_their_shares_and_resume(
    tmp_path: Path, repeatable, weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = mixed(tmp_path)
    prompts = training_prompts(config)
    assert {name: len(ids) for name, ids in prompts.sets.items()} == {"mine": 19, "mine-2": 19}
    assert len(prompts) == 38
    assert {prompt_id.split("/")[0] for prompt_id in prompts.by_id} == {"mine", "mine-2"}
    train(config, tmp_path / "whole", quiet=True)
    first = metrics(tmp_path / "whole")[0]
    assert (first["data/mine/share"], first["data/mine-2/share"]) == (4 / 6, 2 / 6)
    step = run_module.Run._step

    def stop_after_one(self):
        row = step(self)
        if self.finished_steps == 1:
            raise KeyboardInterrupt
        return row

    with monkeypatch.context() as patch:
        patch.setattr(run_module.Run, "_step", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "stopped", quiet=True)
    resume(tmp_path / "stopped", quiet=True)
    assert repeatable(tmp_path / "stopped") == repeatable(tmp_path / "whole")
    one, other = weights(tmp_path / "stopped"), weights(tmp_path / "whole")
    assert all(torch.equal(one[name], other[name]) for name in one)
    (tmp_path / "a" / "mine.jsonl").write_text(
        "".join((tmp_path / "a" / "mine.jsonl").read_text().splitlines(keepends=True)[1:])
    )
    stored = json.loads((tmp_path / "stopped" / "config.json").read_text())
    stored["train"]["steps"] = 4
    (tmp_path / "stopped" / "config.json").write_text(json.dumps(stored))
    with pytest.raises(
        UserError, match=r"mine and mine-2 has changed since .* was started: 38 prompts then, 37 now"
    ):
        resume(tmp_path / "stopped", quiet=True)


def test_epochs_decide_the_steps(tmp_path: Path) -> None:
    few = (
        "data.size=8",
        "train.prompts_per_step=3",
        "eval.every=0",
        "eval.final_prompts=1",
        "eval.final_samples=1",
    )
    config = small(f"data.train={table(tmp_path)}", "train.epochs=2", *few)
    train(config, tmp_path / "run", quiet=True)
    assert len(metrics(tmp_path / "run")) == 2 * (7 // 3)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["train"]
    assert (stored["steps"], stored["epochs"]) == (4, 2)


@pytest.mark.parametrize(("num_prompts", "epochs", "steps"), [(2101, 15, 75), (38870, 2, 202)])
def test_the_papers_epochs_are_its_steps(tmp_path: Path, num_prompts: int, epochs: int, steps: int) -> None:
    from pivot.runs.folder import RunFolder

    config = apply_settings(recipes.get("geo3k-3b"), [f"train.epochs={epochs}"])
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write_config(to_dict(config))
        run = run_module.Run(config, folder, engine="local", host=run_module.Host(quiet=True))
        assert run._with_steps(num_prompts).train.steps == steps


def test_one_loader_for_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Absolute paths and columns of the user's own: the same settings for data, eval and attention."""
    (tmp_path / "elsewhere").mkdir()
    made = [row for row in rows(tmp_path / "elsewhere") if row["path"]][:2]
    lines = [
        {"q": row["question"], "truth": row["answer"], "pic": str(tmp_path / "elsewhere" / row["path"])}
        for row in made
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = [
        "--set",
        "data.problem_column=q",
        "--set",
        "data.answer_column=truth",
        "--set",
        "data.image_column=pic",
    ]
    anywhere = ["--set", "data.allow_absolute_paths=true"]
    short = ["--max-tokens", "8", "--out", str(tmp_path / "out")]
    for command in (
        ["data", str(path)],
        ["eval", "--model", "tiny", "--data", str(path), "--samples", "1", "--quiet", *short],
        ["attention", "--model", "tiny", "--data", str(path), *short],
    ):
        assert main(command) == 2
        assert "--set data.problem_column=NAME" in capsys.readouterr().err
        assert main([*command, *columns]) == (0 if command[0] == "data" else 2)
        said = " ".join("".join(capsys.readouterr()).split())
        assert (
            "image path is absolute, allow it with --set data.allow_absolute_paths=true" in said
            or command[0] == "data"
        )
        assert main([*command, *columns, *anywhere]) == 0
        capsys.readouterr()
    with pytest.raises(UserError, match=r"--set data.problem_column=NAME"):
        training_prompts(small(f"data.train={path}"))
    settings = [word for word in (*columns, *anywhere) if word != "--set"]
    assert (
        len(
            training_prompts(
                small(
                    f"data.train={path}", "train.prompts_per_step=1", *settings, "train.minibatch_prompts=1"
                )
            )
        )
        == 1
    )
    assert main(["eval", "--model", "tiny", "--data", str(path), "--set", "train.lr=1"]) == 2
    assert "--set takes settings of `data` here" in capsys.readouterr().err
    assert main(["eval", "--model", "tiny"]) == 2
    assert "--benchmarks" in capsys.readouterr().err


def test_a_local_folder_of_a_known_set(tmp_path: Path, shared_data: Path) -> None:
    config = small("data.train=geometry3k", f"data.path={shared_data / 'geometry3k'}")
    prompts = training_prompts(config)
    assert len(prompts) >= 60
    assert all(prompt_id.startswith("geometry3k/train/") for prompt_id in prompts.by_id)


def test_generated_prompts_are_shown_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "tiny", "--limit", "2", "--json"]) == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["id"], first["images"]) == ("angle/train/0", {"number": 1, "sizes": [[84, 84]]})
    assert main(["data", "tiny", "--split", "ood", "--limit", "1"]) == 0
    assert "tiny, ood" in capsys.readouterr().out


def test_rows_that_nothing_would_evaluate_are_not_held_out_and_that_is_said(tmp_path: Path) -> None:
    config = small(f"data.train={easyr1(tmp_path)}", "data.holdout=0.5", "eval.every=0")
    prompts = training_prompts(config)
    assert (len(prompts), prompts.held_out) == (20, {})
    assert "no rows of mine are held out, since eval.every=0 evaluates nothing" in prompts.notes


def test_a_reward_that_never_applies_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rw.py").write_text(
        "def never(completions, **columns):\n    return [None] * len(completions)\n"
    )
    config = small(
        f"data.train={easyr1(tmp_path)}", f"reward.functions={tmp_path}/rw.py:never", "eval.every=0"
    )
    train(config, tmp_path / "run")
    assert "step 1: no reward function applies to any response (all returned None)" in capsys.readouterr().out
