"""`longbreath promote` and `longbreath rollback`: move the champion by hand, on record."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from flows.cli.errors import Refused, guarded
from flows.cli.live import console
from flows.cli.options import Common, Settings

if TYPE_CHECKING:
    from infra.registry import Registry


def _registry(settings: Settings, common: Common) -> Registry:
    from flows.home import Home
    from tasks.registry import open_registry

    config = settings.build()
    home = Home(common.home)
    return open_registry(config.tracking.uri or home.mlflow_uri, config.tracking, home.root)


def promote(
    version: int,
    *,
    force: bool = False,
    reason: str = "promoted by hand",
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Make VERSION the champion; the champion becomes the previous one. Refused when its benchmark refused it.

    Parameters
    ----------
    version: int
        A version of the registered model.
    force: bool
        Promote against the verdict of the benchmark; the ledger says so.
    reason: str
        What the ledger shall say.
    """

    def work() -> int:
        registry = _registry(settings, common)
        verdict = registry.tags(version).get("longbreath.verdict", "unknown")
        if verdict != "promote" and not force:
            raise Refused(
                f"version {version} of {registry.model} has the verdict {verdict!r} (its run's report says why); give "
                f"--force and a --reason to promote it against that"
            )
        said = f"forced: {reason}" if verdict != "promote" else reason
        moved = registry.promote(version, reason=said, at_s=time.time())
        console().print(f"{registry.model}: champion is version {moved.champion}, previous {moved.previous or 'none'}")
        common.emit({"model": registry.model, "champion": moved.champion, "previous": moved.previous})
        return 0

    return guarded(work)


def rollback(
    *,
    reason: str = "rolled back by hand",
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Make the previous champion the champion again.

    Parameters
    ----------
    reason: str
        What the ledger shall say.
    """

    def work() -> int:
        registry = _registry(settings, common)
        moved = registry.rollback(reason=reason, at_s=time.time())
        console().print(
            f"{registry.model}: champion is version {moved.champion} again, previous {moved.previous or 'none'}"
        )
        common.emit({"model": registry.model, "champion": moved.champion, "previous": moved.previous})
        return 0

    return guarded(work)
