"""The zero-gradient monitor: where the rollouts and tokens of an iteration went, against what was expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from training.curriculum.base import Decision, Evidence, Selection
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
    (seen - expected) in standard deviations. `alarm` is empty, or says what is wrong. An iteration of which no rollout
    could be judged has no groups: nothing of it carried gradient.
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
    def num_rollouts(self) -> int:
        """Rollouts in them."""
        return self.all_fail.rollouts + self.all_pass.rollouts + self.mixed.rollouts

    @property
    def useful_share(self) -> float:
        """Share of groups that carry gradient; 0 without groups."""
        return self.mixed.groups / max(1, self.num_groups)

    @property
    def zero_gradient_share(self) -> float:
        """Share of groups that carry none; 1 without groups."""
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
            out[f"zero_gradient/{name}_share"] = share.groups / max(1, self.num_groups)
            out[f"zero_gradient/{name}_rollouts"] = share.rollouts
            out[f"zero_gradient/{name}_tokens"] = share.tokens
        if self.expected_useful is not None and self.surprise is not None:
            out["zero_gradient/expected_share"] = 1.0 - self.expected_useful
            out["zero_gradient/surprise"] = self.surprise
        return out


def watch(
    evidence: Sequence[Evidence],
    selection: Selection,
    *,
    min_useful_share: float = 0.4,
    min_rollouts: int = 32,
    before: Sequence[ZeroGradientReport] = (),
) -> ZeroGradientReport:
    """Sort an iteration's groups, compare with the selection's beliefs, and sound the alarm.

    The alarm rings when the useful share is under `min_useful_share`, over as many of the newest iterations (`before`:
    the ones before this, in order) as hold `min_rollouts` rollouts; while all of them hold fewer it is silent. Rollouts
    are what it waits for and not groups: a hard pool gets few and large ones. It rings at once when no rollout of the
    iteration could be judged.
    """
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
    expected, surprise = _expected(groups, selection.decisions)
    report = ZeroGradientReport(
        policy_version=selection.policy_version,
        **shares,
        expected_useful=expected,
        surprise=surprise,
        alarm="" if groups else _nothing_judged(selection),
    )
    if report.alarm:
        return report
    return replace(report, alarm=_alarm(window((*before, report), min_rollouts), min_useful_share, min_rollouts))


def window(reports: Sequence[ZeroGradientReport], min_rollouts: int) -> tuple[ZeroGradientReport, ...]:
    """The fewest of the newest reports that hold `min_rollouts` rollouts together; all, where they hold fewer."""
    held = 0
    for number, report in enumerate(reversed(reports), start=1):
        held += report.num_rollouts
        if held >= min_rollouts:
            return tuple(reports[-number:])
    return tuple(reports)


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


def _nothing_judged(selection: Selection) -> str:
    return (
        f"none of the {selection.num_rollouts} rollouts asked for could be judged: faults of ours (engine, sandbox, "
        "judge) took all of them, so nothing was learnt, of the tasks neither; the trajectories and verdicts say which"
    )


def _alarm(reports: Sequence[ZeroGradientReport], bound: float, min_rollouts: int) -> str:
    fail, passed, mixed = (
        sum(share.groups for share in shares)
        for shares in zip(*((r.all_fail, r.all_pass, r.mixed) for r in reports), strict=True)
    )
    useful = mixed / (fail + passed + mixed)
    if useful >= bound or sum(r.num_rollouts for r in reports) < min_rollouts:
        return ""
    cause = (
        "most of the rest fail throughout: the tasks are too hard for this policy; add easier ones or raise max_turns"
        if fail >= passed
        else "most of the rest pass throughout: the pool is nearly solved; add harder tasks"
    )
    over = f" of the last {len(reports)} iterations" if len(reports) > 1 else ""
    return f"only {useful:.0%} of groups{over} carry gradient (bound {bound:.0%}); {cause}"
