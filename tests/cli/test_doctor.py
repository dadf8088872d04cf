"""`pivot doctor`: the machine, the estimate against real models, the verdict."""

import json
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from pivot import recipes
from pivot.cli import main
from pivot.config import Config, apply_settings
from pivot.doctor import Device, estimate, find_architecture, inspect_machine, judge
from pivot.doctor.memory import kept_bytes as kept_by_layers
from pivot.doctor.speed import Gpu, hours, known_gpu, named_gpu
from pivot.errors import UserError
from pivot.models.loading import load_policy

GPU = Device("test GPU", 80 * 2**30, 80 * 2**30, "cuda")


def tiny_config(family="qwen2_5_vl", *, layers=2, depth=2, hidden=64):
    """A small random model of a family."""
    text = {"hidden_size": hidden, "intermediate_size": 160, "num_hidden_layers": layers, "vocab_size": 200}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": hidden // 4}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}}
    text |= {"bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
    vision = {
        "qwen2_vl": {"embed_dim": 48, "hidden_size": hidden, "mlp_ratio": 2, "num_heads": 4},
        "qwen2_5_vl": {"hidden_size": 48, "out_hidden_size": hidden, "intermediate_size": 80, "num_heads": 4},
        "qwen3_vl": {"hidden_size": 48, "out_hidden_size": hidden, "intermediate_size": 80, "num_heads": 4},
    }[family]
    vision |= {"depth": depth}
    if family == "qwen2_5_vl":
        vision |= {"fullatt_block_indexes": list(range(depth))}
    if family == "qwen3_vl":
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    ids = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8}
    return AutoConfig.for_model(
        family, text_config=text, vision_config=vision, tie_word_embeddings=False, **ids
    )


def by_name(found):
    return {item.name: item.num_bytes for item in found.items}


def test_the_3b_model_counted_by_hand():
    hidden, keys, gated, layers = 2048, 2 * 128, 11008, 36
    layer = 2 * hidden**2 + hidden + 2 * (hidden * keys + keys) + 3 * hidden * gated + 2 * hidden
    width, inner, blocks, merged = 1280, 3420, 32, 4 * 1280
    block = 4 * width**2 + 4 * width + 3 * width * inner + 2 * inner + width + 2 * width
    merger = width + merged**2 + merged + merged * hidden + hidden
    vision = 3 * 2 * 14 * 14 * width + blocks * block + merger
    model = find_architecture("Qwen/Qwen2.5-VL-3B-Instruct")
    assert model.vision_parameters == vision
    assert model.parameters == 151936 * hidden + layers * layer + hidden + vision


@pytest.mark.parametrize(("size", "index_bytes"), [("7B", 16_584_333_312), ("32B", 66_905_436_672)])
def test_published_sizes_give_the_published_weights(size, index_bytes):
    """The bytes that the checkpoints' model.safetensors.index.json states, in bfloat16."""
    model = find_architecture(f"Qwen/Qwen2.5-VL-{size}-Instruct")
    assert by_name(estimate(recipes.get("geo3k-7b"), model))["weights"] == index_bytes


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_local_folder_gives_its_own_sizes(family, tmp_path):
    config = tiny_config(family)
    AutoModelForImageTextToText.from_config(config).save_pretrained(tmp_path)
    real = AutoModelForImageTextToText.from_pretrained(tmp_path)
    model = find_architecture(str(tmp_path))
    assert model.parameters == sum(p.numel() for p in real.parameters())
    assert model.vision_parameters == sum(p.numel() for p in real.model.visual.parameters())
    assert (model.text.layers, model.text.hidden, model.text.key_width) == (2, 64, 32)
    assert (model.vision.hidden, model.patches_per_token) == (48, 4)


def test_the_tiny_models_item_is_its_real_weight():
    config = recipes.get("tiny")
    weights = by_name(estimate(config, find_architecture(config.model.path)))["weights"]
    assert weights == sum(p.numel() * p.element_size() for p in load_policy("tiny").model.parameters())


