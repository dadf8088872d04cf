"""`--engine verl` where verl is not installed: what is composed, partitioned and refused."""

import asyncio
import importlib
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from pivot import recipes
from pivot.cli import main
from pivot.config import apply_settings
from pivot.engines.images import ImageReader
from pivot.engines.jobs import has_images, partition, pieces_of
from pivot.engines.packing import Packing
from pivot.engines.ranks import MeasuredPrompt
from pivot.engines.verl.compose import ClusterOptions, compose, device_of, offloads, tensor_parallel
from pivot.engines.verl.launch import TESTED, check_environment, check_machine, check_supported
from pivot.engines.verl.overrides import check_extra
from pivot.engines.verl.rollouts import ReplicaRollouts, ServerRollouts, server_settings
from pivot.errors import UserError
from pivot.method import preset
from pivot.models.loading import load_tokenizer_only, resolve_model
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.tiny import procedural
from pivot.types import Prompt

NO_GPU = not torch.cuda.is_available()


def settings_of(launch) -> dict[str, str]:
    return dict(part.lstrip("+").split("=", 1) for part in launch.command[3:])


def test_a_recipe_becomes_verls_configuration():
    config = recipes.get("geo3k-7b")
    launch = compose(
        config, ClusterOptions(nodes=2, gpus=8, address="auto", extra=("a.b=1",)), Path("/runs/x")
    )
    found = settings_of(launch)
    assert launch.command[1:3] == ("-m", "pivot.engines.verl")
    assert found["actor_rollout_ref.model.path"] == "Qwen/Qwen2.5-VL-7B-Instruct"
    assert (found["trainer.nnodes"], found["trainer.n_gpus_per_node"]) == ("2", "8")
    assert found["trainer.v1.trainer_mode"] == "pivot"
    assert found["trainer.device"] == "cuda"
    assert "trainer.total_training_steps" not in found, (
        "the run counts: `train.epochs` are steps once rows are read"
    )
    assert found["actor_rollout_ref.rollout.name"] == "vllm"
    assert found["actor_rollout_ref.rollout.n"] == "8"
    assert found["actor_rollout_ref.actor.strategy"] == "fsdp2"
    assert found["actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"] == "bf16"
    assert found["actor_rollout_ref.actor.fsdp_config.model_dtype"] == "fp32"
    assert float(found["actor_rollout_ref.actor.optim.lr"]) == 1e-6
    assert found["actor_rollout_ref.actor.use_kl_loss"] == "false"
    assert found["actor_rollout_ref.rollout.agent.agent_loop_manager_class"].endswith(".ServerRollouts")
    assert found["ray_kwargs.ray_init.address"] == "auto"
    # A running cluster's workers learn of the plug-in from the job.
    assert found["ray_kwargs.ray_init.runtime_env.env_vars.PIVOT_VERL"] == "'1'"
    assert launch.command[-1] == "a.b=1", "what is passed on comes last and wins"
    assert "VERL_PLATFORM" not in launch.environment


def test_only_a_method_with_a_reference_model_has_verl_load_one():
    config = recipes.get("geo3k-3b")
    for name, wanted in (("pivot", "false"), ("grpo", "true"), ("pivot-grpo", "true")):
        found = settings_of(compose(replace(config, method=preset(name)), ClusterOptions(), Path("/runs/x")))
        assert found["actor_rollout_ref.actor.use_kl_loss"] == wanted


