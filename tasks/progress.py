"""What a run says while it works. The stages report; whoever watches decides how it looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Progress(Protocol):
    """Receives a run's news. All methods return at once."""

    def say(self, text: str) -> None:
        """One line for the log: a decision, a wait, a thing reused."""
        ...

    def begin(self, stage: str, *, iteration: int | None, total: int) -> None:
        """A stage starts; `total` units of work are ahead (0: not countable)."""
        ...

    def advance(self, units: int = 1) -> None:
        """So many units of the present stage are done."""
        ...

    def show(self, **figures: float) -> None:
        """Figures to keep in sight: pass_rate, zero_gradient_share, tokens_per_s, ..."""
        ...


@dataclass
class Silent:
    """Keeps what was said, shows nothing."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """See `Progress.say`."""
        self.lines.append(text)

    def begin(self, stage: str, *, iteration: int | None, total: int) -> None:
        """See `Progress.begin`."""

    def advance(self, units: int = 1) -> None:
        """See `Progress.advance`."""

    def show(self, **figures: float) -> None:
        """See `Progress.show`."""
