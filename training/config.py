"""The trainer's configuration: validated when made, and refused where it contradicts itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from training.losses.aggregation import Aggregation
from training.losses.base import LossConfigError, TokenLoss
from training.losses.cispo import Cispo
from training.losses.mismatch import Mismatch, NoCorrection
from training.model import Precision

RatioBase = Literal["behaviour", "proximal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, or plain SGD (for equality tests: Adam divides rounding noise by itself where gradients are ~0).

    `warmup_updates`: linear from 0; then constant, or with `decay_updates` a cosine to 0 at that many updates.
    """

    name: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-5
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_updates: int = 0
    decay_updates: int | None = None
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise LossConfigError(f"optimizer.{name} is {getattr(self, name)}; want a positive, finite number")
        if not self.max_grad_norm > 0:
            raise LossConfigError(f"optimizer.max_grad_norm is {self.max_grad_norm}; want over 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise LossConfigError(f"optimizer.{name} is {getattr(self, name)}; want a number in [0, 1)")
        for name in ("weight_decay", "warmup_updates"):
            if not getattr(self, name) >= 0:
                raise LossConfigError(f"optimizer.{name} is {getattr(self, name)}; want 0 or more")
        if self.decay_updates is not None and self.decay_updates <= self.warmup_updates:
            raise LossConfigError(
                f"optimizer.decay_updates {self.decay_updates} ends within warmup_updates {self.warmup_updates}; "
                "want more, or None for a constant rate"
            )

    def rate_at(self, update: int) -> float:
        """The learning rate of update `update` (the first is 0)."""
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        if self.decay_updates is None:
            return self.learning_rate
        done = min(1.0, (update - self.warmup_updates) / (self.decay_updates - self.warmup_updates))
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


OptimizerPreset = Literal["default", "m1"]
_PRESETS: Mapping[OptimizerPreset, Mapping[str, float]] = {
    "default": {},
    "m1": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-15},
}


def optimizer_preset(preset: OptimizerPreset, **fields: Any) -> OptimizerConfig:
    """AdamW as a preset has it, with `fields` over it; None leaves a field to the preset.

    'm1' is MiniMax-M1's AdamW: betas (.9, .95), eps 1e-15 (arXiv 2506.13585, Sec. 3.2). With an eps that small, weights
    whose gradient is rounding noise still move by a full learning rate a step: two runs that differ in summation order
    drift apart. Compare such runs by their losses, not by their weights. Raises LossConfigError.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    return OptimizerConfig(**{**_PRESETS[preset], **given})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraAdapter:
    """Train low-rank adapters of these linear layers instead of the full weights (needs the extra `lora`).

    Checkpoints hold base and adapters, the published policy is merged.
    """

    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0:
            raise LossConfigError(f"lora rank {self.rank}, alpha {self.alpha}; want at least 1, and more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """How one batch of samples changes the policy.

    - `ratio_base`: the policy of the ratio's denominator: 'behaviour' (the recorded log-probabilities) or
      'proximal' (this trainer's own, at the start of the step; costs a forward pass).
    - `mismatch`: corrects proximal against behaviour; needs `ratio_base='proximal'`.
    - `updates_per_batch`: the batch's rollouts (whole groups under 'prompt_mean') are dealt into at most that many
      optimizer updates; `passes_per_batch`: how often the whole batch is gone through. Above 1 the later updates are
      off-policy.
    - `token_budget`: tokens of one packed row (microbatch); gradients accumulate over rows.
    - `chunk_elements`: numbers in one chunk of float32 logits (12.6 million are 50 MB); None: what suits the device.
    - `start_folder`: the policy that KL to start is measured against: by `training.step` before it trains, on a row's
      worth of tokens; by a loss with a KL term on every token, and then it stays in memory beside the policy.
    - `rare_words`: words whose share of the gradient is reported (see `training.rare`).
    - `max_engine_gap`: nats by which engine and trainer may differ on a token of the present policy (`training.step`
      looks before it trains); `math.inf` is off.
    - `spike_factor`: stop when the gradient norm exceeds this many times the median of the last 32 updates.
    """

    loss: TokenLoss = field(default_factory=Cispo)
    aggregation: Aggregation = field(default_factory=lambda: Aggregation(name="token_mean"))
    ratio_base: RatioBase = "behaviour"
    mismatch: Mismatch = field(default_factory=NoCorrection)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    updates_per_batch: int = 1
    passes_per_batch: int = 1
    token_budget: int = 4096
    chunk_elements: int | None = None
    precision: Precision = "float32"
    gradient_checkpointing: bool = False
    lora: LoraAdapter | None = None
    start_folder: Path | None = None
    rare_words: tuple[str, ...] = ()
    max_engine_gap: float = math.inf
    spike_factor: float = 100.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, known in (("precision", get_args(Precision)), ("ratio_base", get_args(RatioBase))):
            if getattr(self, name) not in known:
                raise LossConfigError(f"training.{name} is {getattr(self, name)!r}; want one of {', '.join(known)}")
        for name in ("updates_per_batch", "passes_per_batch", "token_budget", "chunk_elements"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise LossConfigError(f"training.{name} is {value}; want at least 1")
        if not self.spike_factor > 1:
            raise LossConfigError(f"training.spike_factor is {self.spike_factor}; want more than 1")
        if not self.max_engine_gap > 0:
            raise LossConfigError(f"training.max_engine_gap is {self.max_engine_gap}; want more than 0")
        self._check_ratios()
        self._check_loss()

    def _check_ratios(self) -> None:
        if self.mismatch.name != "none" and self.ratio_base == "behaviour":
            raise LossConfigError(
                f"mismatch {self.mismatch.name} with ratio_base 'behaviour': the loss's ratio already holds "
                "proximal/behaviour and would be corrected twice; set ratio_base='proximal' or mismatch 'none'"
            )
        if self.loss.name == "nll" and (self.ratio_base == "proximal" or self.mismatch.name != "none"):
            raise LossConfigError("loss nll has no ratio; leave ratio_base 'behaviour' and mismatch 'none'")

    def _check_loss(self) -> None:
        if self.loss.name == "dr_grpo" and self.aggregation.name != "fixed_length":
            raise LossConfigError(
                f"loss dr_grpo with aggregation {self.aggregation.name} is GRPO under another name; set "
                "aggregation=fixed_length and fixed_length=<longest completion>"
            )
        if self.loss.needs_reference and self.start_folder is None:
            raise LossConfigError(f"loss {self.loss.name} has a KL term; set start_folder to the policy it is against")

    @property
    def off_policy(self) -> bool:
        """Whether a batch is trained on by more than one update."""
        return self.updates_per_batch * self.passes_per_batch > 1
