"""Sampling, scoring, allocation and loss of Qwen2.5-VL-3B on a GPU that is not there (`make test-cuda`)."""

import pytest
import torch
from torch.nn.attention import flex_attention

from benchmarks import memory
from benchmarks.pretend_gpu import GPU, PretendGpu, on_gpu
from pivot import recipes
from pivot.config import apply_settings
from pivot.method import allocate_advantage, objective
from pivot.models import decoding, shared_prefix
from pivot.models.family import EncodedImage, EncodedPrompt, ImageFeatures
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.sampling.decoder import Decoder
from pivot.types import Prompt

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch: make test-cuda"
)

LAYERS = 2
SETTINGS = ("sampling.engine=native", "rollout.responses=3")


@pytest.fixture(params=["geo3k-3b", "geo3k-3b-lora"])
def fake(request, monkeypatch):
    """The local engine with two layers of full width in bfloat16."""
    published = memory.published_config

    def few_layers(size):
        config = published(size)
        config.text_config.num_hidden_layers = config.vision_config.depth = LAYERS
        config.text_config.layer_types = config.text_config.layer_types[:LAYERS]
        config.vision_config.fullatt_block_indexes = [LAYERS - 1]
        return config

    monkeypatch.setattr(memory, "published_config", few_layers)
    config = apply_settings(recipes.get(request.param), SETTINGS)
    return memory.FakeUpdate("3B", config, "cuda:0")


def make_units(fake, num_prompts=2):
    """Prompts of different lengths with an image, and responses of different lengths."""
    family, units = fake.engine.policy.family, []
    for number in range(num_prompts):
        ids = torch.randint(5, 1000, (20 + number,))
        ids[:4] = family.image_token_id
        image = EncodedImage(torch.zeros(16, 3, 1, 196, dtype=torch.uint8), (1, 4, 4), family)
        prompt = Prompt(id=str(number), question="", answer="")
        encoded = EncodedPrompt(prompt, ids, torch.arange(len(ids)).expand(3, -1), len(ids), (image,))
        units.append(
            PromptWithResponses(encoded, [torch.randint(5, 1000, (length,)) for length in (3, 5, 9)])
        )
    return units


def features(fake, units):
    return [[ImageFeatures(on_gpu(fake.mode, 4, 2048))] for _ in units]


def remember(fake, units):
    """Image features as if the tower had computed them: its positions are read on the host."""
    for unit, own in zip(units, features(fake, units), strict=True):
        fake.engine.policy._features["clean", unit.prompt.prompt.id] = own


def test_tensors_of_two_devices_do_not_mix(fake):
    with PretendGpu(fake.mode), pytest.raises(RuntimeError, match="device"):
        on_gpu(fake.mode, 3) + torch.zeros(3)


@torch.no_grad()
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_decoding_stays_on_the_gpu_and_reads_no_value(fake, top_p, monkeypatch):
    monkeypatch.setattr(decoding, "ROOM", 4)
    policy, units = fake.engine.policy, make_units(fake)
    remember(fake, units)
    sampling = Sampling(temperature=0.7, top_p=top_p, top_k=50, max_tokens=80, min_tokens=4)
    with PretendGpu(fake.mode):
        prompts = [unit.prompt for unit in units]
        decoder = Decoder(policy, prompts, SampleRequest(3, sampling, (0,)), 2**20)
        hidden_ND = decoder._refilled(None)
        assert decoder.continuation is not None
        assert hidden_ND is not None
        for _ in range(6):  # past the first growth of the caches
            tokens_N = decoder._draw(hidden_ND)
            hidden_ND = decoder.continuation.advance(tokens_N)
        started = policy.continuation(policy.prefill(prompts)[0], 3, 80)
        decoder.continuation.join(started)
        both_ND = decoder.continuation.advance(torch.cat([tokens_N, tokens_N]))
    assert tokens_N.device == hidden_ND.device == both_ND.device == decoder.record.logprobs_NT.device == GPU
    assert both_ND.shape == (12, 2048)
    assert both_ND.dtype == torch.bfloat16


@torch.no_grad()
def test_the_vision_tower_stays_on_the_gpu(fake):
    tower = fake.engine.policy.model.model.visual
    with PretendGpu(fake.mode):
        x = tower.patch_embed(on_gpu(fake.mode, 80, 3 * 2 * 14 * 14, dtype=torch.float32))
        cos_sin = on_gpu(fake.mode, 80, 80), on_gpu(fake.mode, 80, 80)
        # Two windows of 16 patches and one of 48. Their lengths are read on the host, once per forward.
        for block in tower.blocks:
            x = block(x, cu_seqlens=torch.tensor([0, 16, 32, 80]), position_embeddings=cos_sin)
        assert tower.merger(x).device == GPU


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["segments", "flex"])
def test_scoring_under_clean_and_corrupted_images_stays_on_the_gpu(fake, kernel, monkeypatch):
    if kernel == "flex":  # forward alone, and not compiled: both need a driver
        monkeypatch.setattr(shared_prefix, "has_flex_kernel", lambda device: True)
        monkeypatch.setattr(shared_prefix, "_flex_kernel", lambda device: shared_prefix.flex_attention)
        monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    units = make_units(fake)
    with PretendGpu(fake.mode):
        scored = fake.engine.policy.score(
            units, features(fake, units), layout="tree", corrupted_features=features(fake, units)
        )
    assert {values.device for values in vars(scored).values()} == {GPU}
    assert {values.dtype for values in vars(scored).values()} == {torch.bool, torch.float32}
    assert scored.logprobs_BT.shape == (6, 9)


def test_allocation_and_loss_stay_on_the_gpu(fake):
    engine, units = fake.engine, make_units(fake)
    batch, totals = memory.make_batch(units, fake.config)
    with PretendGpu(fake.mode), engine.policy.training():
        found = engine.policy.score(units, features(fake, units), layout="tree", with_entropy=False)
        rows = batch.with_forward(found.logprobs_BT)  # moves the columns, which are on the processor
        rows, _ = allocate_advantage(engine.method, rows)
        loss, values = objective(engine.method, rows, totals)
    assert loss.device == GPU
    assert loss.requires_grad
    assert {"policy", "calibration"} <= set(values)
    assert {value.device for value in values.values()} == {GPU}
