"""Faults in what an app is told: ini, JSON, environment."""

from __future__ import annotations

import dataclasses
import random

from environments.suites.service_repair.apps import App, json_text
from environments.suites.service_repair.faults.base import FaultKind, Planted, another, replace
from environments.suites.service_repair.tree import Entry, file


class MisnamedFile(FaultKind):
    """A file lies under another name; one look at the names tells which."""

    name = "misnamed_file"
    turns = 3
    stage = 0
    slots = frozenset({"name"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Rename app.ini, which the check wants first."""
        path = app.path("app.ini")
        other = path + rng.choice((".old", ".save", ".orig", ".tmp"))
        tree[other] = tree.pop(path)
        return self._planted(app, (f"check: {path}: missing", other), {"app.ini": "lines"})


class WrongPort(FaultKind):
    """The port is another; the check says which is wanted."""

    name = "wrong_port"
    turns = 2
    stage = 1
    slots = frozenset({"port"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Put another port into app.ini."""
        wrong = another(app.port, rng)
        replace(tree, _ini(tree, app), f"port = {app.port}", f"port = {wrong}")
        shown = f"check: {app.path('app.ini')}: port is {wrong}, want {app.port}"
        return self._planted(app, (shown,), {"app.ini": "any"})


class RenamedKey(FaultKind):
    """A setting stands under another key; its value is known only to the file."""

    name = "renamed_key"
    turns = 3
    stage = 2
    slots = frozenset({"setting"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Rename one setting of app.ini."""
        key, value = rng.choice(app.settings)
        other = rng.choice((f"old_{key}", f"my_{key}", f"{key}_x", f"{key}_old"))
        replace(tree, _ini(tree, app), f"{key} = {value}", f"{other} = {value}")
        shown = (f"check: {app.path('app.ini')}: {key} missing", f"{other} = {value}")
        return self._planted(app, shown, {"app.ini": "any"})


class CorruptJson(FaultKind):
    """app.json is damaged; the backup beside it is good."""

    name = "corrupt_json"
    turns = 2
    stage = 3
    slots = frozenset({"json"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Damage app.json."""
        _damage_json(tree, app, rng)
        return self._planted(app, (_invalid(app),), {"app.json": "any"})


class StaleBackup(FaultKind):
    """app.json is damaged and its backup is of an older day: the obvious mend breaks a second check."""

    name = "stale_backup"
    turns = 4
    stage = 3
    slots = frozenset({"json"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Damage app.json and put another limit into its backup."""
        _damage_json(tree, app, rng)
        wrong = another(app.limit, rng)
        tree[app.path("app.json.bak")] = file(json_text(dataclasses.replace(app, limit=wrong)))
        shown = f"check: {app.path('app.json')}: limit is {wrong}, want {app.limit}"
        return self._planted(app, (_invalid(app), "", shown), {"app.json": "any", "app.json.bak": "any"})


class SplitPort(FaultKind):
    """One of two files has another admin port; the check does not say which."""

    name = "split_port"
    turns = 3
    stage = 4
    slots = frozenset({"json"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Put another admin port into app.ini or app.json."""
        wrong = another(app.admin, rng)
        in_ini = rng.random() < 0.5
        path = _ini(tree, app) if in_ini else app.path("app.json")
        replace(tree, path, str(app.admin), str(wrong))
        ini, json = (wrong, app.admin) if in_ini else (app.admin, wrong)
        seen = f'{app.path("app.ini")}:admin = {ini}\n{app.path("app.json")}:  "admin": {json},'
        shown = (f"check: {app.name}: admin ports differ, want {app.admin}", seen)
        return self._planted(app, shown, {"app.ini" if in_ini else "app.json": "any"})


class MissingVariable(FaultKind):
    """The environment file lacks an entry; the check says which."""

    name = "missing_variable"
    turns = 2
    stage = 5
    slots = frozenset({"env"})

    def plant(self, tree: dict[str, Entry], app: App, rng: random.Random) -> Planted:
        """Take one entry out of env."""
        key, value = rng.choice(app.variables)
        path = app.path("env")
        replace(tree, path, f"{key}={value}\n", "")
        return self._planted(app, (f"check: {path}: {key} missing, want {key}={value}",), {"env": "any"})


def _ini(tree: dict[str, Entry], app: App) -> str:
    """Where app.ini's text lies now: another fault may have renamed it."""
    prefix = app.path("app.ini")
    return next(path for path in tree if path.startswith(prefix))


def _invalid(app: App) -> str:
    return f"check: {app.path('app.json')}: not valid JSON"


def _damage_json(tree: dict[str, Entry], app: App, rng: random.Random) -> None:
    old, new = rng.choice(((",", ""), ("}", ""), ("{", "{{"), ('"limit"', "limit"), ("limit", 'lim"it')))
    replace(tree, app.path("app.json"), old, new)
