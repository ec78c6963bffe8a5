"""What a training step reports: one line of numbers per optimizer update, and their summary per step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RATIO_EDGES = (0.0, 0.1, 0.5, 0.8, 0.95, 1.05, 1.2, 2.0, 5.0, 10.0, float("inf"))
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenTable:
    """The statistics of the N tokens of one update, in the order they were computed; log-probabilities in nats.

    `gradient_N` is the 2-norm of d(loss)/d(logits over temperature) of each token; `coefficient_N` its weighted
    d(loss)/d(logp). `sample_N` indexes the update's samples. `rare_N`: part of a rare word.
    """

    sample_N: npt.NDArray[np.int64]
    target_N: npt.NDArray[np.int64]
    logprob_N: FloatArray
    behaviour_N: FloatArray
    base_N: FloatArray
    entropy_N: FloatArray
    coefficient_N: FloatArray
    gradient_N: FloatArray
    clipped_N: npt.NDArray[np.bool_]
    rare_N: npt.NDArray[np.bool_]
    start_kl_N: FloatArray | None

    @classmethod
    def join(cls, tables: Sequence[TokenTable]) -> TokenTable:
        """One table from those of several rows."""
        start = [t.start_kl_N for t in tables if t.start_kl_N is not None]
        return cls(
            **{
                name: np.concatenate([getattr(t, name) for t in tables])
                for name in cls.__dataclass_fields__
                if name != "start_kl_N"
            },
            start_kl_N=np.concatenate(start) if start else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """One optimizer update. Means are over its trained tokens, before the update; entropy and KL in nats.

    `ratio_*`: pi_theta over the ratio base. `ratio_histogram` counts tokens between RATIO_EDGES.
    `kl_to_behaviour`: k3 estimate of KL(behaviour || policy); `kl_to_start` likewise of KL(policy || start), None
    unless the loss reads the start policy. Gradient shares are of the summed logit-gradient norms:
    `rare_token_gradient_share` of the configured words, each of which was said `rare_word_counts` times,
    `decile_gradient_share[d]` of the d-th tenth of tokens by behaviour probability, the least probable first.
    `grad_norm` is before clipping.
    """

    loss: float
    ratio_mean: float
    ratio_max: float
    ratio_histogram: tuple[int, ...]
    clipped_fraction: float
    entropy: float
    grad_norm: float
    kl_to_behaviour: float
    kl_to_start: float | None
    rare_token_gradient_share: float
    rare_word_counts: Mapping[str, int]
    decile_gradient_share: tuple[float, ...]
    learning_rate: float
    num_loss_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One call of `train_step`: a batch of samples, one or more updates.

    Scalars and shares are token-weighted means over the updates, but `ratio_max` and `grad_norm` are their maxima, and
    `ratio_histogram` and `rare_word_counts` are sums, the latter over one pass.
    `policy_version` is the version after the step; `staleness_max` how many versions the oldest trained token was
    behind the version before it. `num_tokens` counts prompt and trained tokens of one pass, `tokens_per_s` all
    tokens of all passes over the step's wall time.
    """

    step: int
    policy_version: int
    loss: float
    ratio_mean: float
    ratio_max: float
    ratio_histogram: tuple[int, ...]
    clipped_fraction: float
    entropy: float
    grad_norm: float
    kl_to_behaviour: float
    kl_to_start: float | None
    rare_token_gradient_share: float
    rare_word_counts: Mapping[str, int]
    decile_gradient_share: tuple[float, ...]
    staleness_max: int
    num_samples: int
    num_rollouts: int
    num_tokens: int
    num_loss_tokens: int
    wall_s: float
    tokens_per_s: float
    updates: tuple[UpdateReport, ...]


