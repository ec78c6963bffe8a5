"""What can go wrong between a harness and the engine, each with the HTTP status that its SDK will see."""

from __future__ import annotations


class PolarError(Exception):
    """The root of the tree. `status` is the HTTP status, `code` what a harness may recognise it by."""

    status = 500
    code = "internal_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BadBody(PolarError):
    """A body that is not of its wire format. The message says what was got and what is wanted."""

    status = 400
    code = "invalid_request"


class TooLong(PolarError):
    """The prompt does not fit the engine's context. Harnesses that compact look for this code."""

    status = 400
    code = "context_length_exceeded"


class UnknownKey(PolarError):
    """No such rollout, or not its key. One answer for both, so that nothing can be probed."""

    status = 401
    code = "invalid_api_key"


class NotFound(PolarError):
    """No such endpoint."""

    status = 404
    code = "not_found"


class BudgetExhausted(PolarError):
    """The rollout has used what it may. 403: no SDK retries it."""

    status = 403
    code = "budget_exhausted"


class Overloaded(PolarError):
    """The waiting room is full: come back later. Ours: no rollout can fill it alone."""

    status = 429
    code = "overloaded"


class Crowded(PolarError):
    """The rollout's own calls are in the way: come back when some have ended. Its doing, never ours."""

    status = 429
    code = "too_many_calls_at_once"


class EngineFailed(PolarError):
    """The engine broke under this call. Ours, never the agent's."""

    status = 503
    code = "engine_error"


class LogFailed(PolarError):
    """The log could not be written (full disk?), so nothing was answered."""

    status = 503
    code = "log_error"


class LogDamaged(PolarError):
    """A log that is not what was written. The message says which file and where."""
