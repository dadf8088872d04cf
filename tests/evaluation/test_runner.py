"""An evaluation that is stopped and taken up again is the one that never stopped, and is never mixed with another."""

import json
import shutil
from dataclasses import replace
from functools import cache

import pytest

from pivot import recipes
from pivot.config import apply_settings, to_dict
from pivot.errors import UserError
from pivot.evaluation.matching import BenchmarkJudge
from pivot.evaluation.runner import Evaluator, SamplesFile, identity, prompt_digest
from pivot.evaluation.sampling import evaluation_request
from pivot.evaluation.scoring import from_rows, summarise
from pivot.evaluation.sets import EvaluationSet, SetOptions, load_sets
from pivot.evaluation.settings import EvaluationSettings
from pivot.evaluation.target import find_target
from pivot.sampling import NativeSampler, Sampling
from pivot.tiny import procedural
from pivot.types import Prompt

SETTINGS = EvaluationSettings(evaluation_request(2, Sampling(max_tokens=48)))
TINY_SET = EvaluationSet("tiny-test", list(procedural.dataset("test", 5)))


class Counting(NativeSampler):
    """The real sampler; it remembers whom it was asked for, and can be made to stop after some prompts."""

    def __init__(self, policy, stop_after=None):
        super().__init__(policy)
        self.asked, self.stop_after = [], stop_after

    def sample(self, prompts, request):
        self.asked += [prompt.id for prompt in prompts]
        for number, found in enumerate(super().sample(prompts, request)):
            if number == self.stop_after:
                raise KeyboardInterrupt
            yield found


@pytest.fixture
def judge():
    with BenchmarkJudge() as found:
        yield found


@pytest.fixture
def evaluator(policy, judge, tmp_path):
    """(folder, where to stop) -> an evaluator of the tiny model and its sampler."""

    def make(name, stop_after=None):
        sampler = Counting(policy, stop_after)
        found = Evaluator(
            find_target("tiny"),
            lambda: sampler,
            judge,
            tmp_path / name,
            lambda items, *_: items,
        )
        return found, sampler

    return make


def lines(folder):
    (file,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return rows[0], sorted(rows[1:], key=lambda row: (row["id"], row["sample"]))


def test_a_stopped_evaluation_goes_on_and_gives_the_same(evaluator, tmp_path):
    whole, _ = evaluator("whole")
    expected = whole.evaluate(TINY_SET, SETTINGS)
    stopped, _ = evaluator("parts", stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.evaluate(TINY_SET, SETTINGS)
    header, rows = lines(tmp_path / "parts")
    assert len(rows) == 4
    resumed, sampler = evaluator("parts")
    found = resumed.evaluate(TINY_SET, SETTINGS)
    assert set(sampler.asked) == {p.id for p in TINY_SET.prompts} - {row["id"] for row in rows}
    assert found == expected
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")
    assert header["identity"] == found["settings"]


def test_a_finished_evaluation_needs_no_model(evaluator, tmp_path):
    first, _ = evaluator("out")
    expected = first.evaluate(TINY_SET, SETTINGS)

    @cache
    def no_model():
        raise AssertionError("the model was loaded")

    again = Evaluator(find_target("tiny"), no_model, first.judge, tmp_path / "out", lambda items, *_: items)
    assert again.evaluate(TINY_SET, SETTINGS) == expected


def test_a_line_that_a_crash_cut_short_is_drawn_again(evaluator, tmp_path):
    first, _ = evaluator("out")
    expected = first.evaluate(TINY_SET, SETTINGS)
    (file,) = (tmp_path / "out").glob("*.jsonl")
    file.write_bytes(file.read_bytes()[:-20])
    again, sampler = evaluator("out")
    assert again.evaluate(TINY_SET, SETTINGS) == expected
    assert len(sampler.asked) == 1


@pytest.mark.parametrize(
    "other",
    [
        replace(SETTINGS, request=replace(SETTINGS.request, key=(1, "evaluation"))),
        replace(SETTINGS, request=replace(SETTINGS.request, blank=True)),
        replace(SETTINGS, request=replace(SETTINGS.request, num_samples=3)),
        replace(
            SETTINGS, request=replace(SETTINGS.request, sampling=Sampling(temperature=0.5, max_tokens=48))
        ),
        replace(SETTINGS, grader="mathruler"),
        replace(SETTINGS, max_pixels=3136),
        replace(SETTINGS, engine="vllm"),
    ],
)
def test_another_setting_is_another_file(tmp_path, other):
    target = find_target("tiny")
    files = [SamplesFile(tmp_path, "x", identity(target, "tiny-test", s)).path for s in (SETTINGS, other)]
    assert files[0] != files[1]


def test_another_model_is_another_file_but_a_note_beside_it_is_not(tmp_path):
    target = find_target("tiny")
    shutil.copytree(target.folder, tmp_path / "copy")
    (tmp_path / "copy" / "README.md").write_text("a card")
    copy = find_target(str(tmp_path / "copy"))
    assert identity(copy, "s", SETTINGS) == identity(target, "s", SETTINGS)
    assert find_target("tiny-hard").fingerprint != target.fingerprint


def test_a_file_of_other_settings_under_this_name_is_refused(tmp_path):
    target = find_target("tiny")
    file = SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS))
    text = file.path.read_text().replace('"seed": 0', '"seed": 1')
    file.path.write_text(text)
    file.close()
    with pytest.raises(UserError, match="move the file away"):
        SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS))


