"""The generic half of an engine with ranks and replicas, with stubs for both."""

import math
import pickle
from pathlib import Path

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pivot import recipes
from pivot.engines.base import ScoreRequest
from pivot.engines.jobs import RankUpdate, score_jobs
from pivot.engines.ranks import RanksEngine
from pivot.method import Batch
from pivot.models.encoding import UnreadablePrompt
from pivot.models.loading import load_policy, load_tokenizer_only, resolve_model
from pivot.models.policy import ResponseStatistics
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.tiny import procedural
from pivot.types import Prompt, Response


class Workers:
    """`Ranks` and `Rollouts` that note what is asked of them; a token's log-prob is its id, negated."""

    takes_images = False

    size = 2

    def __init__(self):
        self.calls = []
        self.updates = [
            RankUpdate({"total": 1.0, "ratio_max": 1.5}, 0.5),
            RankUpdate({"total": 2.0, "ratio_max": 1.2}, 0.5),
        ]

    def score(self, jobs):
        self.calls.append("score")
        return [[self._statistics(piece) for piece in job.pieces] for job in jobs]

    def _statistics(self, piece):
        rows = [y for ys in piece.responses for y in ys]
        width = max(map(len, rows))
        mask = torch.stack([torch.arange(width) < len(y) for y in rows])
        padded = torch.stack([torch.nn.functional.pad(-y.float(), (0, width - len(y))) for y in rows])
        return ResponseStatistics(mask, padded, torch.zeros_like(padded))

    def update(self, jobs):
        self.calls.append("update")
        return self.updates

    def nonfinite_weights(self):
        return [["b", "a"], ["a"]]

    def save(self, folder):
        self.calls.append("save")

    def load(self, folder):
        self.calls.append("load")

    def sample(self, prompts, request):
        self.calls.append("sample")
        for index in reversed(range(len(prompts))):
            yield (
                index,
                [Response(torch.tensor([index]), "", None, None, truncated=False)] * request.num_samples,
            )

    def wake(self, version):
        self.calls.append(f"wake {version}")

    def sleep(self):
        self.calls.append("sleep")


@pytest.fixture(scope="module")
def tokenizer_only():
    return load_tokenizer_only(Path(resolve_model("tiny")))


@pytest.fixture
def engine(tokenizer_only):
    workers = Workers()
    return RanksEngine("verl", recipes.get("tiny"), tokenizer_only.encoder, workers, workers)


REQUEST = SampleRequest(2, Sampling(), (0, 1))


def units(engine, num_prompts=3):
    prompts = [engine.prepare(prompt) for prompt in procedural.dataset("train", num_prompts)]
    return [PromptWithResponses(p, [torch.arange(3 + i), torch.arange(5)]) for i, p in enumerate(prompts)]


def rows(num_rows):
    values = torch.zeros(num_rows, 5)
    return Batch(
        mask_BT=torch.ones(num_rows, 5, dtype=torch.bool),
        rewards_B=torch.zeros(num_rows),
        format_B=torch.zeros(num_rows),
        group_size=2,
        clean_logprobs_BT=values,
        entropy_BT=values,
        old_logprobs_BT=values,
    )


def test_a_measured_prompt_is_as_long_as_the_encoded_one(engine):
    encode = load_policy("tiny").encoder.encode
    for prompt in procedural.dataset("train", 3):
        assert len(engine.prepare(prompt)) == len(encode(prompt))
        assert engine.prepare(prompt).prompt is prompt


def test_an_image_that_cannot_be_decoded_is_found_by_the_driver(engine):
    class Broken:
        def open(self):
            raise OSError("truncated")

    with pytest.raises(UnreadablePrompt, match="p7"):
        engine.prepare(Prompt("p7", "<image>?", "1", (Broken(),)))


