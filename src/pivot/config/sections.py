"""What can be set: one frozen dataclass a section. The docstring under a field is its `--help`.

Defaults are the paper's where the paper has one; what is ours says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pivot.method import PRESETS, Method


@dataclass(frozen=True)
class ModelConfig:
    """The vision-language model and how it is held in memory."""

    path: str = "tiny"
    """`tiny`, `tiny-hard`, a local Hugging Face folder, a run's folder, or a hub id."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of weights and activations; sums, log-softmax and losses are float32 in any case."""
    device: str = "auto"
    """`auto` takes a GPU where there is one; or `cpu`, `cuda`, `cuda:1`."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """The attention kernel; rows with a shared prefix need `sdpa`."""
    min_pixels: int | None = None
    """Smallest image area after resizing; None: what the model's files say (paper's recipe: 200704)."""
    max_pixels: int | None = None
    """Largest image area after resizing; None: what the model's files say (paper's recipe: 1003520)."""
    freeze_vision: bool = False
    """Leave the vision tower as it is (not in the paper)."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank through peft; 0 trains all weights (not in the paper)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: slower, far less memory."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you name it."""


@dataclass(frozen=True)
class DataConfig:
    """Where prompts come from."""

    train: str = "tiny"
    """`tiny`, `geometry3k`, `virl39k`, a hub id, or a parquet/JSONL file or folder."""
    split: str = "train"
    """The split to train on."""
    size: int | None = 512
    """Prompts of a procedural set, or the first N rows of another; None: all there are."""
    tasks: tuple[str, ...] = ()
    """Procedural tasks to mix; empty: all."""
    validation: str | None = None
    """Validation set in the same spelling as `train`; None: the training set's own validation split."""
    validation_split: str = "validation"
    """The split to watch during training."""
    validation_size: int | None = 100
    """Prompts to watch during training; None: all."""
    image_column: str = "images"
    """Column with the image or images of a row."""
    problem_column: str = "problem"
    """Column with the question."""
    answer_column: str = "answer"
    """Column with the ground truth."""
    id_column: str | None = None
    """Column with a stable id; None: `id` where there is one, else derived from the row."""
    bad_rows: Literal["skip", "refuse"] = "skip"
    """What to do with rows that cannot be used; they are counted and named in either case."""
    check_images: Literal["quick", "full"] = "quick"
    """`quick` reads headers and checksums when the data is loaded; `full` decodes every image once."""
    experts: str | None = None
    """Expert demonstrations for CalibRL: JSON lines `{"id", "response"}`; `tiny`'s tasks solve themselves."""


@dataclass(frozen=True)
class CorruptionConfig:
    """The image intervention (App. D.1)."""

    kind: str = "patch"
    """`patch`: random patches black; `grey`: all (128,128,128); `gaussian`: pixel noise; `module:function`: yours."""
    probability: float | None = None
    """Share of patches that `patch` sets to black (App. C.2); None: as the method says."""
    sigma: float = 189.0
    """Standard deviation of `gaussian` in pixel values (App. D.1)."""
    raw: bool | None = None
    """Corrupt the original image, as PAPO does, instead of the ViT's own patches; None: as the method says."""


@dataclass(frozen=True)
class RewardConfig:
    """How a response is judged."""

    function: str | None = None
    """`module:function` with TRL's calling convention (`completions, **columns -> list[float]`); None: the verifier."""
    grader: Literal["pivot", "mathruler"] = "pivot"
    """The built-in verifier, or PAPO's accuracy and format rewards (docs/verifier.md: "PAPO's rewards")."""
    workers: int = 1
    """Processes for answers that the fast path cannot decide."""
    timeout: float = 60.0
    """Seconds after which a custom reward function is given up (not in the paper)."""


@dataclass(frozen=True)
class RolloutConfig:
    """How responses are sampled."""

    responses: int = 8
    """G, responses a prompt (5 for 3B, 8 for 7B in the paper)."""
    temperature: float = 1.0
    """Divides the logits when a token is sampled."""
    logprob_temperature: float | None = None
    """Of the log-probs and entropies in the loss; None: the sampling temperature, as in EasyR1, verl and TRL."""
    top_p: float = 0.99
    """Nucleus sampling."""
    top_k: int = 0
    """Sample among the k likeliest tokens; 0: all."""
    max_tokens: int = 2048
    """Longest response (Section 5.1)."""
    max_prompt_tokens: int = 4096
    """Longest prompt with its image tokens; longer ones are left out, never cut."""
    max_tries: int = 20
    """Rounds of dynamic sampling before a step goes on with the groups it has; as in EasyR1 (not in the paper)."""
    oversample: bool = True
    """Ask each round for more prompts than are missing, by the share that the filter dropped in recent steps."""
    recompute_logprobs: bool = False
    """Take old log-probs and entropies from a separate forward pass instead of from decoding."""
    batch_tokens: int = 65536
    """Key/value cache budget of one decoding batch, in tokens over all its sequences."""