def kept_bytes(model, run):
    """Bytes of all tensors that autograd keeps of `run`, the model's own weights aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = run()
    assert output is not None
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_autograd_keeps(dtype, tmp_path):
    """Two more layers cost what the formula says: 5% covers the log-sum-exp a head, which it leaves out."""
    tokens, measured, stacks = 256, [], []
    for layers in (1, 3):
        config = tiny_config(layers=layers, depth=layers)
        config.save_pretrained(tmp_path)
        model = AutoModelForImageTextToText.from_config(config).to(getattr(torch, dtype))
        embedded = torch.randn(1, tokens, 64, dtype=model.dtype, requires_grad=True)
        positions = torch.arange(tokens).expand(3, 1, -1)
        pixels, grid = torch.randn(tokens, 3 * 2 * 14 * 14, dtype=model.dtype), torch.tensor([[1, 16, 16]])
        text = kept_bytes(
            model,
            lambda m=model, e=embedded, p=positions: m.model.language_model(
                inputs_embeds=e, position_ids=p, use_cache=False
            ),
        )
        vision = kept_bytes(model, lambda m=model, p=pixels, g=grid: m.model.visual(p, g))
        measured.append((text, vision))
        found = find_architecture(str(tmp_path))
        stacks.append((found.text, found.vision))
    settings = apply_settings(Config(), [f"model.dtype={dtype}"])
    for kind in (0, 1):
        formula = [kept_by_layers(pair[kind], tokens, settings, is_vision=bool(kind)) for pair in stacks]
        assert formula[1] - formula[0] == pytest.approx(measured[1][kind] - measured[0][kind], rel=0.05)


def test_each_switch_moves_its_own_item():
    config, model = recipes.get("geo3k-3b"), find_architecture("Qwen/Qwen2.5-VL-3B-Instruct")
    base = by_name(estimate(config, model))

    def changed(*settings):
        other = by_name(estimate(apply_settings(config, settings), model))
        return {name: other.get(name, 0) / base[name] if name in base else None for name in {*base, *other}}

    assert changed("rollout.batch_tokens=131072") == {
        **dict.fromkeys(base, 1.0),
        "KV cache": 2.0,
        "sampling": 2.0,
    }
    assert changed("train.offload_optimizer=true") == {**dict.fromkeys(base, 1.0), "optimizer step": 0}
    # 4 bytes of a master and 2 of moments instead of 12, and a float32 scale per 256 values of each moment.
    assert changed("train.optimizer=adamw_8bit")["optimizer"] == pytest.approx((6 + 8 / 256) / 12)
    assert changed("method=grpo", "model.lora_rank=8")["reference model"] is None
    assert changed("model.gradient_checkpointing=false")["activations"] > 10
    assert changed("model.freeze_vision=true")["vision activations"] == 0
    assert changed("model.lora_rank=8")["optimizer"] < 0.01
    assert changed("model.lora_rank=8", "model.quantize=nf4")["weights"] < 0.5
    assert changed("buffer.max_prompts=288")["experience buffer"] == 0.01


def test_kv_cache_by_hand():
    config, model = recipes.get("geo3k-7b"), find_architecture("Qwen/Qwen2.5-VL-7B-Instruct")
    # 65,536 tokens, 28 layers, keys and values of 4 heads of 128, 2 bytes.
    assert by_name(estimate(config, model))["KV cache"] == 65536 * 28 * 2 * 4 * 128 * 2


def test_the_verdict_follows_the_device():
    config, model = recipes.get("geo3k-3b"), find_architecture("Qwen/Qwen2.5-VL-3B-Instruct")
    shared = judge(config, model, replace(GPU, total_bytes=200 * 2**30))
    assert shared.estimate.total("rollout") == round(0.22 * 200 * 2**30), "vLLM's share of the GPU"
    config = apply_settings(config, ["sampling.engine=native"])
    fitting = judge(config, model, replace(GPU, total_bytes=200 * 2**30))
    assert fitting.fits
    assert fitting.changes == ()
    tight = judge(config, model, replace(GPU, total_bytes=int(fitting.needed / 0.9) - 2**30))
    assert not tight.fits
    assert tight.fits_with_changes
    assert [change.setting.partition("=")[0] for change in tight.changes] == ["train.micro_batch_tokens"]
    hopeless = judge(config, model, replace(GPU, total_bytes=2 * 2**30))
    assert not hopeless.fits_with_changes
    assert hopeless.gpus_needed > 8


def test_the_changes_do_what_they_say():
    config, model = recipes.get("geo3k-7b"), find_architecture("Qwen/Qwen2.5-VL-7B-Instruct")
    verdict = judge(config, model, GPU)
    changed = apply_settings(config, [change.setting for change in verdict.changes])
    assert judge(changed, model, GPU).fits
    assert verdict.changes[-1].peak == judge(changed, model, GPU).needed
    for left_out in verdict.changes:
        rest = [change.setting for change in verdict.changes if change is not left_out]
        assert not judge(apply_settings(config, rest), model, GPU).fits


def test_without_a_gpu_the_buffer_counts_too():
    config, model = apply_settings(recipes.get("tiny"), ["sampling.engine=native"]), find_architecture("tiny")
    on_cpu, on_gpu = judge(config, model, replace(GPU, kind="cpu")), judge(config, model, GPU)
    assert on_cpu.needed - on_gpu.needed == on_cpu.estimate.host > 0


def test_the_machine_is_really_looked_at():
    machine = inspect_machine()
    assert machine.libraries["torch"] == torch.__version__
    assert len(machine.gpus) == torch.cuda.device_count()
    assert 0 < machine.memory.free_bytes <= machine.memory.total_bytes
    assert machine.device("cpu") is machine.memory


def test_the_command_prints_items_and_verdict(capsys):
    assert main(["doctor", "--recipe", "tiny"]) == 0
    text = capsys.readouterr().out
    for part in (
        "torch ",
        "weights",
        "optimizer",
        "activations",
        "KV cache",
        "backward",
        "experience buffer",
    ):
        assert part in text
    assert "\nfits: " in text


def test_the_command_says_what_to_change(capsys):
    assert main(["doctor", "--model", "Qwen/Qwen2.5-VL-32B-Instruct", "--recipe", "geo3k-7b", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is (found["needed_bytes"] <= found["usable_bytes"]) is False, "32B on any machine"
    assert found["model"]["parameters"] == 33_452_718_336
    assert [item["name"] for item in found["items"]][:2] == ["weights", "optimizer"]


@pytest.mark.parametrize(
    ("recipe", "gpu"), [("geo3k-3b", "A100-80GB"), ("geo3k-3b-lora", "RTX-4090"), ("geo3k-7b-lora", "L40S")]
)
def test_each_recipe_fits_the_gpu_that_it_is_for(recipe, gpu, capsys):
    assert main(["doctor", "--recipe", recipe, "--device", gpu]) == 0
    text = capsys.readouterr().out
    assert "\nfits: " in text
    assert "hours per step" in text


def test_the_smallest_recipe_fits_16_gb_without_a_gpu(capsys):
    main(["doctor", "--recipe", "smolvlm-256m", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["parameters"] == 256_484_928
    assert found["needed_bytes"] < 0.75 * 16e9


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("HuggingFaceTB/SmolVLM2-500M-Video-Instruct", 0.507),
        ("OpenGVLab/InternVL3-1B-hf", 0.938),
        ("OpenGVLab/InternVL3_5-1B-HF", 1.061),
        ("google/gemma-3-4b-it", 4.300),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8.031),
        ("Qwen/Qwen3-VL-8B-Instruct", 8.767),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 31.071),
    ],
)
def test_published_models_have_their_published_size(name, billions):
    assert find_architecture(name).parameters / 1e9 == pytest.approx(billions, abs=6e-4)


def test_hours_by_hand():
    """8-sequence groups of a made-up GPU: 100 TFLOP/s and 1000 GB/s."""
    config, model = recipes.get("geo3k-3b"), find_architecture("Qwen/Qwen2.5-VL-3B-Instruct")
    found = hours(config, model, Gpu("test", 80, 100, 1000))
    text, prompt = model.parameters - model.vision_parameters, 1280 + 150
    forward = 2 * text * (prompt + 5 * 400) + 2 * model.vision_parameters * 4 * 1280
    # Forward, twice that backward, and once more for checkpointing; PIVOT scores clean, corrupted and candidates.
    assert found.update == pytest.approx(384 * 4 * forward / (0.35 * 100e12) / 3600)
    assert found.scoring == pytest.approx(384 * 3 * forward / (0.35 * 100e12) / 3600)
    adapted = hours(apply_settings(config, ["model.lora_rank=8"]), model, Gpu("test", 80, 100, 1000))
    assert adapted.update < 0.75 * found.update


def test_gpus_are_known_by_the_names_that_torch_gives():
    a100 = Device("NVIDIA A100-SXM4-80GB", 85_000_000_000, 0, "cuda")
    assert known_gpu(a100) == named_gpu("a100-80gb")
    assert known_gpu(Device("NVIDIA GeForce RTX 4090", 25_000_000_000, 0, "cuda")) == named_gpu("RTX-4090")
    assert known_gpu(Device("CPU", 25_000_000_000, 0, "cpu")) is None
    with pytest.raises(UserError, match="must be one of RTX-3090"):
        named_gpu("V100")


def test_lora_is_advised_with_its_learning_rate(capsys):
    settings = ["--set", "train.offload_optimizer=true"]
    assert main(["doctor", "--recipe", "geo3k-7b", "--device", "RTX-4090", *settings]) == 1
    text = capsys.readouterr().out
    assert "--set model.lora_rank=64" in text
    assert "--set train.lr=1.0e-05" in text


def test_unknown_sizes_are_one_sentence(capsys):
    assert main(["doctor", "--model", "somebody/some-model"]) == 2
    assert "The sizes of 'somebody/some-model' are unknown" in capsys.readouterr().err
    with pytest.raises(UserError, match="download the model first"):
        find_architecture("somebody/some-model")


def test_what_no_extra_installs_is_not_called_one(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "[verl]" not in text
    assert "[data]" not in text
    assert "an environment of its own: docs/cluster.md" in text


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        (["--recipe", "geo3k-32b", "--nodes", "4", "--gpus", "8", "--device", "H100-80GB"], True),
        (["--recipe", "geo3k-32b", "--gpus", "8", "--device", "H100-80GB"], False),
        (["--recipe", "geo3k-7b-lora-verl", "--gpus", "4", "--device", "RTX-4090"], True),
        (["--recipe", "geo3k-7b-lora-verl", "--gpus", "2", "--device", "A100-80GB"], True),
        (["--recipe", "geo3k-7b", "--gpus", "4", "--device", "RTX-4090"], False),
    ],
)
def test_the_verl_engine_is_estimated_per_gpu(capsys, arguments, fits):
    assert main(["doctor", "--json", *arguments]) == (0 if fits else 1)
    report = json.loads(capsys.readouterr().out)
    assert report["fits"] == fits
    items = {item["name"]: item["num_bytes"] for item in report["items"]}
    ranks = int(arguments[arguments.index("--gpus") + 1]) * (4 if "--nodes" in arguments else 1)
    if "lora" not in arguments[1]:
        assert items["optimizer"] == pytest.approx(2 * items["weights"], rel=1e-6)
        assert items["weights"] == 4 * report["model"]["parameters"] // ranks


def test_the_number_of_gpus_is_checked(capsys):
    assert main(["doctor", "--recipe", "geo3k-7b", "--gpus", "0"]) == 2
    assert "--nodes and --gpus must be at least 1, got 1 and 0" in capsys.readouterr().err
