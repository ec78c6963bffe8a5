"""Exit codes, and the one place where errors become words for a person.

0 done · 1 the run failed · 2 bad input (a flag, a config, a file) · 3 refused (a promotion gate said no) ·
4 another process holds the run · 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_REFUSED, EXIT_LOCKED, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


class Refused(RuntimeError):
    """The gate of promotion said no: nothing was changed."""


def guarded(work: Callable[[], int]) -> int:
    """Run a command; turn the errors we know into one message on standard error and an exit code."""
    from environments.sandboxes.base import SandboxError
    from flows.engine import PrefectUnready
    from infra.engines.base import EngineError
    from infra.processes import ProcessError
    from infra.store import RunLocked, StoreError
    from infra.tracking import TrackingError
    from training.errors import TrainingError

    try:
        return work()
    except KeyboardInterrupt:
        return _say("interrupted; the same command continues where this one stopped", EXIT_INTERRUPTED)
    except RunLocked as error:
        return _say(error, EXIT_LOCKED)
    except Refused as error:
        return _say(error, EXIT_REFUSED)
    except (StoreError, EngineError, SandboxError, TrackingError, TrainingError, ProcessError, PrefectUnready) as error:
        return _say(error, EXIT_FAILED)
    except (ValueError, FileNotFoundError, KeyError) as error:
        return _say(error.args[0] if isinstance(error, KeyError) and error.args else error, EXIT_BAD_INPUT)


def _say(error: object, code: int) -> int:
    print(f"longbreath: {error}", file=sys.stderr)
    return code