@pytest.mark.skipif(not NO_GPU, reason="a GPU is there")
def test_without_a_gpu_the_tiny_model_runs_on_processes():
    launch = compose(recipes.get("tiny"), ClusterOptions(gpus=2), Path("/runs/x"), temporary=Path("/tmp/t"))
    found = settings_of(launch)
    assert launch.environment["VERL_PLATFORM"] == "cpu"
    assert found["trainer.device"] == "cpu"
    assert found["actor_rollout_ref.rollout.name"] == "pivot"
    assert found["actor_rollout_ref.rollout.agent.agent_loop_manager_class"].endswith(".ReplicaRollouts")
    assert found["ray_kwargs.ray_init.num_gpus"] == "2"
    assert found["ray_kwargs.ray_init._node_ip_address"] == "127.0.0.1"
    assert found["ray_kwargs.ray_init._temp_dir"] == "/tmp/t"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("actor_rollout_ref.model.use_fused_kernels=true", "must be false: it replaces the model's forward"),
        ("++actor_rollout_ref.model.use_liger=true", "must be false"),
        ("+actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "must be 1: sequence parallelism"),
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size='2'", "must be 1"),
        ("actor_rollout_ref.ref.fsdp_config.use_torch_compile=true", "must be false"),
        ("actor_rollout_ref.actor.use_prefix_grouper=true", "must be false"),
        ("actor_rollout_ref.model={use_remove_padding:true}", "replaces a whole section"),
        ("actor@actor_rollout_ref.actor=megatron_actor", "replaces a whole section"),
        ("model_engine=megatron", "must be dp"),
        ("actor_rollout_ref.actor.optim.lr=1", "this project's own train.lr"),
        ("actor_rollout_ref.rollout.temperature=0.5", "this project's own rollout.temperature"),
        ("actor_rollout_ref.model.use_remove_padding", "takes A.B=C"),
        ("~actor_rollout_ref.model.use_remove_padding=false", "takes A.B=C"),
    ],
)
def test_settings_that_would_corrupt_a_run_or_do_nothing_are_refused(setting, words):
    with pytest.raises(UserError, match=re.escape(words)):
        check_extra([setting])


def test_other_settings_of_verl_are_passed_on():
    extra = (
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.model.use_remove_padding=False",
        "trainer.logger=[console,wandb]",
    )
    check_extra(extra)
    launch = compose(recipes.get("geo3k-3b"), ClusterOptions(extra=extra), Path("/runs/x"))
    assert tuple(launch.command[-len(extra) :]) == extra, "last, so that they win"
    assert settings_of(launch).items() >= dict(setting.split("=", 1) for setting in extra).items()


def test_adapters_are_verls_own_and_servers_receive_merged_weights():
    found = settings_of(compose(recipes.get("geo3k-7b-lora"), ClusterOptions(gpus=2), Path("/runs/x")))
    at = "actor_rollout_ref.model"
    assert (found[f"{at}.lora_rank"], found[f"{at}.lora_alpha"], found[f"{at}.lora.merge"]) == (
        "64",
        "128",
        "true",
    )
    targets = re.compile(found[f"{at}.target_modules"].strip("'"))
    assert targets.fullmatch("model.language_model.layers.3.self_attn.q_proj")
    assert targets.fullmatch("model.text_model.layers.3.mlp.down_proj")
    assert not targets.fullmatch("model.visual.blocks.3.mlp.down_proj")
    plain = settings_of(compose(recipes.get("geo3k-7b"), ClusterOptions(gpus=2), Path("/runs/x")))
    assert f"{at}.lora_rank" not in plain


@pytest.mark.parametrize(
    ("recipe", "gpus", "gigabytes", "expected"),
    [
        ("geo3k-3b", 1, 80, True),
        ("geo3k-7b", 8, 80, False),
        ("geo3k-7b", 4, 80, True),  # 8.29e9 x 12 / 4 bytes are 24.9 GB, and 0.3 x 80 GB are left
        ("geo3k-7b-lora-verl", 2, 80, False),
        ("geo3k-7b-lora-verl", 4, 24, True),
    ],
)
def test_weights_and_optimizer_leave_a_gpu_that_does_not_hold_them_beside_the_server(
    recipe, gpus, gigabytes, expected
):
    assert offloads(recipes.get(recipe), ClusterOptions(gpus=gpus), gigabytes * 10**9) == expected


@pytest.mark.skipif(not NO_GPU, reason="another GPU may hold more")
@pytest.mark.parametrize(("gpus", "expected"), [(1, "true"), (8, None)])
def test_one_gpu_turns_both_offloads_on(gpus, expected):
    found = settings_of(compose(recipes.get("geo3k-3b"), ClusterOptions(gpus=gpus), Path("/runs/x")))
    for name in ("param_offload", "optimizer_offload"):
        assert found.get(f"actor_rollout_ref.actor.fsdp_config.{name}") == expected


