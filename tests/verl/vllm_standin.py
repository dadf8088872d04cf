"""A rollout server with the methods and arguments of verl's vLLM server, for machines where vLLM does not run.

Loaded into every process of a run by `VERL_USE_EXTERNAL_MODULES`. The ranks' side is verl's own `ServerAdapter`, with
its buckets in shared memory; the client and the load balancer are verl's too. Behind the server is this project's
decoder. Whatever is asked of a server is written to the file that `STANDIN_LOG` names, one JSON object per line.
"""

import asyncio
import importlib.metadata
import json
import os
import sys
import types
from dataclasses import dataclass

import ray
import torch

from pivot.engines.verl import plugin  # noqa: F401 - the platform must be known before verl is imported further

# isort: split
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from pivot.models.encoding import EncodedPrompt
from pivot.models.loading import load_policy
from pivot.sampling import NativeSampler, SampleRequest, Sampling
from pivot.types import Prompt

VERSION = "0.32.0"
PARAMETERS = {"temperature", "top_p", "top_k", "stop_token_ids", "logit_bias", "logprobs", "seed"}
"""Of vLLM's `SamplingParams`, those that this server understands, besides max_tokens."""
_version = importlib.metadata.version
importlib.metadata.version = lambda name: VERSION if name == "vllm" else _version(name)
_third_party = types.ModuleType("verl.third_party.vllm")
_third_party.VLLM_SLEEP_LEVEL = 2
sys.modules["verl.third_party.vllm"] = _third_party


@dataclass(frozen=True)
class Waiting:
    encoded: EncodedPrompt
    sampling: Sampling
    key: tuple
    answer: asyncio.Future