def test_replicas_sleep_while_ranks_work_and_wake_with_the_current_weights(engine):
    chosen, workers = units(engine), engine.ranks
    prompts = [unit.prompt for unit in chosen]
    engine.sample(prompts, REQUEST)
    engine.sample(prompts, REQUEST)
    assert workers.calls == ["wake 0", "sample", "sample"], "weights are sent once"
    workers.calls.clear()
    engine.score(ScoreRequest(chosen, 1, "clean"))
    engine.update(chosen, rows(6), 1e-6)
    engine.update(chosen, rows(6), 1e-6)
    engine.sample(prompts, REQUEST)
    assert workers.calls == ["sleep", "score", "update", "update", "wake 2", "sample"]
    workers.calls.clear()
    engine.save(Path("x"))
    engine.load(Path("x"), {})
    engine.sample(prompts, REQUEST)
    assert workers.calls == ["sleep", "save", "load", "wake 3", "sample"]


def test_responses_come_in_the_order_of_the_prompts(engine):
    found = engine.sample([unit.prompt for unit in units(engine)], REQUEST)
    assert [int(responses[0].token_ids_T) for responses in found] == [0, 1, 2]
    assert all(len(responses) == 2 for responses in found)


def test_scores_come_in_the_order_of_the_rows_whichever_rank_computed_them(engine):
    chosen = units(engine, 5)
    found = engine.score(ScoreRequest(chosen, 1, "clean"))
    for row, y in enumerate(y for unit in chosen for y in unit.responses):
        assert found.logprobs_BT[row, : len(y)].tolist() == (-y).tolist()
        assert int(found.mask_BT[row].sum()) == len(y)


def test_statistics_are_allocated_once_however_many_micro_batches_there_are(engine):
    """Zeros for all rows in each micro-batch took two thirds of a large step."""

    class Zeros(TorchFunctionMode):
        count = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.zeros
            return function(*args, **(kwargs or {}))

    chosen = units(engine, 5)
    engine.packing.micro_batch_tokens = 1
    num_pieces = sum(
        len(job.pieces) for job in score_jobs(ScoreRequest(chosen, 1, "clean"), engine.packing, 2)
    )
    assert num_pieces >= 10
    with Zeros() as zeros:
        engine.score(ScoreRequest(chosen, 1, "clean"))
    assert zeros.count == 3, "mask, log-probs, entropies"


def test_a_job_arrives_with_the_responses_it_was_made_of(engine):
    chosen = units(engine, 5)
    engine.packing.micro_batch_tokens = 300
    jobs = pickle.loads(pickle.dumps(score_jobs(ScoreRequest(chosen, 1, "clean"), engine.packing, 2)))
    sent = [y for unit in chosen for y in unit.responses]
    found = {}
    for piece in (piece for job in jobs for piece in job.pieces if piece.counts):
        assert [len(responses) for responses in piece.responses] == [len(n) for n in piece.lengths]
        rows_of_piece = [y for responses in piece.responses for y in responses]
        found |= dict(zip(piece.rows.tolist(), rows_of_piece, strict=True))
    assert sorted(found) == list(range(len(sent)))
    assert all(torch.equal(found[row], y) for row, y in enumerate(sent))


def test_terms_are_summed_over_ranks_and_a_bad_loss_or_gradient_is_named(engine):
    chosen = units(engine)
    update = engine.update(chosen, rows(6), 1e-6)
    assert update.terms == {"total": 3.0, "ratio_max": 1.5}
    assert update.skipped is None
    engine.ranks.updates = [RankUpdate({}, math.nan), RankUpdate({}, math.nan, broken=("p1",))]
    assert engine.update(chosen, rows(6), 1e-6).skipped.prompts == ["p1"]
    engine.ranks.updates = [RankUpdate({}, math.inf)] * 2
    skipped = engine.update(chosen, rows(6), 1e-6).skipped
    assert (skipped.what, len(skipped.prompts)) == ("gradient", 3)
    assert engine.nonfinite_weights() == ["a", "b"]
