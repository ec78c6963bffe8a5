"""The losses and corrections by the name a config file calls them. The components do not know this list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.losses.base import LossConfigError, TokenLoss
from training.losses.cispo import Cispo
from training.losses.cispo_two_sided import CispoTwoSided
from training.losses.dapo import Dapo
from training.losses.dispo import Dispo
from training.losses.dr_grpo import DrGrpo
from training.losses.grpo import Grpo
from training.losses.gspo import Gspo
from training.losses.m1_mask import M1Mask
from training.losses.mismatch import IcePop, Mis, Mismatch, NoCorrection, Tis
from training.losses.nll import NegativeLogLikelihood
from training.losses.ppo_clip import PpoClip
from training.losses.reinforce import Reinforce

LOSSES: Mapping[str, type[TokenLoss]] = {
    kind.name: kind
    for kind in (
        Cispo, CispoTwoSided, Dapo, Dispo, DrGrpo, Grpo, Gspo, M1Mask, NegativeLogLikelihood, PpoClip, Reinforce,
    )
}  # fmt: skip
MISMATCHES: Mapping[str, type[Mismatch]] = {kind.name: kind for kind in (NoCorrection, Tis, Mis, IcePop)}


def _make(kind: str, known: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> Any:
    if name not in known:
        raise LossConfigError(f"unknown {kind} {name!r}; want one of {', '.join(sorted(known))}")
    wanted = known[name].__dataclass_fields__
    strange = sorted(set(fields) - set(wanted))
    if strange:
        raise LossConfigError(f"{kind} {name} has no field {', '.join(strange)}; it has {', '.join(wanted) or 'none'}")
    return known[name](**fields)


def make_loss(name: str, **fields: float | None) -> TokenLoss:
    """The loss of that name. Raises LossConfigError on an unknown name or field, or a value the loss refuses."""
    loss: TokenLoss = _make("loss", LOSSES, name, fields)
    return loss


def make_mismatch(name: str, **fields: float) -> Mismatch:
    """The engine-mismatch correction of that name. Raises LossConfigError like `make_loss`."""
    mismatch: Mismatch = _make("mismatch correction", MISMATCHES, name, fields)
    return mismatch
