"""Exit codes, and the one place where errors become words for a person.

0 done · 1 the run failed · 2 bad input (a flag, a config, a file) · 3 refused (a promotion gate said no) ·
4 another process holds the run · 130 interrupted.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_REFUSED, EXIT_LOCKED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


class Refused(RuntimeError):
    """The gate of promotion said no: nothing was changed."""


class _NoTrace(logging.Filter):
    """Leaves out the trace of an error whose message already says what was got, what was wanted and the mend."""

    def __init__(self, families: tuple[type[Exception], ...]) -> None:
        super().__init__()
        self._families = families

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], self._families):
            record.exc_info = None
        return True


def guarded(work: Callable[[], int]) -> int:
    """Run a command; turn the errors we know into one message on standard error and an exit code."""
    from environments.sandboxes.base import SandboxError
    from flows.engine import PrefectUnready
    from infra.engines.base import EngineError
    from infra.processes import ProcessError
    from infra.store import RunLocked, StoreError
    from infra.tracking import TrackingError
    from training.errors import TrainingError

    failures = (StoreError, EngineError, SandboxError, TrackingError, TrainingError, ProcessError, PrefectUnready)
    with _quiet_traces((RunLocked, *failures)):
        try:
            return work()
        except KeyboardInterrupt:
            return _say("interrupted; the same command continues where this one stopped", EXIT_INTERRUPTED)
        except RunLocked as error:
            return _say(error, EXIT_LOCKED)
        except Refused as error:
            return _say(error, EXIT_REFUSED)
        except failures as error:
            return _say(error, EXIT_FAILED)
        except (ValueError, FileNotFoundError, KeyError) as error:
            return _say(error.args[0] if isinstance(error, KeyError) and error.args else error, EXIT_BAD_INPUT)


@contextmanager
def _quiet_traces(families: tuple[type[Exception], ...]) -> Iterator[None]:
    """Prefect logs whatever a flow or task raises, with its trace; on a worker it still does."""
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "prefect.task_runs")]
    quiet = _NoTrace(families)
    for logger in loggers:
        logger.addFilter(quiet)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(quiet)


def _say(error: object, code: int) -> int:
    print(f"longbreath: {error}", file=sys.stderr)
    return code
