"""A request as every wire format gives it, and the interface that a wire format has to fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.polar.lineage import Hints
from environments.polar.messages import Message
from environments.types import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request for a completion. `items` are raw wire messages; `convert` reads one of them.

    `tools` are in the function form of chat completions. `max_tokens` and `stop` are what the harness asks for.
    `echo` holds what the wire needs again to answer (never what the session decides by).
    """

    wire: Wire
    items: Sequence[Any]
    convert: Callable[[Any], Sequence[Message]]
    tools: tuple[Mapping[str, Any], ...]
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    model: str
    hints: Hints = field(default_factory=Hints)
    echo: Mapping[str, Any] = field(default_factory=dict)