@pytest.mark.parametrize(
    ("model", "gpus", "gigabytes", "expected"),
    [
        ("Qwen/Qwen2.5-VL-3B-Instruct", 8, 80, 1),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 8, 80, 1),
        ("Qwen/Qwen2.5-VL-7B-Instruct", 4, 24, 2),
        ("Qwen/Qwen2.5-VL-32B-Instruct", 8, 80, 4),
        ("Qwen/Qwen2.5-VL-32B-Instruct", 6, 80, 2),
        ("someone/unknown", 8, 80, 1),
    ],
)
def test_a_server_has_as_many_gpus_as_its_weights_need(model, gpus, gigabytes, expected):
    """33.4e9 weights in bfloat16 are 67 GB: more than two times 0.4 x 80 GB."""
    config = apply_settings(recipes.get("geo3k-7b"), [f"model.path={model}"])
    assert tensor_parallel(config, ClusterOptions(gpus=gpus), gigabytes * 10**9) == expected


@pytest.mark.skipif(not NO_GPU, reason="another GPU may need another number")
def test_a_dry_run_of_the_32b_recipe_shares_servers_between_gpus(tmp_path, capsys):
    arguments = [
        "--engine",
        "verl",
        "--recipe",
        "geo3k-32b",
        "--nodes",
        "4",
        "--gpus",
        "8",
        "--address",
        "auto",
    ]
    assert main(["train", *arguments, "--out", str(tmp_path / "x"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "actor_rollout_ref.rollout.tensor_model_parallel_size=4" in said
    assert "actor_rollout_ref.actor.fsdp_config.use_no_sync_for_gradient_accumulation=false" in said
    assert '"path": "Qwen/Qwen2.5-VL-32B-Instruct"' in said


def test_sglang_is_a_switch():
    launch = compose(recipes.get("geo3k-3b"), ClusterOptions(rollout="sglang"), Path("/runs/x"))
    assert settings_of(launch)["actor_rollout_ref.rollout.name"] == "sglang"


def test_paths_that_hydra_would_read_otherwise_are_quoted():
    found = settings_of(compose(recipes.get("tiny"), ClusterOptions(), Path("/runs/a b,c=d")))
    assert found["pivot.run"] == "'/runs/a b,c=d'"


def test_dry_run_prints_the_command_and_starts_nothing(tmp_path, capsys):
    out = tmp_path / "x"
    arguments = ["--engine", "verl", "--recipe", "geo3k-7b", "--nodes", "2", "--gpus", "8", "--out", str(out)]
    assert main(["train", *arguments, "--verl", "trainer.logger=[console,wandb]", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "-m pivot.engines.verl" in said
    assert "trainer.nnodes=2" in said
    assert '"path": "Qwen/Qwen2.5-VL-7B-Instruct"' in said
    assert said.rstrip().endswith("'trainer.logger=[console,wandb]'")
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "2"], "--gpus needs --engine verl"),
        (["--verl", "a=b"], "--verl needs --engine verl"),
        (["--dry-run"], "--dry-run needs --engine verl"),
        (["--engine", "verl", "--gpus", "0"], "--gpus must be at least 1, got 0"),
        (
            ["--engine", "verl", "--set", "model.lora_rank=8", "--set", "model.quantize=nf4"],
            "model.quantize needs --engine local",
        ),
        (
            ["--engine", "verl", "--verl", "actor_rollout_ref.model.use_remove_padding=True"],
            "verl's actor_rollout_ref.model.use_remove_padding is True, but must be false",
        ),
    ],
)
def test_a_users_mistake_is_one_sentence(tmp_path, capsys, arguments, words):
    assert main(["train", "--out", str(tmp_path / "x"), *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.skipif(not NO_GPU, reason="a GPU is there")
def test_missing_gpus_are_said_before_anything_is_written(tmp_path, capsys):
    arguments = ["train", "--engine", "verl", "--recipe", "geo3k-7b", "--out", str(tmp_path / "x")]
    assert main([*arguments, "--gpus", "8"]) == 2
    assert "needs GPUs and torch finds none here" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    with pytest.raises(UserError, match="2 nodes need a running Ray cluster"):
        check_machine(recipes.get("tiny"), ClusterOptions(nodes=2))
    check_machine(recipes.get("tiny"), ClusterOptions(nodes=2, address="127.0.0.1:6379"))
    check_machine(recipes.get("geo3k-7b"), ClusterOptions(nodes=2, gpus=8, address="auto"))


def test_what_is_missing_or_untested_is_named(monkeypatch):
    versions = {name: first for name, (first, _) in TESTED.items()}

    def version(name):
        if versions.get(name) is None:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    with pytest.raises(UserError, match="not registered as a plug-in"):
        check_environment()
    versions["verl"] = "0.8.0"
    with pytest.raises(
        UserError, match=r"verl 0\.8\.0 is installed, but --engine verl was tested with 0\.9\.1"
    ):
        check_environment()
    versions |= {"verl": "0.9.1", "ray": None}
    with pytest.raises(UserError, match="needs ray, which is not installed here"):
        check_environment()
    versions |= {"ray": "2.60.0", "transformers": "5.11.0rc1"}
    with pytest.raises(UserError, match=r"transformers 5\.11\.0rc1 is installed"):
        check_environment()


def test_the_plug_in_is_an_entry_point_of_this_project():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'"verl\.plugins"\]\npivot = "pivot\.engines\.verl\.plugin"', text)


def test_the_parts_that_need_no_verl_import_none():
    """`pivot train --help`, `--dry-run` and every refusal work where verl is not installed."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            import_without_verl()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def import_without_verl() -> None:
    """Import them anew, where importing verl or Ray fails."""
    for name in [
        name for name in sys.modules if name.startswith("pivot.engines") or name == "pivot.cli.train"
    ]:
        del sys.modules[name]
    sys.modules["verl"] = sys.modules["ray"] = None
    for name in ("engines.verl.launch", "engines.verl.rollouts", "engines.ranks", "cli.train"):
        importlib.import_module(f"pivot.{name}")


def test_device_follows_the_configuration():
    config = recipes.get("geo3k-3b")
    assert device_of(config) == "cuda"
    assert device_of(apply_settings(config, ["model.device=cpu"])) == "cpu"
    assert device_of(apply_settings(config, ["model.device=cuda:1"])) == "cuda"
    with pytest.raises(UserError, match="quantize"):
        check_supported(apply_settings(config, ["model.lora_rank=4", "model.quantize=nf4"]))
    check_supported(apply_settings(config, ["model.lora_rank=4", "model.freeze_vision=true"]))


# Partitioning -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def units():
    prompts = procedural.dataset("train", 7)
    return [
        PromptWithResponses(
            MeasuredPrompt(p, 60 + 7 * i), [torch.arange(3 + (5 * i + 7 * j) % 23) for j in range(1 + i % 4)]
        )
        for i, p in enumerate(prompts)
    ]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 16])
@pytest.mark.parametrize("budget", [300, 100_000])
def test_every_row_has_one_rank_and_ranks_stay_in_step(units, num_ranks, budget):
    plans = partition(units, Packing("tree", budget), num_ranks)
    pieces = pieces_of(units, plans)
    assert len(pieces) == num_ranks
    assert len({len(part) for part in pieces}) == 1, "all ranks enter the model equally often"
    counted = [piece for part in pieces for piece in part if piece.counts]
    rows = torch.cat([piece.rows for piece in counted])
    total = sum(len(unit.responses) for unit in units)
    assert sorted(rows.tolist()) == list(range(total))
    responses = [y for unit in units for y in unit.responses]
    for piece in counted:
        flat = [y for ys in piece.responses for y in ys]
        assert all(torch.equal(y, responses[row]) for y, row in zip(flat, piece.rows.tolist(), strict=True))


def test_a_prompt_stays_on_one_rank_and_ranks_have_alike_much_to_do(units):
    pieces = pieces_of(units, partition(units, Packing("tree", 300), 2))
    ids = [{prompt.id for piece in part if piece.counts for prompt in piece.prompts} for part in pieces]
    assert not ids[0] & ids[1]
    load = [sum(unit.tree_length for unit in units if unit.prompt.prompt.id in names) for names in ids]
    assert max(load) - min(load) <= max(unit.tree_length for unit in units)


def test_ranks_without_rows_get_stand_ins_that_do_not_count(units):
    pieces = pieces_of(units[:1], partition(units[:1], Packing("tree", 100_000), 3))
    assert [[piece.counts for piece in part] for part in pieces] == [[True], [False], [False]]
    assert has_images(units)
    blind = replace(units[0].prompt.prompt, images=())
    assert not has_images([PromptWithResponses(replace(units[0].prompt, prompt=blind), units[0].responses)])


def test_sampling_settings_are_the_servers_own_words():
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=0, max_tokens=50)
    unseeded = server_settings("vllm", sampling, None, ends=[2], banned=[])
    assert not {"seed", "sampling_seed"} & unseeded.keys()
    vllm = server_settings("vllm", sampling, 2**62 + 5, ends=[2], banned=[11, 12])
    assert vllm["seed"] == 5
    assert vllm["top_k"] == -1
    assert vllm["logit_bias"] == {11: -100.0, 12: -100.0}
    sglang = server_settings("sglang", sampling, 7, ends=[2], banned=[11])
    assert sglang["logit_bias"] == {"11": -100.0}
    assert sglang["sampling_seed"] == 7
    for settings in (vllm, sglang):
        assert (settings["temperature"], settings["top_p"], settings["max_tokens"]) == (0.7, 0.9, 50)
        assert settings["stop_token_ids"] == [2]


# Rollouts ------------------------------------------------------------------------------------------------


class EchoClient:
    """In place of verl's client of servers that need a GPU: notes requests, answers with two tokens."""

    def __init__(self, end: int) -> None:
        self.end, self.requests = end, []

    async def generate(self, request_id, **request):
        last = 20 if len(self.requests) % 2 else self.end
        self.requests.append({**request, "request_id": request_id, "answer": [20, last]})
        return SimpleNamespace(token_ids=[20, last], log_probs=[-0.5, -0.25], extra_fields={})


def verl_config(name: str, ranks: int = 4, tensor_parallel: int = 2, full_determinism: bool = False):
    rollout = SimpleNamespace(
        name=name,
        tensor_model_parallel_size=tensor_parallel,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
        full_determinism=full_determinism,
    )
    return SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=rollout),
        trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=ranks),
    )


