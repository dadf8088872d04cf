"""All settings: one frozen dataclass per section. The docstring under a field is its `--help`.

Defaults are the paper's where it has one; other settings say "not in the paper".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pivot.data.template import PromptStyle
from pivot.method import PRESETS, Method


@dataclass(frozen=True)
class ModelConfig:
    """The vision-language model and how it is loaded."""

    path: str = "tiny"
    """`tiny`, `tiny-hard`, a local Hugging Face folder, a run's folder, or a hub id."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of weights and activations; sums, log-softmax and losses are always float32."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention kernel; `train.layout=tree` needs `sdpa`."""
    min_pixels: int | None = None
    """Smallest image area after resizing, in pixels; None: the limit in the model's files (200704 in the paper)."""
    max_pixels: int | None = None
    """Largest image area after resizing, in pixels; None: the limit in the model's files (1003520 in the paper)."""
    freeze_vision: bool = False
    """Do not train the vision tower (not in the paper)."""
    lora_rank: int = 0
    """Rank of LoRA adapters, trained through peft; 0 trains all weights (not in the paper)."""
    quantize: Literal["nf4"] | None = None
    """Hold the language model's frozen projections in 4 bits (QLoRA; needs `lora_rank` and the extra `quantized`)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass; slower, but needs far less memory."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from."""

    train: str | tuple[str, ...] = "tiny"
    """`tiny`, `geometry3k`, `virl39k`, a hub id, or a file or folder; or a list of them, `[a.jsonl, virl39k]`."""
    weights: tuple[float, ...] = ()
    """Shares of the sets of `train` among fresh prompts; empty: each set counts by its size."""
    path: str | None = None
    """A local file or folder with the rows of `train`, instead of a download."""
    split: str | None = None
    """The split to read; None: `train` for training, a set's usual one elsewhere."""
    config: str | None = None
    """The configuration of a hub set that has several."""
    revision: str | None = None
    """The revision of a hub set: a commit, branch or tag."""
    size: int | None = None
    """Number of prompts of each set: its first N rows. None: all rows, and 512 of the generated `tiny` set."""
    tasks: tuple[str, ...] = ()
    """Tasks of the `tiny` set to use; empty: all."""
    validation: str | None = None
    """Validation set, written like `train`; None: a split of the training set, or held-out rows."""
    validation_split: str = "validation"
    """Split for validation during training."""
    validation_size: int | None = 100
    """Prompts for validation during training; None: all."""
    holdout: float = 0.0
    """Share of a set without a validation split that is held out, at most `validation_size` rows (not in the paper)."""
    image_column: str | None = None
    """Column with the images of a row; `a.b` is field b of column a. None: recognised. Empty: rows of text."""
    problem_column: str | None = None
    """Column with the question or the conversation; None: recognised (docs/data.md)."""
    answer_column: str | None = None
    """Column with the correct answer; None: recognised."""
    id_column: str | None = None
    """Column with a stable id; None: `id` if there is one, else derived from the row's content."""
    category_column: str | None = None
    """Column that groups rows for scores per category."""
    image_root: str | None = None
    """Folder that image paths are relative to; None: the folder of the rows."""
    allow_absolute_paths: bool = False
    """Allow rows to name images anywhere on this machine."""
    allow_urls: bool = False
    """Download images that rows name by URL; from public addresses only, at every start."""
    allow_missing_images: bool = False
    """Keep rows whose image is missing, as text."""
    point_overlay: bool = False
    """InterGPS folders: use the diagram with points and letters drawn over it."""
    bad_rows: Literal["skip", "refuse"] = "skip"
    """Skip unusable rows, or stop; they are counted and listed in either case."""
    check_images: Literal["quick", "full"] = "quick"
    """How images are checked on loading: `quick` reads headers and checksums, `full` decodes every image."""
    experts: str | None = None
    """Expert demonstrations for CalibRL: a file of JSON lines `{"id", "response"}`; the `tiny` set has its own."""

    @property
    def sets(self) -> tuple[str, ...]:
        """The training sets, one or more."""
        return (self.train,) if isinstance(self.train, str) else self.train

    @property
    def title(self) -> str:
        """The training sets in words."""
        return " and ".join(self.sets)


@dataclass(frozen=True)
class CorruptionConfig:
    """The image intervention (App. D.1)."""

    kind: str = "patch"
    """`patch`: random patches black; `grey`: all (128,128,128); `gaussian`: pixel noise; `FILE.py:NAME`: yours."""
    probability: float | None = None
    """Share of patches that `patch` sets to black (App. C.2); None: the method's value."""
    sigma: float = 189.0
    """Standard deviation of `gaussian` in pixel values (App. D.1)."""
    raw: bool | None = None
    """Corrupt the original image, as PAPO does, instead of the ViT's patches; None: the method's choice."""