@dataclass(frozen=True)
class BufferConfig:
    """The experience buffer (Section 4.1); its behaviour is the method's, its size is set here."""

    max_prompts: int | None = None
    """Cap on rows, lowest weight out first; None: no cap (the paper has none)."""
    store_logprobs: bool | None = None
    """Keep recorded log-probs with each response; None: only where the method needs them (Off-PG)."""


@dataclass(frozen=True)
class TrainConfig:
    """The optimisation."""

    steps: int = 75
    """Optimisation steps (75 = 15 epochs of Geometry3K)."""
    prompts_per_step: int = 384
    """N, groups trained on in a step (Section 5.1)."""
    minibatch_prompts: int = 128
    """Groups an update sees: 384/128 = 3 updates a step."""
    lr: float = 1e-6
    """AdamW's learning rate (Section 5.1)."""
    lr_warmup_steps: int = 0
    """Steps of linear warm-up (not in the paper)."""
    weight_decay: float = 0.01
    """AdamW's weight decay."""
    adam_beta1: float = 0.9
    """AdamW's first momentum."""
    adam_beta2: float = 0.999
    """AdamW's second momentum."""
    grad_clip: float = 1.0
    """Largest gradient norm."""
    seed: int = 0
    """Fixes a run bit for bit on one machine."""
    layout: Literal["auto", "tree", "repeated"] = "auto"
    """`tree`: prompts once, responses as trees (attention `sdpa`); `repeated`: one row a response; `auto`: either."""
    micro_batch_tokens: int = 16384
    """Tokens a forward/backward pass may hold."""
    max_bad_updates: int = 5
    """Updates in a row with a reward, loss or gradient that is not finite before the run stops."""
    halve_on_oom: bool = True
    """Out of memory: halve `micro_batch_tokens` (in a rollout `rollout.batch_tokens`), say so and go on."""
    overlap: bool = True
    """Score replayed prompts' candidates and kept groups while others are still decoded (embedded engine)."""
    threads: int | None = None
    """CPU threads of torch; None: one for models under 5M parameters, else torch's own choice."""


@dataclass(frozen=True)
class EvalConfig:
    """What is measured beside training."""

    every: int = 10
    """Steps between validation passes; 0: none."""
    samples: int = 4
    """Samples a validation prompt."""
    final_prompts: int | None = 200
    """Prompts of each set in the before/after table; None: all, 0: no table."""
    final_samples: int = 8
    """Samples a prompt in the before/after table (accuracy@8, Section 5.1)."""
    sets: tuple[str, ...] = ("test", "ood")
    """Splits of the training set's family in the before/after table."""
    blank: bool = True
    """Also with a blank image: how much is language prior."""


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept."""

    every: int = 10
    """Steps between checkpoints; the last step is always saved."""
    keep_last: int = 2
    """Checkpoints kept, besides the best by validation accuracy."""
    stop_seconds: float = 120.0
    """What SIGINT or SIGTERM leaves a step to finish and be saved; then it is abandoned (not in the paper)."""


@dataclass(frozen=True)
class LogConfig:
    """What is written down."""

    rollouts_per_step: int = 2
    """Groups a step whose tokens and scores go into rollouts.jsonl; 0: none."""
    rollouts_every: int = 5
    """Steps between them."""
    tensorboard: bool = False
    """Also write TensorBoard events into the run's folder (extra `loggers`)."""
    wandb: str | None = None
    """Also log to this Weights & Biases project (extra `loggers`)."""


@dataclass(frozen=True)
class Config:
    """Everything about a run; written into its folder as config.json."""

    recipe: str = "custom"
    """The recipe this configuration started from."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: Method = PRESETS["pivot"]
    corruption: CorruptionConfig = field(default_factory=CorruptionConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