def server_rollouts(client_of, **options):
    """`ServerRollouts` with a client in place of verl's, and the images that were put where servers find them."""
    tokenizer_only = load_tokenizer_only(Path(resolve_model("tiny")))
    client = client_of(tokenizer_only.end_ids[0])
    rollouts = ServerRollouts.create(verl_config("vllm", **options), client, teacher_client=None)
    rollouts.tokenizer_only = tokenizer_only
    rollouts.images = ImageReader(tokenizer_only.encoder.resized).take
    shared = []
    rollouts.share = lambda images: shared.append(images) or images
    return rollouts, client, shared


def test_servers_get_token_ids_and_images_and_a_prompts_samples_stay_together():
    rollouts, client, shared = server_rollouts(EchoClient)
    prompts = procedural.dataset("train", 2)
    found = list(rollouts.sample(prompts, SampleRequest(3, Sampling(max_tokens=5), (0, 7))))
    assert sorted(index for index, _ in found) == [0, 1]
    assert all(len(responses) == 3 for _, responses in found)
    assert len(client.requests) == 6
    assert not any("seed" in request["sampling_params"] for request in client.requests)
    assert sorted(Counter(request["request_id"] for request in client.requests).values()) == [3, 3]
    assert len(shared) == 2, "once per prompt"
    first = client.requests[0]
    image_token = rollouts.tokenizer_only.family.image_token_id
    assert first["prompt_ids"].count(image_token) == len(prompts[0].images) == 1
    width, height = first["image_data"][0].size
    assert width % 28 == height % 28 == 0, "brought to its final size before the server sees it"
    assert not any("logprobs" in request["sampling_params"] for request in client.requests)
    for index, responses in found:  # whichever prompt was asked for first: images are read in threads
        ids = rollouts.tokenizer_only.encoder.text_ids(prompts[index])
        answers = [request["answer"] for request in client.requests if request["prompt_ids"] == ids]
        assert [r.token_ids_T.tolist() for r in responses] == answers
        assert [r.truncated for r in responses] == [answer[-1] != client.end for answer in answers]
        assert {r.truncated for r in responses} == {True, False}
        assert all(r.entropy_T is None for r in responses)
        assert all(r.logprobs_T is None for r in responses), "a server's are those after top-p"