@dataclass(frozen=True)
class PromptConfig:
    """How questions are asked, and where responses answer; by default as in the paper."""

    system: str | None = None
    """The system message; null: the row's own, else the paper's; empty: none, so that the chat template decides."""
    template: str | None = None
    """The user's turn: Jinja text with `{{ question }}`, or a file of it; null: the paper's."""
    answer: str = "boxed"
    """Where a response answers: `boxed`, `tag` (`<answer>...</answer>`), or a regular expression with one group."""

    @property
    def style(self) -> PromptStyle:
        """These settings as a style, which is applied to prompts."""
        return PromptStyle(self.system, self.template)

    @property
    def summary(self) -> str:
        """The differences from the paper's prompt, in words; empty if there are none."""
        own = [name for name in ("system", "template") if getattr(self, name) is not None]
        answer = [] if self.answer == "boxed" else [f"answer {self.answer}"]
        return ", ".join([*[f"{' and '.join(own)} of its own"] * bool(own), *answer])


@dataclass(frozen=True)
class RewardConfig:
    """How responses are rewarded."""

    functions: tuple[str, ...] = ()
    """`accuracy`, `format`, `FILE.py:NAME` or `MODULE:NAME`, as in TRL; empty: the verifier's accuracy."""
    weights: tuple[float, ...] = ()
    """Weight of each function in the reward; empty: 1 each (not in the paper)."""
    threshold: float = 0.5
    """A response is correct (k, p-hat, s, sign protection) if its reward without format exceeds this."""
    format: bool | None = None
    """The format advantage (`method.format_coef`); null: on unless `functions` names more than `accuracy`."""
    overlong_cache: int = 0
    """DAPO's soft overlong penalty: from 0 to -1 over this many tokens before `rollout.max_tokens`; 0: none."""
    mask_truncated: bool = False
    """Leave responses that hit `rollout.max_tokens` out of the loss (not in the paper)."""
    grader: Literal["pivot", "mathruler"] = "pivot"
    """The built-in verifier (`pivot`), or PAPO's accuracy and format rewards (`mathruler`; see docs/verifier.md)."""
    workers: int = 1
    """Processes for answers that need symbolic mathematics."""
    timeout: float = 60.0
    """Seconds until a call of a reward function is aborted (not in the paper)."""

    @property
    def has_format(self) -> bool:
        """Whether the format advantage is on."""
        return all(name == "accuracy" for name in self.functions) if self.format is None else self.format


@dataclass(frozen=True)
class RolloutConfig:
    """How responses are sampled."""

    responses: int = 8
    """G, responses per prompt (in the paper 5 for 3B, 8 for 7B)."""
    temperature: float = 1.0
    """Sampling temperature."""
    logprob_temperature: float | None = None
    """Temperature of the log-probs and entropies in the loss; None: the sampling temperature, as in verl and TRL."""
    top_p: float = 0.99
    """Nucleus sampling: keep the likeliest tokens up to this probability."""
    top_k: int = 0
    """Sample from the k likeliest tokens; 0: all."""
    max_tokens: int = 2048
    """Longest response, in tokens (Section 5.1)."""
    max_prompt_tokens: int = 4096
    """Longest prompt including its image tokens; longer prompts are skipped, never truncated."""
    max_tries: int = 20
    """Most rounds of dynamic sampling per step, as in EasyR1; then it uses the groups it has (not in the paper). With
    1 and `oversample=false` every step samples `train.prompts_per_step` prompts."""
    oversample: bool = True
    """Sample more prompts than are missing, by the share that the filter dropped in recent steps."""
    recompute_logprobs: bool = False
    """Compute old log-probs and entropies in a separate forward pass instead of during decoding."""
    batch_tokens: int | None = None
    """Most tokens in the caches of the native sampler: prompts once, responses at full length; None (`auto`): what fits
    into the GPU's free memory, 65536 on a CPU."""


@dataclass(frozen=True)
class SamplingConfig:
    """The program that samples in the local engine (docs/gpu.md); not in the paper."""

    engine: Literal["auto", "native", "vllm"] = "auto"
    """`native`: our decoder; `vllm`: vLLM in the same process; `auto`: vLLM on a GPU where it is installed."""
    memory_share: float = 0.3
    """Share of the GPU's memory for vLLM's weights and cache while it samples."""
    importance_cap: float | None = None
    """Weigh each token's loss by min(p_trainer / p_vllm, cap); None: no weights. Those of `native` are all 1."""