def test_a_second_evaluation_into_the_same_file_is_refused(tmp_path):
    """No line is written twice; another set in the same folder is no obstacle."""
    target = find_target("tiny")
    with SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS)) as file:
        with pytest.raises(UserError, match=f"another evaluation is writing {file.path}; wait until"):
            SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS))
        SamplesFile(tmp_path, "y", identity(target, "tiny-ood", SETTINGS)).close()
    SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS)).close()
    assert len(file.path.read_text().splitlines()) == 1


def test_a_torn_last_line_is_removed_and_an_empty_file_is_started_again(tmp_path):
    target = find_target("tiny")
    with SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS)) as file:
        whole = file.path.read_bytes()
    for damaged in (b"", whole[:20], whole + b'{"id": "a", "sam', whole[:-1]):
        file.path.write_bytes(damaged)
        SamplesFile(tmp_path, "x", identity(target, "tiny-test", SETTINGS)).close()
        assert file.path.read_bytes() == whole


def test_a_changed_row_is_not_taken_for_done(picture):
    prompt = Prompt("p", "<image>How many?", "3", (picture(84, 84),))
    changed = [
        replace(prompt, question="<image>How much?"),
        replace(prompt, answer="4"),
        replace(prompt, images=(picture(84, 84, "blue"),)),
        replace(prompt, columns={"matching": "letter"}),
    ]
    digests = [prompt_digest(p) for p in (prompt, *changed)]
    assert len(set(digests)) == 5
    assert prompt_digest(replace(prompt, id="q", columns={"level": 2})) == digests[0]


def test_scores_of_hand_written_lines():
    def sample(correct, tokens):
        return {"correct": correct, "format": 1.0, "tokens": tokens, "truncated": tokens == 30}

    prompts = [Prompt("a", "", "1", task="x"), Prompt("b", "", "1", task="y")]
    rows = [sample(True, 10), sample(False, 20)], [sample(False, 30), sample(False, 20)]
    found = summarise([from_rows(*pair) for pair in zip(prompts, rows, strict=True)])
    assert found["accuracy"] == 0.25
    assert found["pass_at_k"] == {"1": 0.25, "2": 0.5}
    assert found["length"] == 20
    assert found["truncated"] == 0.25
    assert found["categories"] == {"x": {"accuracy": 0.5, "prompts": 1}, "y": {"accuracy": 0.0, "prompts": 1}}


def test_mathruler_has_no_second_look():
    prompt = Prompt("p", "", "B", columns={"matching": "letter", "choices": ["10", "70"]})
    response = "<think> a </think> \\boxed{(B) 70}"
    for grader, expected in (("pivot", True), ("mathruler", False)):
        with BenchmarkJudge(grader) as judge:
            assert judge.judge([prompt], [response])[0].correct == expected


def test_sets_that_cannot_be_had_are_one_sentence(shared_data, tmp_path):
    def refused(names, match, **paths):
        with pytest.raises(UserError, match=match) as caught:
            load_sets(names, SetOptions({k.replace("_", "-"): str(v) for k, v in paths.items()}))
        assert "\n" not in str(caught.value)

    refused(["mathvsta"], "Did you mean 'mathvista'")
    refused(["tiny-tets"], "Did you mean 'tiny-test'")
    refused(
        ["mathvista"], "40 image missing.*hf download AI4Math/MathVista", mathvista=shared_data / "mathvista"
    )
    refused(["geometry3k"], "does not exist", geometry3k=tmp_path / "none.parquet")
    refused(["realworldqa"], "hub cannot be reached")
    refused(["tiny-test"], "not among --benchmarks", geometry3k=shared_data / "geometry3k")


def test_real_rows_and_the_procedural_splits_load(shared_data):
    paths = {"geometry3k": str(shared_data / "geometry3k" / "test.parquet")}
    found = load_sets(["geometry3k", "tiny-ood", "tiny-validation"], SetOptions(paths, limit=3))
    assert [(s.name, len(s.prompts)) for s in found] == [
        ("geometry3k", 3),
        ("tiny-ood", 3),
        ("tiny-validation", 3),
    ]


def test_a_checkpoint_knows_its_run(tmp_path, save_tiny):
    run = tmp_path / "runs" / "x"
    save_tiny(run, 8)
    config = apply_settings(recipes.get("tiny"), ["model.max_pixels=3136", "model.dtype=bfloat16"])
    (run / "config.json").write_text(json.dumps(to_dict(config)))
    for name in (run, run / "checkpoints" / "step-8", run / "checkpoints" / "step-8" / "model"):
        target = find_target(str(name))
        assert (target.run, target.when, target.title) == (run, "step-8", "x")
        assert target.config.model.max_pixels == 3136
        assert target.dtype == "bfloat16"
    loose = find_target("tiny")
    assert (loose.run, loose.when, loose.dtype) == (None, None, "float32")
    with pytest.raises(UserError, match="hub cannot be reached"):
        find_target("nobody/no-such-model")
    with pytest.raises(UserError, match="no checkpoints"):
        find_target(str(tmp_path / "runs"))