def test_full_determinism_asks_for_a_seed_per_sample():
    rollouts, client, _ = server_rollouts(EchoClient, full_determinism=True)
    refill = lambda finished: pytest.fail("which groups finish first is not reproducible")  # noqa: E731
    request = SampleRequest(3, Sampling(max_tokens=5), (0, 7), refill=refill)
    list(rollouts.sample(procedural.dataset("train", 2), request))
    assert len({request["sampling_params"]["seed"] for request in client.requests}) == 6
    assert len({request["request_id"] for request in client.requests}) == 6


class TailClient(EchoClient):
    """The first request takes until the third prompt has been asked for: a long response."""

    async def generate(self, request_id, **request):
        number = len(self.requests)
        output = await super().generate(request_id, **request)
        while number == 0 and len(self.requests) < 3:
            await asyncio.sleep(0.001)
        return output


def test_more_prompts_are_sampled_while_a_long_response_is_running():
    rollouts, _, _ = server_rollouts(TailClient)
    prompts = procedural.dataset("train", 3)
    finished = []

    def refill(new):
        finished.append(sorted(new))
        return [MeasuredPrompt(prompts[2], 1)] if len(finished) == 1 else []

    request = SampleRequest(1, Sampling(max_tokens=5), (0, 7), refill=refill)
    found = dict(rollouts.sample(prompts[:2], request))
    assert len(finished[0]) == 1, "without waiting for the slow one, whichever was asked first"
    assert sorted(found) == [0, 1, 2]
    assert sorted(index for new in finished for index in new) == [0, 1, 2]


