"""A completion as it grows: tokens arrive, text, reasoning and tool calls leave, and nothing is taken back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from environments.polar.messages import ToolCall
from environments.polar.rendering import Answer

# Text that may turn out to be the start of a marker waits until it is known not to be.
MARKERS = ("<think>", "</think>", "<tool_call>", "<|im_end|>", "<|endoftext|>")
# Parsing anew costs time linear in the completion: wait until it has grown by 1/GROWTH, or until the last parse
# is PATIENCE times its own cost ago. Total work stays linear, and a slow engine's tokens leave one by one.
GROWTH = 32
PATIENCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What became visible: more reasoning, more text, or one whole tool call. `tokens` sampled so far."""

    kind: Literal["reasoning", "text", "call"]
    text: str = ""
    call: ToolCall | None = None
    tokens: int = 0


def held_back(text: str, stops: tuple[str, ...]) -> str:
    """`text` without an end that is a broken character or may be the start of a marker or stop string."""
    text = text.rstrip("\ufffd")
    for marker in (*MARKERS, *stops):
        for size in range(min(len(marker) - 1, len(text)), 0, -1):
            if text.endswith(marker[:size]):
                return text[:-size].rstrip()
    return text


def cut_at_stop(text: str, stops: tuple[str, ...]) -> str:
    """`text` up to the first stop string."""
    found = [at for at in (text.find(stop) for stop in stops) if at != -1]
    return text[: min(found)].rstrip() if found else text


@dataclass(slots=True)
class StreamView:
    """The monotone picture of one completion. `pieces` only grows; many consumers may read it.

    Text and reasoning leave as they grow, a tool call whole: until its end it may turn out malformed (cut, a key twice,
    a number that is none), and then stands in the text. Half a call that was sent could not be taken back.
    """

    parse: Callable[[], Answer]
    stops: tuple[str, ...]
    pieces: list[Piece] = field(default_factory=list)
    reasoning: str = ""
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    _parsed_at: int = 0
    _parsed_time: float = 0.0
    _cost_s: float = 0.0

    def grow(self, tokens: int) -> None:
        """Look at the completion of `tokens` tokens, if it is worth it now."""
        now = time.perf_counter()
        grown = (tokens - self._parsed_at) * GROWTH >= max(self._parsed_at, GROWTH)
        if not grown and now - self._parsed_time < PATIENCE * self._cost_s:
            return
        answer = self.parse()
        self._parsed_at, self._parsed_time = tokens, time.perf_counter()
        self._cost_s = self._parsed_time - now
        self._show(
            replace(
                answer,
                reasoning=held_back(answer.reasoning, self.stops),
                text=held_back(cut_at_stop(answer.text, self.stops), self.stops),
            ),
            tokens,
        )

    def finish(self, answer: Answer, tokens: int) -> Answer:
        """Show the rest; the answer as it was shown, which is `answer` unless the model took something back."""
        self._show(answer, tokens)
        return replace(answer, reasoning=self.reasoning, text=self.text, tool_calls=tuple(self.calls))

    def _show(self, answer: Answer, tokens: int) -> None:
        if not self.text and not self.calls:
            self._add("reasoning", self.reasoning, answer.reasoning, tokens)
        self._add("text", self.text, answer.text, tokens)
        for call in answer.tool_calls[len(self.calls) :]:
            self.calls.append(call)
            self.pieces.append(Piece(kind="call", call=call, tokens=tokens))

    def _add(self, kind: Literal["reasoning", "text"], shown: str, now: str, tokens: int) -> None:
        if len(now) <= len(shown) or not now.startswith(shown):
            return
        self.pieces.append(Piece(kind=kind, text=now[len(shown) :], tokens=tokens))
        if kind == "reasoning":
            self.reasoning = now
        else:
            self.text = now
