"""Training samples: chains with masks, behaviour log-probabilities and advantages. Persisted unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from environments.types import Chain, Group, Judged, Role, Trajectory, Verdict
from infra.engines.base import Sampling
from training.advantages import AdvantageConfig, BatchAdvantages, GroupRewards, batch_advantages

SCHEMA_VERSION = 1


class SampleError(ValueError):
    """A sample whose arrays contradict each other. The message says which and how long each is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One chain of one rollout, ready for a loss. All arrays have the chain's length L.

    `loss_mask[t]` is 1 where token t was sampled by the policy. `behaviour_logprobs[t]` (nats, at the sampling
    temperature) is of token t given tokens < t, and 0 where the mask is 0. `advantages[t]` likewise. `weight` is
    the chain's share of its rollout's total weight of 1. `policy_versions[t]` is -1 where the mask is 0.
    Raises SampleError when the arrays contradict each other.
    """

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.bool_]
    behaviour_logprobs: npt.NDArray[np.float32]
    advantages: npt.NDArray[np.float32]
    policy_versions: npt.NDArray[np.int32]
    weight: float
    temperature: float
    chain_id: str
    rollout_id: str
    group_id: str
    proximal_logprobs: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        self._check_lengths()
        if self.loss_mask.size and self.loss_mask[0]:
            raise SampleError(f"{self._where}: token 0 is marked as sampled, but nothing before it predicts it")
        if not self.temperature > 0:
            raise SampleError(f"{self._where}: temperature is {self.temperature}; want > 0, greedy has no ratio")
        if not 0 <= self.weight <= 1:
            raise SampleError(f"{self._where}: weight is {self.weight}; a chain's share of its rollout lies in [0, 1]")
        for name in ("behaviour_logprobs", "advantages"):
            if not np.isfinite(getattr(self, name)).all():
                raise SampleError(f"{self._where}: {name} holds NaN or infinity; want finite numbers")

    def _check_lengths(self) -> None:
        length = len(self.token_ids)
        for name in ("loss_mask", "behaviour_logprobs", "advantages", "policy_versions", "proximal_logprobs"):
            array = getattr(self, name)
            if array is not None and array.shape != (length,):
                raise SampleError(f"{self._where}: {name} has shape {array.shape}; token_ids has {length} tokens")

    @property
    def _where(self) -> str:
        return f"sample {self.chain_id} of rollout {self.rollout_id}"

    @property
    def num_loss_tokens(self) -> int:
        """Tokens that train."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditRule:
    """How much a sampled token of each role counts beside one of the main agent. A rollout's total stays 1.

    Default: title, summary and other side calls do not train; sub-agents share like the main agent.
    """

    main: float = 1.0
    sub_agent: float = 1.0
    side: float = 0.0

    def __post_init__(self) -> None:
        if min(self.main, self.sub_agent, self.side) < 0:
            raise SampleError(f"credit {self}: a share below 0 would reverse the lesson; want numbers >= 0")

    def of(self, role: Role) -> float:
        """The share of a token of that role."""
        return {"main": self.main, "sub_agent": self.sub_agent, "side": self.side}[role]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The samples of a batch of groups, and what was left out and why.

    `unjudged`: rollouts without a verdict (ours to mend, no gradient). `empty`: rollouts in which nothing sampled
    carries weight. The groups without a lesson are named in `advantages`.
    """

    samples: tuple[Sample, ...]
    advantages: BatchAdvantages
    unjudged: tuple[str, ...]
    empty: tuple[str, ...]


def samples_from(
    groups: Sequence[Group],
    judged_by_rollout: Mapping[str, Judged],
    sampling: Sampling,
    config: AdvantageConfig,
    credit: CreditRule | None = None,
) -> SampleBatch:
    """Groups and their verdicts -> samples. `sampling` is how every token was drawn.

    Members that are Unjudged get no sample and leave the baseline. Raises SampleError for a member without a
    Judged, and for sampling whose log-probabilities the trainer cannot form again (greedy, top-p, top-k).
    """
    _check_sampling(sampling)
    missing = [m.rollout_id for g in groups for m in g.members if m.rollout_id not in judged_by_rollout]
    if missing:
        raise SampleError(f"no Judged for {', '.join(missing)}; judge every member, or mark it Unjudged")
    rewards = [_rewards(group, judged_by_rollout) for group in groups]
    advantages = batch_advantages(rewards, config)
    members = [m for g in groups for m in g.members]
    by_member = [
        _rollout_samples(m, advantages.by_rollout[m.rollout_id], sampling.temperature, credit or CreditRule())
        for m in members
        if m.rollout_id in advantages.by_rollout
    ]
    sampled = {s.rollout_id for samples in by_member for s in samples}
    return SampleBatch(
        samples=tuple(s for samples in by_member for s in samples),
        advantages=advantages,
        unjudged=tuple(
            m.rollout_id for m in members if not isinstance(judged_by_rollout[m.rollout_id].result, Verdict)
        ),
        empty=tuple(r for r in advantages.by_rollout if r not in sampled),
    )


def demonstration_samples(trajectories: Iterable[Trajectory], temperature: float = 1.0) -> tuple[Sample, ...]:
    """Every trajectory as a demonstration: advantage 1 on each sampled token, for the `nll` loss."""
    return tuple(s for t in trajectories for s in _rollout_samples(t, 1.0, temperature, CreditRule()))


def _check_sampling(sampling: Sampling) -> None:
    if sampling.temperature == 0:
        raise SampleError("sampling.temperature is 0: greedy rollouts do not explore and have no ratio; want > 0")
    if sampling.top_p < 1 or sampling.top_k > 0:
        raise SampleError(
            f"sampling.top_p {sampling.top_p}, top_k {sampling.top_k}: the trainer scores the whole vocabulary, so "
            "ratios against a truncated distribution would be wrong; roll out for training with top_p 1, top_k -1"
        )


def _rewards(group: Group, judged_by_rollout: Mapping[str, Judged]) -> GroupRewards:
    pairs = [(m.rollout_id, judged_by_rollout[m.rollout_id].reward) for m in group.members]
    kept = [(rollout_id, reward) for rollout_id, reward in pairs if reward is not None]
    return GroupRewards(
        group_id=group.group_id,
        rollout_ids=tuple(rollout_id for rollout_id, _ in kept),
        rewards_G=tuple(reward for _, reward in kept),
        requested_size=group.requested_size,
    )


def _rollout_samples(trajectory: Trajectory, advantage: float, temperature: float, credit: CreditRule) -> list[Sample]:
    credited = [(chain, credit.of(chain.role) * chain.num_trainable) for chain in trajectory.chains]
    total = sum(amount for _, amount in credited)
    return [
        sample_from_chain(chain, trajectory.group_id, advantage, amount / total, temperature)
        for chain, amount in credited
        if amount > 0
    ]


def sample_from_chain(chain: Chain, group_id: str, advantage: float, weight: float, temperature: float) -> Sample:
    """One chain as arrays, with the same advantage on each sampled token. Raises SampleError."""
    segments = [s for s in chain.segments if s.ids]
    mask = np.concatenate([np.full(len(s.ids), s.trainable) for s in segments])
    return Sample(
        token_ids=np.concatenate([np.asarray(s.ids, dtype=np.int32) for s in segments]),
        loss_mask=mask,
        behaviour_logprobs=np.concatenate(
            [np.asarray(s.logprobs if s.trainable else (0.0,) * len(s.ids), dtype=np.float32) for s in segments]
        ),
        advantages=np.where(mask, np.float32(advantage), np.float32(0)),
        policy_versions=np.concatenate([np.full(len(s.ids), s.policy_version, dtype=np.int32) for s in segments]),
        weight=weight,
        temperature=temperature,
        chain_id=chain.chain_id,
        rollout_id=chain.rollout_id,
        group_id=group_id,
    )
