"""Which sampler is chosen, and when vLLM sleeps, wakes and is given weights; vLLM itself runs in tests/vllm.

Sleeping needs a GPU, so the order of the calls is checked on a stand-in for vLLM's `LLM`.
"""

from types import SimpleNamespace

import pytest
import torch

from pivot.errors import UserError
from pivot.models.loading import ModelOptions, load_policy, save_policy, saved_weights
from pivot.sampling import SampleRequest, Sampling, base, choose_sampler
from pivot.sampling.vllm_sampler import PolicyVllm


@pytest.mark.parametrize(
    ("wanted", "device", "installed", "chosen"),
    [
        ("auto", "cuda", True, "vllm"),
        ("auto", "cuda:0", True, "vllm"),
        ("auto", "cuda:1", True, "native"),
        ("auto", "cuda", False, "native"),
        ("auto", "cpu", True, "native"),
        ("native", "cuda", True, "native"),
        ("vllm", "cpu", True, "vllm"),
    ],
)
def test_auto_is_vllm_on_a_gpu_that_has_it(monkeypatch, wanted, device, installed, chosen):
    monkeypatch.setattr(base, "find_spec", lambda name: object() if installed else None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device != "cpu")
    assert choose_sampler(wanted, torch.device(device)) == chosen


def test_vllm_on_another_gpu_than_the_first_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="first visible GPU, but the device is cuda:1"):
        choose_sampler("vllm", torch.device("cuda:1"))


@pytest.fixture
def beside(policy, monkeypatch):
    """A sampler as on a GPU, and the calls that it makes."""
    calls = []

    def note(name, result=None):
        def call(*args, **kwargs):
            calls.append(
                " ".join([name, *map(str, args), *(str(v) for k, v in kwargs.items() if k != "kwargs")])
            )
            return result

        return call

    engine = SimpleNamespace(reset_encoder_cache=note("reset encoder"))
    llm = SimpleNamespace(
        sleep=note("sleep"),
        wake_up=note("wake"),
        collective_rpc=note("rpc"),
        reset_prefix_cache=note("reset prefix", result=True),
        reset_mm_cache=note("reset images"),
        llm_engine=engine,
    )
    monkeypatch.setattr(torch.cuda, "empty_cache", note("empty torch's cache"))
    sampler = object.__new__(PolicyVllm)
    vars(sampler).update(policy=policy, _llm=llm, _can_sleep=True, _asleep=False, _stale=True)
    return sampler, calls


RESETS = ["reset prefix", "reset images", "reset encoder"]


def test_it_sleeps_once_and_wakes_with_weights_before_its_cache(beside):
    sampler, calls = beside
    nothing = SampleRequest(1, Sampling(), (0,))
    list(sampler.sample([], nothing))
    assert calls == ["rpc reload_weights", *RESETS], "the first weights"
    calls.clear()
    list(sampler.sample([], nothing))
    assert calls == RESETS, "it is awake and has these weights"
    calls.clear()
    sampler.sleep()
    sampler.sleep()
    sampler.weights_changed()
    list(sampler.sample([], nothing))
    waking = ["empty torch's cache", "wake ['weights']", "rpc reload_weights", "wake ['kv_cache']"]
    assert calls == ["sleep 2", *waking, *RESETS]


def test_without_a_gpu_it_never_sleeps(beside):
    sampler, calls = beside
    sampler._can_sleep = False
    sampler.sleep()
    assert calls == []


def test_weights_have_the_names_and_values_of_the_saved_folder(tmp_path):
    """Adapters are merged one layer at a time, and the model that trains stays as it is."""
    from safetensors.torch import load_file

    policy = load_policy("tiny", ModelOptions(lora_rank=4))
    for name, parameter in policy.trainable_parameters().items():
        if "lora_B" in name:
            torch.nn.init.constant_(parameter, 0.01)
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    save_policy(policy, tmp_path / "model")
    saved = load_file(tmp_path / "model" / "model.safetensors")
    given = dict(saved_weights(policy.model))
    assert set(given) - set(saved) <= {"lm_head.weight"}, "a tied head is saved once"
    assert all(torch.equal(given[name], saved[name]) for name in saved)
    assert all(torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())
    assert not any(value.requires_grad for value in given.values())
