"""`longbreath warm-start`: make the tiny policy that fine-tuning starts from."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.cli.errors import guarded
from flows.cli.live import LiveProgress, console
from flows.cli.options import Common, Settings


def warm_start(
    out: Path,
    *,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    common: Common = Common(),  # noqa: B008 - frozen
) -> int:
    """Demonstrate noisily, imitate, and write the policy to OUT. Prints the digest to pin.

    Parameters
    ----------
    out: Path
        The model folder to write; it must not exist.
    """

    def work() -> int:
        from functools import partial

        from flows.home import Home, open_desk
        from flows.overrides import ConfigError
        from infra.digests import digest_folder
        from tasks.stage import perform
        from tasks.warm_start import WarmStartConfig, make_warm_start

        if out.exists():
            raise ConfigError(f"{out} exists; name a folder that does not, or remove it")
        config = settings.build()
        with LiveProgress(1) as progress, open_desk(Home(common.home), config, progress) as desk:
            made = make_warm_start(desk, partial(perform, desk), config.pool, WarmStartConfig())
            shutil.copytree(desk.store.path(made), out)
        digest = digest_folder(out)
        console().print(f"{out}: digest {digest}")
        common.emit({"folder": str(out), "digest": digest})
        return 0

    return guarded(work)
