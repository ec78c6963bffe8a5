"""Faults that show when the app is started."""

from __future__ import annotations

import random

from environments.suites.service_repair.apps import STEPS, App, steps_text
from environments.suites.service_repair.faults.base import FaultKind, Planted, replace
from environments.suites.service_repair.tree import Entry, file


class NotExecutable(FaultKind):
    """The start script may not be run."""

    name = "not_executable"
    turns = 2
    stage = 12
    slots = frozenset({"start_mode"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Take the permission to execute."""
        path = app.path("start")
        tree[path] = Entry("file", 0o644, tree[path].data)
        return self._planted(app, (f"check: {path}: not executable",), {"start": "mode"})


class BadInterpreter(FaultKind):
    """The start script's first line names a shell that is not there: exit 127."""

    name = "bad_interpreter"
    turns = 3
    stage = 13
    slots = frozenset({"interpreter"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Misspell the shell."""
        path = app.path("start")
        wrong = rng.choice(("shh", "shx", "bsh", "hsh"))
        replace(tree, path, "#!/bin/sh\n", f"#!/bin/{wrong}\n")
        return self._planted(app, (f"check: {path}: exit 127", f"#!/bin/{wrong}"), {"start": "first_line"})


class StaleLock(FaultKind):
    """A lock of a dead process holds up the start; a lock that is needed lies beside it."""

    name = "stale_lock"
    turns = 3
    stage = 14
    slots = frozenset({"lock"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Leave a lock in run."""
        path = app.path(f"run/{rng.randrange(100, 1000)}.lock")
        tree[path] = file("")
        return self._planted(app, (_exit_1(app), f"start: {path} is held"), {})


class WrongOrder(FaultKind):
    """Two steps of the start stand in the wrong order."""

    name = "wrong_order"
    turns = 3
    stage = 15
    slots = frozenset({"steps"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Swap two neighbours in steps."""
        first = rng.randrange(len(STEPS) - 1)
        order = list(STEPS)
        order[first : first + 2] = reversed(order[first : first + 2])
        tree[app.path("steps")] = file(steps_text(order))
        shown = f"start: {app.path('steps')}: {STEPS[first]} after {STEPS[first + 1]}"
        return self._planted(app, (_exit_1(app), shown), {"steps": "lines"})


def _exit_1(app: App) -> str:
    return f"check: {app.path('start')}: exit 1"
