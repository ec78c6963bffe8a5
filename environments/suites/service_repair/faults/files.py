"""Faults in an app's files: permissions, folders, links, locks, checksums, caches."""

from __future__ import annotations

import random

from environments.suites.service_repair.apps import App, data_text, sum_text
from environments.suites.service_repair.faults.base import FaultKind, Planted
from environments.suites.service_repair.tree import Entry, file, link


class OpenSecret(FaultKind):
    """Others may read the secret."""

    name = "open_secret"
    turns = 2
    stage = 6
    slots = frozenset({"secret"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Open the secret's permissions."""
        path = app.path("secret")
        mode = rng.choice((0o644, 0o640, 0o664, 0o666))
        tree[path] = Entry("file", mode, tree[path].data)
        return self._planted(app, (f"check: {path}: mode is {mode:o}, want 600",), {"secret": "mode"})


class MissingFolder(FaultKind):
    """The log folder is gone."""

    name = "missing_folder"
    turns = 2
    stage = 7
    slots = frozenset({"log"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Remove log."""
        path = app.path("log")
        del tree[path]
        return self._planted(app, (f"check: {path}: no such directory",), {"log": "any"})


class LostFolder(FaultKind):
    """The run folder is gone with what must lie in it: the second loss shows once the first is mended."""

    name = "lost_folder"
    turns = 4
    stage = 8
    slots = frozenset({"keep", "lock"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Remove run and all below it."""
        path, keep = app.path("run"), app.path("run/keep.lock")
        del tree[path], tree[keep]
        shown = (f"check: {path}: no such directory", "", f"check: {keep}: missing")
        return self._planted(app, shown, {"run": "any", "run/keep.lock": "any"})


class MissingLock(FaultKind):
    """A lock file that is needed was deleted."""

    name = "missing_lock"
    turns = 2
    stage = 9
    slots = frozenset({"keep"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Delete keep.lock."""
        path = app.path("run/keep.lock")
        del tree[path]
        return self._planted(app, (f"check: {path}: missing",), {"run/keep.lock": "any"})


class DanglingLink(FaultKind):
    """The link to the newest release points nowhere; one look tells which releases there are."""

    name = "dangling_link"
    turns = 3
    stage = 10
    slots = frozenset({"current"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Point `current` at a release that is not there."""
        path = app.path("current")
        gone = rng.choice([n for n in range(1, 10) if f"v{n}" not in app.releases])
        tree[path] = link(f"releases/v{gone}")
        shown = (f"check: {path}: dangling link", "\n".join(app.releases))
        return self._planted(app, shown, {"current": "any"})


class StaleSum(FaultKind):
    """The data is good, its checksum is of an older day. No backup lies beside it."""

    name = "stale_sum"
    turns = 3
    stage = 11
    slots = frozenset({"data"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Put the checksum of other data."""
        tree[app.path("data/seed.sum")] = file(sum_text(app, f"{rng.random()}\n"))
        return self._planted(app, (_differs(app), "seed\nseed.sum"), {"data/seed.sum": "any"})


class DamagedData(FaultKind):
    """The data has lost rows, its checksum is right: a new checksum is the obvious mend and a wrong one."""

    name = "damaged_data"
    turns = 3
    stage = 11
    slots = frozenset({"data"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Cut the data and leave a good copy beside it."""
        kept = app.rows[: rng.randrange(1, len(app.rows))]
        tree[app.path("data/seed")] = file("".join(f"{row}\n" for row in kept))
        tree[app.path("data/seed.bak")] = file(data_text(app))
        shown = (_differs(app), "seed\nseed.bak\nseed.sum")
        return self._planted(app, shown, {"data/seed": "any", "data/seed.sum": "any"})


class StaleCache(FaultKind):
    """A cache says that the app is good, so that the check passes falsely until it is cleared."""

    name = "stale_cache"
    turns = 2
    stage = -1
    slots = frozenset({"cache"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Leave the cache's mark."""
        tree[app.path("cache/ok")] = file("")
        return self._planted(app, (f"ok (cached) {app.name}",), {})


def _differs(app: App) -> str:
    return f"check: {app.path('data/seed')}: checksum differs"
