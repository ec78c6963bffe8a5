"""The losses and corrections by the name a config file calls them. The components do not know this list."""

from __future__ import annotations

import dataclasses
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
    takes = {f.name: f.default for f in dataclasses.fields(known[name])}
    strange = sorted(fields.keys() - takes.keys())
    missing = [field for field, default in takes.items() if default is dataclasses.MISSING and field not in fields]
    if strange or missing:
        faults = [f"has no setting {', '.join(strange)}"] if strange else []
        faults += [f"needs the setting {', '.join(missing)}"] if missing else []
        raise LossConfigError(f"{kind} {name} {' and '.join(faults)}; {_takes(takes)}")
    return known[name](**fields)


def _takes(fields: Mapping[str, Any]) -> str:
    """'it takes min_ratio, max_ratio=5.0': a setting without a default has no value beside it."""
    said = [name if default is dataclasses.MISSING else f"{name}={default}" for name, default in fields.items()]
    return f"it takes {', '.join(said) or 'none'}"


def make_loss(name: str, **fields: float | None) -> TokenLoss:
    """The loss of that name.

    Raises LossConfigError, which lists what the loss takes, on an unknown name or setting, on one that is missing, and
    for a value that the loss refuses.
    """
    loss: TokenLoss = _make("loss", LOSSES, name, fields)
    return loss


def make_mismatch(name: str, **fields: float) -> Mismatch:
    """The engine-mismatch correction of that name. Raises LossConfigError like `make_loss`."""
    mismatch: Mismatch = _make("mismatch correction", MISMATCHES, name, fields)
    return mismatch
