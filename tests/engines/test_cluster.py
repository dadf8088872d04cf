"""`--engine verl` where verl is not installed: what is composed, partitioned and refused."""

import re
import subprocess
import sys
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
from pivot.engines.jobs import has_images, partition, pieces_of
from pivot.engines.packing import Packing
from pivot.engines.ranks import MeasuredPrompt
from pivot.engines.verl.compose import ClusterOptions, compose, device_of
from pivot.engines.verl.launch import TESTED, check_environment, check_machine, check_supported
from pivot.engines.verl.rollouts import ReplicaRollouts, ServerRollouts, server_settings
from pivot.errors import UserError
from pivot.method import preset
from pivot.models.rows import PromptWithResponses
from pivot.sampling import SampleRequest, Sampling
from pivot.tiny import procedural

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
            ["--engine", "verl", "--set", "model.lora_rank=8"],
            "model.lora_rank needs --engine local",
        ),
        (
            ["--engine", "verl", "--set", "model.freeze_vision=true"],
            "model.freeze_vision needs --engine local",
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
    with pytest.raises(UserError, match="on this machine alone"):
        check_machine(recipes.get("tiny"), ClusterOptions(nodes=2))
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
    code = (
        "import sys; import pivot.engines.verl.launch, pivot.engines.verl.rollouts; "
        "import pivot.engines.ranks, pivot.cli.train; "
        "print(sorted({'verl', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_device_follows_the_configuration():
    config = recipes.get("geo3k-3b")
    assert device_of(config) == "cuda"
    assert device_of(apply_settings(config, ["model.device=cpu"])) == "cpu"
    assert device_of(apply_settings(config, ["model.device=cuda:1"])) == "cuda"
    with pytest.raises(UserError, match="lora_rank"):
        check_supported(apply_settings(config, ["model.lora_rank=4"]))


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
        self.requests.append(request)
        last = self.end if len(self.requests) % 2 else 20
        return SimpleNamespace(token_ids=[20, last], log_probs=[-0.5, -0.25], extra_fields={})


def verl_config(name: str, ranks: int = 4, tensor_parallel: int = 2):
    rollout = SimpleNamespace(
        name=name,
        tensor_model_parallel_size=tensor_parallel,
        data_parallel_size=1,
        pipeline_model_parallel_size=1,
    )
    return SimpleNamespace(
        actor_rollout_ref=SimpleNamespace(rollout=rollout),
        trainer=SimpleNamespace(nnodes=1, n_gpus_per_node=ranks),
    )


def test_servers_get_token_ids_images_and_a_seed_per_sample():
    from pivot.models.loading import load_tokenizer_only, resolve_model

    tokenizer_only = load_tokenizer_only(Path(resolve_model("tiny")))
    client = EchoClient(tokenizer_only.end_ids[0])
    rollouts = ServerRollouts.create(verl_config("vllm"), client, teacher_client=None)
    rollouts.tokenizer_only = tokenizer_only
    prompts = procedural.dataset("train", 2)
    request = SampleRequest(3, Sampling(max_tokens=5), (0, 7))
    found = list(rollouts.sample(prompts, request))
    assert [index for index, _ in found] == [0, 1]
    assert all(len(responses) == 3 for _, responses in found)
    assert len(client.requests) == 6
    assert len({request["sampling_params"]["seed"] for request in client.requests}) == 6
    first = client.requests[0]
    assert first["prompt_ids"].count(tokenizer_only.family.image_token_id) == len(prompts[0].images) == 1
    width, height = first["image_data"][0].size
    assert width % 28 == height % 28 == 0, "brought to its final size before the server sees it"
    response = found[0][1][0]
    assert response.token_ids_T.tolist() == [20, tokenizer_only.end_ids[0]]
    assert response.logprobs_T is None, "a server's log-probs are those after top-p, not the policy's"
    assert response.entropy_T is None
    assert not any("logprobs" in request["sampling_params"] for request in client.requests)
    assert {r.truncated for _, responses in found for r in responses} == {True, False}


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
