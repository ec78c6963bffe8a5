"""The trainer: samples in, one step of the policy, a report out. The same inputs give bitwise the same weights."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.config import OptimizerConfig, TrainConfig
from training.distributed import World, full_tensor, release, shard, single_process
from training.guards import GradientGuard
from training.losses.aggregation import ChainShape, token_weights
from training.losses.base import LossWarning, PerToken, TokenTerms
from training.losses.grpo import k3
from training.model import PackedPolicy, export_folder, load_causal_lm
from training.packing import PackedRow, pack, plan_rows
from training.rare import Found, RareWords
from training.reports import StepReport, TokenTable, UpdateReport, step_report, update_report
from training.samples import Sample


class TrainError(ValueError):
    """A batch that cannot be trained on. The message says what was got and what is wanted."""


class Trainer:
    """Holds the policy, its optimizer and their counters.

    `step` counts batches, `update` optimizer updates, `policy_version` the published versions: one per batch.
    Raises ModelError for a folder that cannot be trained; `clock` gives seconds. `on_update`, which may be set, is
    told of each update once it is applied.
    """

    def __init__(
        self,
        model_folder: Path,
        config: TrainConfig,
        *,
        policy_version: int = 0,
        world: World | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.model_folder, self.config, self.clock = model_folder, config, clock
        self.world = world or single_process()
        self.step, self.update, self.policy_version = 0, 0, policy_version
        torch.set_num_threads(num_threads())
        torch.manual_seed(config.seed)  # nothing here draws from it today; a model's own layers might
        self.policy = self._load(model_folder, trained=True)
        self.start_policy = self._load_start() if config.loss.needs_reference else None
        self.rare = RareWords(model_folder, config.rare_words)
        self.optimizer = make_optimizer(self.policy, config.optimizer)
        self.guard = GradientGuard(config.spike_factor)
        self.clipped_tokens = 0
        self.on_update: Callable[[UpdateReport], None] = lambda report: None

    def _load(self, folder: Path, *, trained: bool) -> PackedPolicy:
        config = self.config
        model = load_causal_lm(folder, gradient_checkpointing=trained and config.gradient_checkpointing)
        if trained and config.lora is not None:
            from training.lora import add_adapters

            model = add_adapters(model, config.lora, config.seed)
        policy = PackedPolicy(model, precision=config.precision, chunk_elements=config.chunk_elements)
        if not trained:
            policy.requires_grad_(False)
        policy.to(self.world.device)
        shard(policy, policy.layers, self.world)
        return policy

    def _load_start(self) -> PackedPolicy:
        assert self.config.start_folder is not None  # a loss that needs it is refused without
        return self._load(self.config.start_folder, trained=False)

    def train_step(self, samples: Sequence[Sample]) -> StepReport:
        """Train on one batch and count a new policy version.

        Raises TrainError for a batch that cannot be trained on and TrainingHalted, before the weights change, for
        an update that is not finite or spikes.
        """
        started = self.clock()
        batch = self._with_proximal(self._checked(samples))
        plan = [part for p in range(self.config.passes_per_batch) for part in self._deal_updates(batch, p)]
        rare = {s: self.rare.find(s) for s in batch}
        updates = [self._update(part, rare) for part in plan]
        self.step += 1
        staleness = self.policy_version - min(int(s.policy_versions[s.loss_mask].min()) for s in batch)
        self.policy_version += 1
        self._warn_if_never_clipped()
        return step_report(
            updates,
            step=self.step,
            policy_version=self.policy_version,
            staleness_max=staleness,
            num_samples=len(batch),
            num_rollouts=len({s.rollout_id for s in batch}),
            num_tokens=sum(len(s.token_ids) for s in batch),
            num_loss_tokens=sum(s.num_loss_tokens for s in batch),
            passes=self.config.passes_per_batch,
            wall_s=self.clock() - started,
        )

    def logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """For each sample `[L]`, float32: the policy's log-probability of each trained token, 0 elsewhere."""
        return self._score(self.policy, samples)

    def start_logprobs(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        """The same of `config.start_folder`, which is loaded for this call unless the loss keeps it in memory."""
        return self._score(self.start_policy or self._load_start(), samples)

    def _score(self, policy: PackedPolicy, samples: Sequence[Sample]) -> list[np.ndarray]:
        self._check_fit(samples)
        results = [np.zeros(len(s.token_ids), dtype=np.float32) for s in samples]
        for indices, counts in self.world.deal(plan_rows(samples, self.config.token_budget)):
            row = pack([samples[i] for i in indices], self.world.device)
            values_N = policy(row)[0].float().cpu().numpy()
            if counts:
                for n, index in enumerate(indices):
                    results[index][samples[index].loss_mask] = values_N[row.sample_index_N.cpu().numpy() == n]
        release(policy)
        return [np.sum(parts, axis=0) for parts in zip(*self.world.gather(results), strict=True)]

    def save_policy(self, folder: Path) -> Path:
        """Write the policy as a plain HF folder (weights, config, tokenizer files); returns `folder`."""
        model, state = self.policy.exportable()
        if self.world.is_main:
            export_folder(model, state, self.model_folder, folder)
        self.world.barrier()
        return folder

    # One batch

    def _checked(self, samples: Sequence[Sample]) -> list[Sample]:
        batch = [s for s in samples if s.weight > 0 and s.num_loss_tokens > 0]
        if not batch:
            raise TrainError(
                f"none of {len(samples)} samples has a trained token with weight; skip the step when every group "
                "was dropped (all members did the same)"
            )
        self._check_fit(batch)
        return batch

    def _check_fit(self, samples: Sequence[Sample]) -> None:
        """Refuse what the model has no place or no token for, before a device says so in its own words."""
        places, vocabulary = self.policy.max_positions, self.policy.vocab_size
        for sample in samples:
            if len(sample.token_ids) > places:
                raise TrainError(
                    f"sample {sample.chain_id} has {len(sample.token_ids)} tokens; the model places at most {places}. "
                    "Lower the task's limits.max_tokens, or train a model with more room"
                )
            strange = sample.token_ids[(sample.token_ids < 0) | (sample.token_ids >= vocabulary)]
            if len(strange):
                raise TrainError(
                    f"sample {sample.chain_id} holds token {strange[0]}; the model has {vocabulary} tokens. Another "
                    "model sampled it: roll out again with the policy that is trained"
                )

    def _with_proximal(self, batch: list[Sample]) -> list[Sample]:
        if self.config.ratio_base == "behaviour" or all(s.proximal_logprobs is not None for s in batch):
            return batch
        values = self.logprobs(batch)
        return [dataclasses.replace(s, proximal_logprobs=v) for s, v in zip(batch, values, strict=True)]

    def _deal_updates(self, batch: list[Sample], number: int) -> list[list[Sample]]:
        """Deal whole rollouts into the pass's updates, shuffled by (seed, step, pass).

        Where prompts weigh alike, whole groups: each update weighs by itself, so one rollout of a group apart from its
        seven siblings would weigh as much as all of them.
        """
        whole_groups = self.config.aggregation.name == "prompt_mean"
        units: dict[str, list[Sample]] = {}
        for sample in batch:
            units.setdefault(sample.group_id if whole_groups else sample.rollout_id, []).append(sample)
        order = list(units)
        if self.config.updates_per_batch == 1:
            return [batch]
        np.random.default_rng((self.config.seed, self.step, number)).shuffle(order)
        parts = np.array_split(np.asarray(order, dtype=object), min(self.config.updates_per_batch, len(order)))
        return [[s for unit in part for s in units[unit]] for part in parts]

    # One update

    def _update(self, samples: list[Sample], rare: Mapping[Sample, Found]) -> UpdateReport:
        weights = token_weights([_shape(s) for s in samples], self.config.aggregation)
        rows = plan_rows(samples, self.config.token_budget, whole_rollouts=not self.config.loss.token_local)
        losses, tables = [], []
        for indices, counts in self.world.deal(rows):
            loss, table = self._row(samples, indices, weights, counts, rare)
            if counts:
                losses.append(loss)
                tables.append(table)
        gathered = self.world.gather((losses, tables))
        loss = sum(x for part, _ in gathered for x in part)
        table = TokenTable.join([t for _, part in gathered for t in part])
        grad_norm = float(full_tensor(self._clip()))
        rate = self._apply(loss, grad_norm, table, tuple(s.chain_id for s in samples))
        self.clipped_tokens += int(table.clipped_N.sum())
        report = update_report(
            table,
            loss=loss,
            grad_norm=grad_norm,
            learning_rate=rate,
            rare_word_counts={w: sum(rare[s].said[w] for s in samples) for w in self.config.rare_words},
        )
        self.on_update(report)
        return report

    def _row(
        self,
        samples: list[Sample],
        indices: list[int],
        weights: list[float],
        counts: bool,
        rare: Mapping[Sample, Found],
    ) -> tuple[float, TokenTable]:
        """Forward and backward of one packed row; gradients accumulate."""
        row = pack([samples[i] for i in indices], self.world.device)
        row_weights = torch.tensor([weights[i] for i in indices], dtype=torch.float64, device=self.world.device)
        weights_N = row_weights[row.sample_index_N] * counts
        start_N = None if self.start_policy is None else self.start_policy(row)[0]
        base_N = _base(row, self.config)
        correction_N = self._correction(row)

        def chunk_loss(logprobs_c: Tensor, at: slice) -> tuple[PerToken, Tensor]:
            terms = TokenTerms(
                logprobs_N=logprobs_c,
                base_logprobs_N=base_N[at],
                advantages_N=row.advantages_N[at],
                rollout_index_N=row.rollout_index_N[at],
                reference_logprobs_N=None if start_N is None else start_N[at],
            )
            return self.config.loss(terms), (weights_N[at] * correction_N[at]).to(logprobs_c.dtype)

        loss, stats = self.policy(row, chunk_loss, token_local=self.config.loss.token_local)
        (
            loss * self.world.size
        ).backward()  # sharded gradients are averaged over ranks; each rank holds a part of the sum

        def table(values_N: Tensor) -> np.ndarray:
            return values_N.double().cpu().numpy()

        return float(loss.detach()), TokenTable(
            sample_N=np.asarray(indices, dtype=np.int64)[row.sample_index_N.cpu().numpy()],
            target_N=row.targets_N.cpu().numpy(),
            logprob_N=table(stats.logprobs_N),
            behaviour_N=table(row.behaviour_logprobs_N),
            base_N=table(base_N),
            entropy_N=table(stats.entropy_N),
            coefficient_N=table(stats.coefficient_N),
            gradient_N=table(stats.logit_grad_norm_N),
            clipped_N=stats.clipped_N.cpu().numpy(),
            rare_N=np.concatenate([rare[s].at_N for s in row.samples]),
            start_kl_N=None if start_N is None else table(k3(stats.logprobs_N, start_N)),
        )

    def _correction(self, row: PackedRow) -> Tensor:
        if row.proximal_logprobs_N is None:
            return torch.ones_like(row.behaviour_logprobs_N)
        return self.config.mismatch(torch.exp(row.proximal_logprobs_N - row.behaviour_logprobs_N))

    def _clip(self) -> Tensor:
        trained = [p for p in self.policy.parameters() if p.requires_grad]
        return torch.nn.utils.clip_grad_norm_(trained, self.config.optimizer.max_grad_norm)

    def _apply(self, loss: float, grad_norm: float, table: TokenTable, sample_ids: tuple[str, ...]) -> float:
        """Guard, then step the optimizer; returns the learning rate. A halted update leaves no gradient behind."""
        try:
            self.guard.check(loss, grad_norm, table, sample_ids)
            rate = self.config.optimizer.rate_at(self.update)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        self.update += 1
        return rate

    def _warn_if_never_clipped(self) -> None:
        has_cap = self.config.loss.name not in ("nll", "reinforce")
        if has_cap and self.config.off_policy and self.step == 3 and self.clipped_tokens == 0:
            warnings.warn(
                f"loss {self.config.loss.name} has clipped no token in 3 steps of several updates each; its cap is "
                "so wide that it does nothing",
                LossWarning,
                stacklevel=3,
            )


def num_threads() -> int:
    """Threads that a trainer of this process computes with: OMP_NUM_THREADS, or the cores that it may use.

    Torch's own count is no guide: a thread takes over what another thread has set, an engine's say, and until any has
    set it MKL takes fewer for small products. Rounding, and with it the weights, would depend on what the process did
    before it trained.
    """
    return int(os.environ.get("OMP_NUM_THREADS", "").split(",")[0] or len(os.sched_getaffinity(0)))


def make_optimizer(policy: PackedPolicy, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer of the trainable parameters."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    if config.name == "sgd":
        return torch.optim.SGD(trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    return torch.optim.AdamW(
        trained,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def _shape(sample: Sample) -> ChainShape:
    return ChainShape(
        rollout_id=sample.rollout_id,
        group_id=sample.group_id,
        num_loss_tokens=sample.num_loss_tokens,
        weight=sample.weight,
    )


def _base(row: PackedRow, config: TrainConfig) -> Tensor:
    """The ratio's denominator for each trained token, in nats."""
    if config.ratio_base == "behaviour" or row.proximal_logprobs_N is None:
        return row.behaviour_logprobs_N
    return row.proximal_logprobs_N
