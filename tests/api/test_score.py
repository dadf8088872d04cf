"""`pivot.score` against the training path, on PIL images, and on a real Geometry3K problem."""

import io
import json

import pytest
import torch

import pivot
from pivot.config import Config
from pivot.engines.base import ScoreRequest
from pivot.engines.local import LocalEngine
from pivot.engines.scoring import response_means
from pivot.errors import UserError
from pivot.method import entropy_gate
from pivot.models.rows import PromptWithResponses
from pivot.runs.run import train
from pivot.token_scores import score_tokens
from pivot.training.prompts import tokenize_response, training_prompts

NAMES = ("logprob", "entropy", "support", "future_support", "gate", "utility")


def column(scored, name):
    return [getattr(token, name) for token in scored.tokens]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, small_config):
    """A run of one step, its configuration, and the responses of a group as training recorded them."""
    config = small_config("pivot", "train.steps=1", "log.rollouts_per_step=1", "log.rollouts_every=1")
    out = tmp_path_factory.mktemp("run")
    train(config, out, quiet=True)
    (group,) = [json.loads(line) for line in (out / "rollouts.jsonl").read_text().splitlines()]
    return config, group


def test_the_numbers_are_those_of_the_training_step(recorded, policy):
    config, group = recorded
    prompt = training_prompts(config).by_id[group["prompt_id"]]
    compared = 0
    for response in group["responses"]:
        ids_T = tokenize_response(response["text"], policy.encoder)
        scored = score_tokens(policy, config, prompt, ids_T, step=1)
        if column(scored, "text") != response["tokens"]:
            continue  # sampled as other tokens than its text has, or cut off
        compared += 1
        for name, stored in (("logprob", "logprobs"), ("entropy", "entropy"), ("support", "support"),
                             ("future_support", "future")):  # fmt: skip
            assert column(scored, name) == pytest.approx(response[stored], abs=2e-4), name
        # The gate's mean entropy is the response's own here, the step's there.
        entropy_BT = torch.tensor([column(scored, "entropy")])
        assert column(scored, "gate") == pytest.approx(
            entropy_gate(entropy_BT, torch.ones_like(entropy_BT))[0].tolist(), abs=1e-6
        )
        assert pytest.approx(float(entropy_BT.mean()), abs=1e-6) == scored.H
    assert compared


def test_v_and_h_are_those_of_anchor_selection(recorded):
    config, group = recorded
    engine = LocalEngine.open(config)
    prompt = training_prompts(config).by_id[group["prompt_id"]]
    ids = [tokenize_response(r["text"], engine.encoder) for r in group["responses"]]
    found = engine.score(ScoreRequest([PromptWithResponses(engine.prepare(prompt), ids)], 1, "both"))
    dependency_B = response_means(found.divergence_BT, found.mask_BT)
    entropy_B = response_means(found.entropy_BT, found.mask_BT)
    for row, ids_T in enumerate(ids):
        scored = score_tokens(engine.policy, config, prompt, ids_T, step=1)
        assert pytest.approx(float(dependency_B[row]), rel=1e-4, abs=1e-6) == scored.V
        assert pytest.approx(float(entropy_B[row]), rel=1e-4) == scored.H


def test_an_image_may_be_pil_bytes_or_a_path(tmp_path, policy, picture):
    image = picture().open()
    image.save(tmp_path / "a.png")
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)

    def score(given):
        return pivot.score(policy, image=given, question="How many boxes?", response="\\boxed{1}")

    (tmp_path / "same.png").write_bytes(buffer.getvalue())
    found = [score(given) for given in (image, [image], buffer.getvalue(), tmp_path / "same.png")]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0].V > 0
    assert score(picture(colour="blue").open()) != found[0], "no feature of the first image is reused"


def test_without_an_image_nothing_depends_on_it(policy):
    scored = pivot.score(policy, image=None, question="What is 2 + 1?", response="\\boxed{3}")
    assert scored.V == 0
    assert set(column(scored, "support")) == set(column(scored, "utility")) == {0.0}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"image": 3}, "image is a int, but must be a PIL image, bytes or a path"),
        ({"image": "none.png"}, "there is no image file none.png"),
        ({"image": b"GIF89"}, "image cannot be decoded"),
        ({"question": "<image><image>?"}, "2 <image> marks for 1 images"),
        ({"response": ""}, "response is empty"),
        ({"response": 3}, "response is a int, but must be a text"),
        ({"method": "pivott"}, "no method 'pivott'"),
    ],
)
def test_mistakes_are_one_sentence(policy, picture, change, sentence):
    given = {"image": picture().open(), "question": "How many?", "response": "\\boxed{1}"} | change
    with pytest.raises(UserError) as refused:
        pivot.score(policy, **given)
    assert sentence in str(refused.value)


def test_a_method_without_token_allocation_uses_pivots(recorded, policy):
    _, group = recorded
    given = {"image": None, "question": group["question"].replace("<image>", ""), "response": "\\boxed{1}"}
    assert pivot.score(policy, **given, method="dapo") == pivot.score(policy, **given)


def test_a_real_geometry_problem(shared_data):
    """The tiny model cannot solve it; every number is finite, and the image matters."""
    import pyarrow.parquet as pq

    (file, *_) = sorted(shared_data.rglob("*geometry3k*/**/*.parquet")) or sorted(
        shared_data.rglob("*geometry3k*.parquet")
    )
    row = next(pq.ParquetFile(file).iter_batches(1)).to_pylist()[0]
    image = row["images"][0]["bytes"]
    response = f"<think> The figure shows it. </think> \\boxed{{{row['answer']}}}"
    scored = pivot.score("tiny", image=image, question=row["problem"], response=response)
    assert "".join(column(scored, "text")).startswith(response)
    values = torch.tensor([[getattr(token, name) for name in NAMES] for token in scored.tokens])
    assert torch.isfinite(values).all()
    assert scored.V > 0
    assert abs(values[:, 2]).max() > 0
    assert str(scored).count("\n") == len(scored.tokens) + 1


def test_a_runs_own_settings_are_used(tmp_path, small_config, picture):
    config = small_config("pivot", "train.steps=1", "method.support_floor=-0.01", "train.seed=3")
    train(config, tmp_path, quiet=True)
    given = {
        "image": picture().open(),
        "question": "How many boxes are there?",
        "response": "\\boxed{17} I see",
    }
    own = pivot.score(tmp_path, **given)
    assert min(column(own, "support")) >= -0.01 - 1e-6
    assert config != Config()
    other = pivot.score(tmp_path, **given, method="pivot")
    assert min(column(other, "support")) < -0.01
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace('"patch"', '"os:system"')
    )
    with pytest.raises(UserError, match="code of its own"):
        pivot.score(tmp_path, **given)
