"""What may stop a training step although its input was well formed. Bad input is a ValueError of its module instead."""

from __future__ import annotations


class TrainingError(RuntimeError):
    """A step that did not come to its end. The message says what was found and what to do."""


class StepLost(TrainingError):
    """The processes of a step ended without a result: killed, out of memory, or stopped by us because they hung.

    Nothing was published; the same step can be taken again.
    """


class StepFailed(TrainingError):
    """A process of a step raised an error that taking the step again would raise again."""
