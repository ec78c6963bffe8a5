"""Group advantages: how much better a rollout did than its siblings, with each choice of convention named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Baseline = Literal["group_mean", "leave_one_out"]
Scale = Literal["none", "std_population", "std_sample", "batch_std"]
FloatArray = npt.NDArray[np.float64]


class AdvantageError(ValueError):
    """Rewards or a choice of convention that give no advantage. The message says what was got and wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageConfig:
    """Which advantage. There is no epsilon in any division: groups without variance are dropped instead.

    `baseline`: 'group_mean' `r - mean(r)`; 'leave_one_out' `r - mean(the others)` = `G/(G-1) (r - mean(r))`.
    `scale`: 'std_population' (ddof 0) or 'std_sample' (ddof 1) of the group's rewards; 'batch_std': population std
    of the centred rewards of all kept rollouts of the batch (ScaleRL, arXiv 2510.13786); 'none' (Dr. GRPO).
    """

    baseline: Baseline = "group_mean"
    scale: Scale = "std_population"

    def __post_init__(self) -> None:
        if self.baseline == "leave_one_out" and self.scale in ("std_population", "std_sample"):
            raise AdvantageError(
                f"baseline leave_one_out with scale {self.scale}: the group's std divides the factor G/(G-1) of "
                "leave-one-out by another of the same kind; use scale 'none' or 'batch_std'"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRewards:
    """The rewards of one group's judged members. `rewards_G[i]` belongs to `rollout_ids[i]`."""

    group_id: str
    rollout_ids: tuple[str, ...]
    rewards_G: tuple[float, ...]
    requested_size: int

    def __post_init__(self) -> None:
        if len(self.rollout_ids) != len(self.rewards_G):
            raise AdvantageError(
                f"group {self.group_id}: {len(self.rollout_ids)} rollouts but {len(self.rewards_G)} rewards"
            )
        if not np.isfinite(np.asarray(self.rewards_G)).all():
            raise AdvantageError(f"group {self.group_id}: rewards {self.rewards_G} are not all finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAdvantages:
    """Advantages by rollout id, and the groups that gave none.

    `zero_variance`: all members did the same, so nothing can be learnt from comparing them (the zero-gradient
    trap). `too_small`: fewer than 2 judged members. `incomplete`: used, but with members missing; their mean and
    std are of the members that are there.
    """

    by_rollout: Mapping[str, float]
    zero_variance: tuple[str, ...]
    too_small: tuple[str, ...]
    incomplete: tuple[str, ...]


def centred(rewards: npt.ArrayLike, baseline: Baseline) -> FloatArray:
    """Rewards less their group's baseline; `[..., G]`, the last axis is the group.

    Raises AdvantageError for fewer than 2 members.
    """
    values = np.asarray(rewards, dtype=np.float64)
    size = values.shape[-1]
    if size < 2:
        raise AdvantageError(f"a group of {size} has nothing to compare with; want at least 2 members")
    factor = size / (size - 1) if baseline == "leave_one_out" else 1.0
    deviation: FloatArray = (values - values.mean(-1, keepdims=True)) * factor
    return deviation


def batch_advantages(groups: Sequence[GroupRewards], config: AdvantageConfig) -> BatchAdvantages:
    """The advantages of a batch of groups under `config`; groups that cannot teach are dropped and named.

    A missing member (an infra fault) is left out of mean, std and leave-one-out alike: which members are missing
    does not depend on their reward, so the advantage of those present stays unbiased. No zero is filled in.
    """
    large = [g for g in groups if len(g.rewards_G) >= 2]
    kept = [g for g in large if max(g.rewards_G) > min(g.rewards_G)]
    centred_by_group = [centred(g.rewards_G, config.baseline) for g in kept]
    scales = _scales(kept, centred_by_group, config.scale)
    by_rollout = {
        rollout_id: float(value / scale)
        for group, values, scale in zip(kept, centred_by_group, scales, strict=True)
        for rollout_id, value in zip(group.rollout_ids, values, strict=True)
    }
    kept_ids = {g.group_id for g in kept}
    return BatchAdvantages(
        by_rollout=by_rollout,
        zero_variance=tuple(g.group_id for g in large if g.group_id not in kept_ids),
        too_small=tuple(g.group_id for g in groups if len(g.rewards_G) < 2),
        incomplete=tuple(g.group_id for g in kept if len(g.rewards_G) < g.requested_size),
    )


def _scales(kept: Sequence[GroupRewards], centred_by_group: Sequence[FloatArray], scale: Scale) -> list[float]:
    match scale:
        case "none":
            return [1.0] * len(kept)
        case "std_population":
            return [float(np.std(g.rewards_G)) for g in kept]
        case "std_sample":
            return [float(np.std(g.rewards_G, ddof=1)) for g in kept]
        case "batch_std":
            return [float(np.std(np.concatenate(centred_by_group)))] * len(kept) if kept else []
