"""What a wire format must know how to do. One object of each serves all sessions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from environments.polar.calls import LiveCall
from environments.polar.errors import PolarError
from environments.polar.rendering import Answer
from environments.polar.request import ModelRequest
from environments.polar.stream_view import Piece
from environments.types import Wire


class Stream(Protocol):
    """Writes one answer as server-sent events. Each method gives the events for that moment, encoded."""

    def begin(self) -> bytes:
        """Sent as soon as the call is admitted."""
        ...

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """Sent as text, reasoning and tool calls become visible."""
        ...

    def end(self, answer: Answer) -> bytes:
        """Sent when the call is on record: finish reason, usage, terminator."""
        ...

    def failed(self, error: PolarError) -> bytes:
        """Sent instead of `end` when the call broke after the response had begun."""
        ...


class WireFormat(Protocol):
    """Reads requests and writes answers of one API."""

    name: Wire

    def parse(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> ModelRequest:
        """Read a body. Raises BadBody with what was got and what is wanted."""
        ...

    def answer(self, request: ModelRequest, call: LiveCall, answer: Answer) -> Mapping[str, Any]:
        """The whole answer as one JSON object."""
        ...

    def stream(self, request: ModelRequest, call: LiveCall) -> Stream:
        """A writer of the answer as events."""
        ...

    def error(self, error: PolarError) -> Mapping[str, Any]:
        """An error in the shape that this API's SDKs read."""
        ...