def test_images_are_decoded_once_and_forgotten_when_they_are_taken(picture):
    opened = []

    class Source:
        def open(self):
            opened.append(1)
            return picture(56, 84).open()

    reader = ImageReader(lambda image: image.resize((28, 28)))
    prompt = Prompt("p", "<image>?", "1", (Source(),))
    reader.announce([prompt, Prompt("q", "?", "1")])
    reader.check(prompt)
    assert [image.size for image in reader.take(prompt)] == [(28, 28)]
    assert len(opened) == 1
    assert reader.take(Prompt("q", "?", "1")) == []
    reader.take(prompt)
    assert len(opened) == 2


def test_replicas_share_the_prompts_and_each_comes_back_in_its_place():
    class Replica:
        shares: ClassVar[list] = []

        async def generate(self, request_id, *, prompts, request, **_):
            self.shares.append(len(prompts))
            return SimpleNamespace(extra_fields={"groups": [[p.id] for p in prompts]})

    rollouts = ReplicaRollouts(verl_config("pivot", ranks=3, tensor_parallel=1), Replica())
    prompts = procedural.dataset("train", 8)
    found = dict(rollouts.sample(prompts, SampleRequest(2, Sampling(), (0, 1))))
    assert {index: [prompts[index].id] for index in range(8)} == found
    assert sorted(Replica.shares) == [2, 3, 3]


@pytest.mark.parametrize(
    ("settings", "temperature"),
    [
        ([], "1.0"),
        (["rollout.temperature=0.7"], "0.7"),
        (["rollout.temperature=0.7", "rollout.logprob_temperature=1"], "1.0"),
    ],
)
def test_replicas_record_log_probs_at_the_temperature_of_the_loss(tmp_path, settings, temperature):
    config = apply_settings(recipes.get("tiny"), ["model.device=cpu", *settings])
    found = settings_of(compose(config, ClusterOptions(), tmp_path))
    assert found["actor_rollout_ref.rollout.engine_kwargs.pivot.temperature"] == temperature
