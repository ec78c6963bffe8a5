"""The float32 head that engines and the trainer share: hidden states to log-probabilities, in nats."""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_logits(hidden: Tensor, weight: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """`logits[N, V]` in float32 = `hidden[N, H] @ weight[V, H].T / temperature`; `temperature` is a number or [N].

    The product is taken in float32 whatever the inputs' type: in bfloat16 the rounding alone moves a
    log-probability by more than a clipped ratio allows. Raises ValueError on a temperature that is not positive.
    """
    positive = bool((temperature > 0).all()) if isinstance(temperature, Tensor) else temperature > 0
    if not positive:
        raise ValueError(f"temperature is {temperature}; want a positive number (greedy is scored at temperature 1)")
    divisor = temperature[:, None] if isinstance(temperature, Tensor) else temperature
    return torch.nn.functional.linear(hidden.float(), weight.float()) / divisor


def token_logprobs(hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """`logprobs[N]` in nats: log softmax(logits / temperature) of `ids[N]`, where `hidden[n]` predicts `ids[n]`."""
    logprobs = torch.log_softmax(scaled_logits(hidden, weight, temperature), dim=-1)
    return logprobs.gather(-1, ids[:, None]).squeeze(-1)
