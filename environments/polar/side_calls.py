"""The one-shot requests that harnesses make beside the work, known by their whole shape and not by a word in them.

What a task speaks of proves nothing ('Fix the page title', 'users are entitled to'): these are the openings of the
harnesses' own texts, at the start of a line of the system text or of the whole first user message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from environments.polar.messages import Message

_SYSTEM = re.compile(
    r"^(?:You are a title generator\. You output ONLY a thread title"  # opencode
    r"|Analyze if this message indicates a new conversation topic"  # Claude Code, as are the next two
    r"|Summarize this coding conversation in under 50 characters"
    r"|Generate a concise, sentence-case title)",
    re.MULTILINE,
)
_USER = re.compile(
    r"Generate a title for this conversation:"  # opencode
    r"|Please write a 5-10 word title for the following conversation:"  # Claude Code, as is the probe of its quota
    r"|quota\Z"
)
MOST_MESSAGES = 3


def is_side_request(messages: Sequence[Message]) -> bool:
    """Whether a request without tools is a harness's own question about the work: few messages and none answered."""
    if len(messages) > MOST_MESSAGES or any(m.role not in ("system", "user") for m in messages):
        return False
    first = next((m.text for m in messages if m.role == "user"), "")
    return bool(_USER.match(first.strip())) or any(_SYSTEM.search(m.text) for m in messages if m.role == "system")
