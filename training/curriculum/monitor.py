"""The zero-gradient monitor: where the rollouts and tokens of an iteration went, against what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.curriculum.base import Decision, Evidence, Selection, need
from training.curriculum.signal import mixed_predictive


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Groups of one sort, and the rollouts and sampled tokens in them."""

    groups: int
    rollouts: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGradientReport:
    """One iteration's groups by what their rewards were.

    `mixed`: rewards differ, so the group carries gradient. `all_pass`, `all_fail`: all rewards are equal, and the
    rollouts passed or not. `expected_useful` is the Beta-binomial predictive share of mixed groups, from what
    was believed at selection; NaN-free: it is None when no group has a decision. `surprise` is
    (seen - expected) in standard deviations. `alarm` is empty, or says what is wrong.
    """

    policy_version: int
    all_fail: Share
    all_pass: Share
    mixed: Share
    expected_useful: float | None
    surprise: float | None
    alarm: str

    @property
    def num_groups(self) -> int:
        """Groups seen."""
        return self.all_fail.groups + self.all_pass.groups + self.mixed.groups

    @property
    def useful_share(self) -> float:
        """Share of groups that carry gradient."""
        return self.mixed.groups / self.num_groups

    @property
    def zero_gradient_share(self) -> float:
        """Share of groups that carry none."""
        return 1.0 - self.useful_share

    @property
    def wasted_token_share(self) -> float:
        """Share of sampled tokens that lie in groups without gradient (0 when no token was counted)."""
        wasted = self.all_fail.tokens + self.all_pass.tokens
        total = wasted + self.mixed.tokens
        return wasted / total if total else 0.0

    def metrics(self) -> dict[str, float]:
        """Flat numbers for a tracker; the expected share is left out when it is unknown."""
        out: dict[str, float] = {
            "zero_gradient/share": self.zero_gradient_share,
            "zero_gradient/wasted_token_share": self.wasted_token_share,
            "zero_gradient/alarm": float(bool(self.alarm)),
        }
        for name in ("all_fail", "all_pass", "mixed"):
            share: Share = getattr(self, name)
            out[f"zero_gradient/{name}_share"] = share.groups / self.num_groups
            out[f"zero_gradient/{name}_rollouts"] = share.rollouts
            out[f"zero_gradient/{name}_tokens"] = share.tokens
        if self.expected_useful is not None and self.surprise is not None:
            out["zero_gradient/expected_share"] = 1.0 - self.expected_useful
            out["zero_gradient/surprise"] = self.surprise
        return out


def watch(
    evidence: Sequence[Evidence], selection: Selection, *, min_useful_share: float = 0.4, min_groups: int = 8
) -> ZeroGradientReport:
    """Sort an iteration's groups, compare with the selection's beliefs, and sound the alarm.

    The alarm rings when the useful share is under `min_useful_share` over at least `min_groups` groups. Raises
    CurriculumError without evidence: an iteration of nothing is an error of the caller's.
    """
    need(len(evidence) > 0, "the monitor was given no evidence; watch an iteration after judging it")
    groups: dict[str, list[Evidence]] = {}
    for item in evidence:
        groups.setdefault(item.group_id, []).append(item)
    sorts = {"all_fail": [0, 0, 0], "all_pass": [0, 0, 0], "mixed": [0, 0, 0]}
    for members in groups.values():
        share = sorts[_sort(members)]
        share[0] += 1
        share[1] += len(members)
        share[2] += sum(m.tokens for m in members)
    shares = {name: Share(groups=g, rollouts=r, tokens=t) for name, (g, r, t) in sorts.items()}
    useful = shares["mixed"].groups / len(groups)
    expected, surprise = _expected(groups, selection.decisions)
    rings = len(groups) >= min_groups and useful < min_useful_share
    return ZeroGradientReport(
        policy_version=selection.policy_version,
        all_fail=shares["all_fail"],
        all_pass=shares["all_pass"],
        mixed=shares["mixed"],
        expected_useful=expected,
        surprise=surprise,
        alarm=_alarm(useful, min_useful_share, shares) if rings else "",
    )


def _sort(members: list[Evidence]) -> str:
    rewards = [m.reward for m in members]
    if max(rewards) > min(rewards):
        return "mixed"
    return "all_pass" if members[0].passed else "all_fail"


def _expected(groups: dict[str, list[Evidence]], decisions: Sequence[Decision]) -> tuple[float | None, float | None]:
    """Predictive useful share of the groups that have a decision, and the surprise over the same groups."""
    belief = {d.task_id: (d.alpha, d.beta) for d in decisions}
    known = [m for m in groups.values() if m[0].task_id in belief]
    if not known:
        return None, None
    chance = np.array(
        [
            float(mixed_predictive(np.array(a), np.array(b), len(members)))
            for members in known
            for a, b in [belief[members[0].task_id]]
        ]
    )
    seen = sum(_sort(m) == "mixed" for m in known)
    spread = math.sqrt(float((chance * (1 - chance)).sum()))
    surprise = (seen - float(chance.sum())) / spread if spread > 0 else 0.0
    return float(chance.mean()), surprise


def _alarm(useful: float, bound: float, shares: dict[str, Share]) -> str:
    fail, passed = shares["all_fail"].groups, shares["all_pass"].groups
    cause = (
        "most of the rest fail throughout: the tasks are too hard for this policy; add easier ones or raise max_turns"
        if fail >= passed
        else "most of the rest pass throughout: the pool is nearly solved; add harder tasks"
    )
    return f"only {useful:.0%} of groups carry gradient (bound {bound:.0%}); {cause}"
