"""Whether a candidate takes the champion's place: a pure function of two measurements and a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.evaluation.comparison import Comparison, compare
from training.evaluation.estimates import Estimate

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A policy's benchmark. `evaluation_digest` names pool, attempts, sampling, harness, gates and box images.

    `rewards[task_id]` holds one reward per judged attempt; `num_excluded` attempts had no verdict (our fault).
    `name` is what the verdict calls the one that is to be beaten.
    """

    policy_version: int
    weights_digest: str
    evaluation_digest: str
    rewards: Mapping[str, Sequence[float]]
    num_excluded: int
    name: str = "champion"

    @property
    def excluded_share(self) -> float:
        """Attempts without a verdict, of all."""
        judged = sum(len(r) for r in self.rewards.values())
        return self.num_excluded / (judged + self.num_excluded) if judged + self.num_excluded else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRule:
    """What a candidate must show. The gain counts at the lower end of its interval.

    `max_band_loss`: no horizon band may lose more than this with its whole interval below zero.
    """

    min_gain: float = 0.0
    min_tasks: int = 30
    max_excluded_share: float = 0.02
    max_band_loss: float = 0.05
    confidence: float = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionVerdict:
    """The verdict with every reason. `comparison` is None when nothing could be compared."""

    promote: bool
    reasons: tuple[str, ...]
    candidate_version: int
    champion_version: int | None
    evaluation_digest: str
    comparison: Comparison | None


def decide(
    candidate: Measurement,
    champion: Measurement | None,
    *,
    rule: PromotionRule,
    horizons: Mapping[str, int],
    bands: Sequence[int],
    seed: int,
) -> PromotionVerdict:
    """Promote or refuse. Fails closed: what cannot be compared is refused. Without a champion, soundness suffices.

    Raises ComparisonError when the digests agree and yet the tasks do not.
    """
    refusals = _unsound(candidate, rule, "candidate")
    if champion is not None:
        refusals += _unsound(champion, rule, champion.name) + _unlike(candidate, champion)
    comparison: Comparison | None = None
    if champion is not None and not refusals:
        comparison = compare(
            champion.rewards, candidate.rewards, horizons=horizons, bands=bands, seed=seed, confidence=rule.confidence
        )
        refusals += _too_weak(comparison, rule)
    return PromotionVerdict(
        promote=not refusals,
        reasons=tuple(refusals) or (_why(comparison, champion, rule),),
        candidate_version=candidate.policy_version,
        champion_version=champion.policy_version if champion is not None else None,
        evaluation_digest=candidate.evaluation_digest,
        comparison=comparison,
    )


def _unsound(measured: Measurement, rule: PromotionRule, who: str) -> list[str]:
    out: list[str] = []
    if len(measured.rewards) < rule.min_tasks:
        out.append(f"{who} was measured on {len(measured.rewards)} tasks; the rule wants at least {rule.min_tasks}")
    if measured.excluded_share > rule.max_excluded_share:
        out.append(
            f"{measured.excluded_share:.1%} of the {who}'s attempts had no verdict (our faults); "
            f"the rule allows {rule.max_excluded_share:.1%}: mend the infrastructure and measure again"
        )
    return out


def _unlike(candidate: Measurement, champion: Measurement) -> list[str]:
    out: list[str] = []
    if candidate.evaluation_digest != champion.evaluation_digest:
        out.append(
            f"measured differently: candidate on evaluation {candidate.evaluation_digest[:12]}, {champion.name} on "
            f"{champion.evaluation_digest[:12]}; benchmark the {champion.name} again with this config"
        )
    if candidate.weights_digest == champion.weights_digest:
        out.append(f"candidate and {champion.name} are the same weights ({candidate.weights_digest[:12]})")
    return out


def _too_weak(comparison: Comparison, rule: PromotionRule) -> list[str]:
    gain = comparison.gain
    out: list[str] = []
    if gain.low <= rule.min_gain:
        out.append(f"gain of {_points(gain)} on {gain.n} tasks; its lower end must exceed {100 * rule.min_gain:+.1f}")
    for band in comparison.by_band:
        if band.gain.mean < -rule.max_band_loss and band.gain.high < 0:
            out.append(
                f"horizons {band.low}-{band.high} lose: {_points(band.gain)}; "
                f"the rule allows {-100 * rule.max_band_loss:+.1f}"
            )
    return out


def _points(gain: Estimate) -> str:
    """'+12.0 points [+4.1, +19.8]'."""
    return f"{100 * gain.mean:+.1f} points [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def _why(comparison: Comparison | None, champion: Measurement | None, rule: PromotionRule) -> str:
    if comparison is None or champion is None:
        return "there is no champion yet, and the measurement is sound"
    gain = comparison.gain
    return (
        f"gain of {_points(gain)} over the {champion.name} on {gain.n} tasks; the lower end exceeds "
        f"{100 * rule.min_gain:+.1f} (sign-flip p = {comparison.p_value:.4f})"
    )
