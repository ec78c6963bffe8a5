"""All kinds of faults, by name."""

from __future__ import annotations

from collections.abc import Mapping

from environments.suites.service_repair.faults import config, files, start
from environments.suites.service_repair.faults.base import FaultKind

KINDS: Mapping[str, FaultKind] = {
    kind.name: kind
    for kind in (
        config.MisnamedFile(),
        config.WrongPort(),
        config.RenamedKey(),
        config.CorruptJson(),
        config.StaleBackup(),
        config.SplitPort(),
        config.MissingVariable(),
        files.OpenSecret(),
        files.MissingFolder(),
        files.LostFolder(),
        files.MissingLock(),
        files.DanglingLink(),
        files.StaleSum(),
        files.DamagedData(),
        files.StaleCache(),
        start.NotExecutable(),
        start.BadInterpreter(),
        start.StaleLock(),
        start.WrongOrder(),
    )
}
