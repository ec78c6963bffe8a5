"""How token losses become one number: a weight per token, from counts over the whole optimizer step.

The weights are made once per step from all its samples, so neither packing, microbatches, ranks nor the number of
chains a rollout came in can change the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from training.losses.base import LossConfigError

AggregationName = Literal["token_mean", "rollout_mean", "prompt_mean", "fixed_length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregation:
    """The mean that is minimised; T_r is rollout r's number of trained tokens, R the rollouts, P the prompts.

    - `token_mean`: sum over all tokens / sum_r T_r (MiniMax-M1 Eq. 4, DAPO Eq. 8)
    - `rollout_mean`: mean over rollouts of the mean over tokens (GRPO)
    - `prompt_mean`: mean over prompts of the mean over all tokens of the prompt's group (ScaleRL)
    - `fixed_length`: sum over all tokens / (R * fixed_length) (Dr. GRPO)
    """

    name: AggregationName
    fixed_length: int | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(AggregationName):
            raise LossConfigError(f"aggregation is {self.name!r}; want one of {', '.join(get_args(AggregationName))}")
        if (self.name == "fixed_length") != (self.fixed_length is not None):
            raise LossConfigError(
                f"aggregation {self.name} with fixed_length {self.fixed_length}: the number belongs to "
                "'fixed_length' alone; give that one training.fixed_length=<longest completion>, the others none"
            )
        if self.fixed_length is not None and self.fixed_length < 1:
            raise LossConfigError(f"fixed_length is {self.fixed_length}; want at least 1 token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainShape:
    """What the normaliser needs to know of one chain. `weight`: its share of its rollout's total weight of 1."""

    rollout_id: str
    group_id: str
    num_loss_tokens: int
    weight: float


def token_weights(chains: Sequence[ChainShape], aggregation: Aggregation) -> list[float]:
    """For each chain, the factor of each of its trained tokens in the step's loss `sum_t w_t * L_t`.

    A chain's tokens carry `weight / num_loss_tokens` of their rollout's 1; the aggregation then scales the rollout
    by its length or not. Chains of weight 0 count nowhere. Raises LossConfigError if nothing is left to train on.
    """
    trained = [c for c in chains if c.weight > 0 and c.num_loss_tokens > 0]
    if not trained:
        raise LossConfigError(f"none of {len(chains)} chains has a trainable token with weight; nothing to learn from")
    rollout_tokens, group_tokens = _counts(trained)
    return [
        c.weight / c.num_loss_tokens * _rollout_factor(c, aggregation, rollout_tokens, group_tokens)
        if c.weight > 0 and c.num_loss_tokens > 0
        else 0.0
        for c in chains
    ]


def _counts(trained: Sequence[ChainShape]) -> tuple[dict[str, int], dict[str, int]]:
    rollout_tokens: dict[str, int] = defaultdict(int)
    group_tokens: dict[str, int] = defaultdict(int)
    for chain in trained:
        rollout_tokens[chain.rollout_id] += chain.num_loss_tokens
        group_tokens[chain.group_id] += chain.num_loss_tokens
    return rollout_tokens, group_tokens


def _rollout_factor(
    chain: ChainShape, aggregation: Aggregation, rollout_tokens: dict[str, int], group_tokens: dict[str, int]
) -> float:
    length = rollout_tokens[chain.rollout_id]
    match aggregation.name:
        case "token_mean":
            return length / sum(rollout_tokens.values())
        case "rollout_mean":
            return 1 / len(rollout_tokens)
        case "prompt_mean":
            return length / group_tokens[chain.group_id] / len(group_tokens)
        case "fixed_length":
            assert aggregation.fixed_length is not None  # checked when made
            return length / (len(rollout_tokens) * aggregation.fixed_length)