def update_report(
    table: TokenTable, *, loss: float, grad_norm: float, learning_rate: float, rare_word_counts: Mapping[str, int]
) -> UpdateReport:
    """Summarise one update's tokens."""
    ratio_N = np.exp(table.logprob_N - table.base_N)
    start = table.start_kl_N
    return UpdateReport(
        loss=loss,
        ratio_mean=float(ratio_N.mean()),
        ratio_max=float(ratio_N.max()),
        ratio_histogram=tuple(int(n) for n in np.histogram(ratio_N, bins=np.asarray(RATIO_EDGES))[0]),
        clipped_fraction=float(table.clipped_N.mean()),
        entropy=float(table.entropy_N.mean()),
        grad_norm=grad_norm,
        kl_to_behaviour=float(k3_mean(table.behaviour_N, table.logprob_N)),
        kl_to_start=None if start is None else float(start.mean()),
        rare_token_gradient_share=_share(table.gradient_N, table.rare_N),
        rare_word_counts=rare_word_counts,
        decile_gradient_share=decile_shares(table.gradient_N, table.behaviour_N),
        learning_rate=learning_rate,
        num_loss_tokens=len(ratio_N),
    )


def k3_mean(sampled_from_N: FloatArray, other_N: FloatArray) -> float:
    """`mean(exp(d) - d - 1)`, `d = log other - log sampled_from`: estimates KL(sampled_from || other), >= 0."""
    difference_N = other_N - sampled_from_N
    return float((np.expm1(difference_N) - difference_N).mean())


def _share(gradient_N: FloatArray, chosen_N: npt.NDArray[np.bool_]) -> float:
    total = float(gradient_N.sum())
    return float(gradient_N[chosen_N].sum()) / total if total > 0 else 0.0


def decile_shares(gradient_N: FloatArray, behaviour_N: FloatArray) -> tuple[float, ...]:
    """The share of the summed gradient of each tenth of the tokens, the least probable tenth first."""
    order_N = np.argsort(behaviour_N, kind="stable")
    total = float(gradient_N.sum())
    parts = np.array_split(gradient_N[order_N], 10)
    return tuple(float(part.sum()) / total if total > 0 else 0.0 for part in parts)


def step_report(
    updates: Sequence[UpdateReport],
    *,
    step: int,
    policy_version: int,
    staleness_max: int,
    num_samples: int,
    num_rollouts: int,
    num_tokens: int,
    num_loss_tokens: int,
    passes: int,
    wall_s: float,
) -> StepReport:
    """Summarise a step's updates, weighting each by its trained tokens."""
    weights = [u.num_loss_tokens for u in updates]

    def mean(values: Sequence[float]) -> float:
        return float(np.average(values, weights=weights))

    said: Counter[str] = Counter()
    for update in updates:
        said.update(update.rare_word_counts)
    start = [u.kl_to_start for u in updates if u.kl_to_start is not None]
    return StepReport(
        step=step,
        policy_version=policy_version,
        loss=mean([u.loss for u in updates]),
        ratio_mean=mean([u.ratio_mean for u in updates]),
        ratio_max=max(u.ratio_max for u in updates),
        ratio_histogram=tuple(sum(counts) for counts in zip(*(u.ratio_histogram for u in updates), strict=True)),
        clipped_fraction=mean([u.clipped_fraction for u in updates]),
        entropy=mean([u.entropy for u in updates]),
        grad_norm=max(u.grad_norm for u in updates),
        kl_to_behaviour=mean([u.kl_to_behaviour for u in updates]),
        kl_to_start=mean(start) if start else None,
        rare_token_gradient_share=mean([u.rare_token_gradient_share for u in updates]),
        rare_word_counts={word: count // passes for word, count in said.items()},
        decile_gradient_share=tuple(
            mean(shares) for shares in zip(*(u.decile_gradient_share for u in updates), strict=True)
        ),
        staleness_max=staleness_max,
        num_samples=num_samples,
        num_rollouts=num_rollouts,
        num_tokens=num_tokens,
        num_loss_tokens=num_loss_tokens,
        wall_s=wall_s,
        tokens_per_s=num_tokens * passes / wall_s if wall_s > 0 else 0.0,
        updates=tuple(updates),
    )