@dataclass(frozen=True)
class BufferConfig:
    """The experience buffer (Section 4.1); how it is used is part of the method."""

    max_prompts: int | None = None
    """Most prompts in the buffer, the lowest weight is removed first; None: no limit, as in the paper."""
    store_logprobs: bool | None = None
    """Store the log-probs of each response; None: only if the method needs them (Off-PG)."""


@dataclass(frozen=True)
class TrainConfig:
    """The training loop and the optimiser."""

    steps: int = 75
    """Training steps (75 are 15 epochs of Geometry3K)."""
    epochs: int | None = None
    """Passes over the data; if set, they decide `steps` at the start: epochs x (prompts // prompts_per_step)."""
    max_responses: int | None = None
    """End the run once it has sampled this many responses, also those that the filter drops; None: no limit."""
    prompts_per_step: int = 384
    """N, prompts per step (Section 5.1)."""
    minibatch_prompts: int = 128
    """Prompts per optimiser update; 384 / 128 = 3 updates per step."""
    lr: float = 1e-6
    """Learning rate of AdamW (Section 5.1)."""
    lr_warmup_steps: int = 0
    """Steps of linear learning-rate warm-up (not in the paper)."""
    weight_decay: float = 0.01
    """Weight decay of AdamW."""
    adam_beta1: float = 0.9
    """beta1 of AdamW."""
    adam_beta2: float = 0.999
    """beta2 of AdamW."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """`adamw_8bit` keeps AdamW's moments in 8 bits (extra `quantized`; local engine only)."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in the machine's memory and step there (local engine only)."""
    deterministic: bool = False
    """Use deterministic GPU kernels, which are slower (see docs/gpu.md); CPUs are always deterministic."""
    grad_clip: float = 1.0
    """Largest gradient norm; larger gradients are scaled down."""
    seed: int = 0
    """Random seed; the same seed gives the same run, bit for bit, on one machine."""
    layout: Literal["auto", "tree", "repeated"] = "auto"
    """Rows of a forward pass: `tree` shares prompts between responses, `repeated` has one row per response."""
    micro_batch_tokens: int = 16384
    """Most tokens in a forward and backward pass."""
    kept_activations: float = 0.0
    """GiB of activations that `model.gradient_checkpointing` keeps: faster, the same numbers (local engine only)."""
    max_bad_updates: int = 5
    """Stop the run after this many updates in a row with a non-finite reward, loss or gradient."""
    halve_on_oom: bool = True
    """When out of memory, halve `micro_batch_tokens` (or `rollout.batch_tokens`), log it and continue."""
    overlap: bool = True
    """Score replayed prompts and kept groups while others are still being decoded (local engine only)."""
    threads: int | None = None
    """CPU threads of torch; None: one for models below 5M parameters, else torch's default."""


@dataclass(frozen=True)
class EvalConfig:
    """Validation and the evaluation before and after training."""

    every: int = 10
    """Steps between validations; 0: no validation."""
    samples: int = 4
    """Samples per validation prompt."""
    final_prompts: int | None = 200
    """Prompts per set in the before/after table; None: all, 0: no table."""
    final_samples: int = 8
    """Samples per prompt in the before/after table (accuracy@8, Section 5.1)."""
    sets: tuple[str, ...] = ("test", "ood")
    """Splits of the training set in the before/after table."""
    blank: bool = True
    """Also evaluate with blank images, to measure the language prior."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints."""

    every: int = 10
    """Steps between checkpoints; the last step is always saved."""
    minutes: float = 30.0
    """Save earlier if the next step would bring the unsaved work above this many minutes (not in the paper)."""
    keep_last: int = 2
    """Number of checkpoints to keep, besides the one with the best validation accuracy."""
    stop_seconds: float | None = None
    """Seconds that a step has to finish after a SIGTERM; None: from the measured step time (not in the paper)."""


@dataclass(frozen=True)
class LogConfig:
    """Logs."""

    rollouts_per_step: int = 2
    """Groups per logged step whose tokens and scores are written to rollouts.jsonl; 0: none."""
    rollouts_every: int = 5
    """Steps between logged rollouts."""
    tensorboard: bool = False
    """Also write TensorBoard events to the run's folder (extra `tensorboard`)."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (extra `wandb`)."""
    mlflow: str | None = None
    """Also log to this MLflow experiment (extra `mlflow`)."""
    swanlab: str | None = None
    """Also log to this SwanLab project (extra `swanlab`)."""
    trackio: str | None = None
    """Also log to this trackio project (extra `trackio`)."""


@dataclass(frozen=True)
class Config:
    """The configuration of a run; saved in its folder as config.json."""

    recipe: str = "custom"
    """The recipe that this configuration starts from."""
    plugins: tuple[str, ...] = ()
    """Your modules and files that register model families, engines, trackers or methods; imported first."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: Method = PRESETS["pivot"]
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
