"""The names of `registry.LOSSES`, to check a configuration by without loading torch. A test keeps them equal."""

from __future__ import annotations

LOSS_NAMES = (
    "cispo", "cispo_two_sided", "dapo", "dispo", "dr_grpo", "grpo", "gspo", "m1_mask", "nll", "ppo_clip", "reinforce",
)  # fmt: skip
