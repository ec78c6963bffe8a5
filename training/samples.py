"""Training samples: chains with masks, behaviour log-probabilities and advantages. Persisted unpacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SCHEMA_VERSION = 1


class SampleError(ValueError):
    """A sample whose arrays contradict each other. The message says which and how long each is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One chain of one rollout, ready for a loss. All arrays have the chain's length L.

    `loss_mask[t]` is 1 where token t was sampled by the policy. `behaviour_logprobs[t]` (nats, at the sampling
    temperature) is of token t given tokens < t, and 0 where the mask is 0. `advantages[t]` likewise. `weight` is the chain's share of its
    rollout's total weight of 1. `policy_versions[t]` is -1 where the mask is 0.
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