class Server:
    """The public methods of verl's `vLLMHttpServer` that a run uses."""

    def __init__(self, config, model_config, replica_rank):
        torch.set_num_threads(1)
        self.config, self.replica_rank = config, replica_rank
        self.policy = load_policy(model_config.path)
        for weight in self.policy.model.parameters():
            weight.data.zero_()  # as verl starts vLLM: with dummy weights, before the first update
        self.awake = {"weights", "kv_cache"}
        self.global_steps = None
        self.queue: list[Waiting] = []
        self.busy = False

    async def ready(self):
        self.note("ready")

    def note(self, what, **more):
        with open(os.environ["STANDIN_LOG"], "a") as log:
            log.write(json.dumps({"replica": self.replica_rank, "what": what, **more}) + "\n")

    async def generate(
        self, prompt_ids, sampling_params, request_id, image_data=None, video_data=None, audio_data=None,
        mm_processor_kwargs=None, priority=0, kv_transfer_params=None,
    ):  # fmt: skip
        assert self.awake == {"weights", "kv_cache"}, f"asleep, only {self.awake} awake"
        given = dict(sampling_params)
        limit = given.pop("max_tokens")
        assert given.keys() <= PARAMETERS, given.keys() - PARAMETERS
        assert all(isinstance(token, int) for token in [*prompt_ids, *given["logit_bias"]])
        sizes = [image.size for image in image_data or []]
        self.note("generate", prompt=hash(tuple(prompt_ids)), images=sizes, seeded="seed" in given,
                  logprobs=bool(given.get("logprobs")), request=request_id)  # fmt: skip
        sampling = Sampling(given["temperature"], given["top_p"], max(0, given["top_k"]), limit)
        answer = asyncio.get_running_loop().create_future()
        key = (given.get("seed", request_id),)
        self.queue.append(Waiting(self.encode(prompt_ids, image_data or []), sampling, key, answer))
        if not self.busy:
            self.busy = True
            self.worker = asyncio.get_running_loop().create_task(self.work())
        token_ids = await answer
        fields = {"global_steps": self.global_steps, "num_cached_tokens": None}
        return TokenOutput(token_ids=token_ids, log_probs=None, stop_reason="completed", extra_fields=fields)

    def encode(self, prompt_ids, images):
        """As vLLM does it: one image token per image is expanded to as many as the image has."""
        family, encoder = self.policy.family, self.policy.encoder
        encoded = [family.encode_image(image) for image in images]
        assert [encoder.resized(image).size for image in images] == [image.size for image in images]
        ids, rest = [], iter(encoded)
        for token in prompt_ids:
            inner = (
                family.placeholder_ids(next(rest).grid)[1:-1] if token == family.image_token_id else [token]
            )
            ids += inner
        ids = torch.tensor(ids)
        positions = family.positions(ids, encoded)
        prompt = Prompt(id=str(len(self.queue)), question="", answer="")
        return EncodedPrompt(prompt, ids, positions, int(positions.max()) + 1, tuple(encoded))

    async def work(self):
        while self.queue:
            await asyncio.sleep(0.02)  # what arrives meanwhile joins the batch
            batch = [one for one in self.queue if one.sampling == self.queue[0].sampling]
            self.queue = [one for one in self.queue if one.sampling != batch[0].sampling]
            drawn = await asyncio.to_thread(self.decode, batch)
            for one, token_ids in zip(batch, drawn, strict=True):
                one.answer.set_result(token_ids)
        self.busy = False

    def decode(self, batch):
        self.policy.forget_features()  # a prompt has no stable id here
        prompts = [
            EncodedPrompt(Prompt(str((one.key, i)), "", ""), *list(vars(one.encoded).values())[1:])
            for i, one in enumerate(batch)
        ]
        request = SampleRequest(1, batch[0].sampling, (batch[0].key,))
        found = dict(NativeSampler(self.policy).sample(prompts, request))
        return [found[i][0].token_ids_T.tolist() for i in range(len(batch))]

    async def wake_up(self, tags=None):
        self.awake |= set(tags or ("weights", "kv_cache"))
        self.note("wake_up", tags=tags)

    async def sleep(self):
        assert not self.queue
        assert not self.busy
        self.awake = set()
        self.note("sleep")

    async def clear_kv_cache(self):
        self.note("clear_kv_cache")

    async def set_global_steps(self, global_steps):
        self.global_steps = global_steps

    async def collective_rpc(self, method, timeout=None, args=(), kwargs=None):
        assert method == "update_weights_from_ipc", method
        assert "weights" in self.awake
        await asyncio.to_thread(self.update_weights_from_ipc, **(kwargs or {}))

    def update_weights_from_ipc(self, peft_config=None, base_sync_done=False, use_shm=False):
        """Through verl's own receiver. Adapters would come with a `peft_config`: merged weights have none."""
        from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

        assert peft_config is None
        job = ray.get_runtime_context().get_job_id()
        handle = f"ipc:///tmp/rl-colocate-zmq-{job}-replica-{self.replica_rank}-rank-0.sock"
        known, seen = self.policy.model.state_dict(), {}

        def load(weights, is_last):
            for name, weight in weights:
                known[name].copy_(weight)  # a name that is not the model's own is a KeyError
                seen[name] = float(weight.double().sum())

        receiver = BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=use_shm)
        with torch.no_grad():
            receiver.receive_weights(load)
        self.note("weights", sums=seen)

    async def wait_for_requests_to_drain(self): ...


class Replica(RolloutReplica):
    """One server per replica, under the name that verl's `ServerAdapter` looks for."""

    async def launch_servers(self):
        name = f"vllm_server_{self.replica_rank}_0"
        options = {"name": name, "num_cpus": 0, "max_concurrency": self.max_concurrency}
        server = (
            ray.remote(Server).options(**options).remote(self.config, self.model_config, self.replica_rank)
        )
        await server.ready.remote()
        self.servers, self._server_handle, self._server_address = [server], server, name


RolloutReplicaRegistry.register("vllm", lambda: Replica)
assert base._ROLLOUT_REGISTRY["vllm", "async"].endswith("vllm_rollout.ServerAdapter")
