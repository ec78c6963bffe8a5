"""What was kept of rollouts for training, counted."""

from __future__ import annotations

import numpy as np
from report_sample import Coin, rollout, task

from training.evaluation.recorded import recorded_of


def test_chains_and_tokens_are_counted_by_the_cause_of_the_fork():
    rng = np.random.default_rng(0)
    whole = [rollout(rng, task(0, "train"), Coin(0, 0.1, 0.5), "g", index)[0] for index in range(4)]
    recorded = recorded_of(whole)
    assert [(c.cause, c.chains) for c in recorded.chains] == [("root", 4), ("compacted", 1)]
    assert recorded.forks == (("compacted", 1),)
    assert recorded.chains[1].tokens == len(whole[1].chains[1].segments[1].ids)
    assert sum(c.tokens for c in recorded.chains) + recorded.untrained_tokens == sum(
        t.usage.completion_tokens for t in whole
    )
    assert recorded.metrics() == {
        "recording/chains": 5.0,
        "recording/forks": 1.0,
        "recording/forks/compacted": 1.0,
        "recording/tokens_in_chains": float(sum(t.num_trainable for t in whole)),
        "recording/untrained_tokens": 5.0,
    }


def test_no_rollouts_are_no_chains():
    assert recorded_of([]).metrics() == {
        "recording/chains": 0.0,
        "recording/forks": 0.0,
        "recording/tokens_in_chains": 0.0,
        "recording/untrained_tokens": 0.0,
    }
