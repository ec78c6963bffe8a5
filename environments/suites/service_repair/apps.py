"""One app of a service tree when all is well: its files, and the lines of `spec` that the check reads."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from environments.suites.service_repair.tree import Entry, file, folder, link

APP_NAMES = ("web", "db", "auth", "mail", "api", "queue", "feed", "cron", "index", "proxy", "bill", "chat")
SETTINGS = ("workers", "retries", "timeout", "depth", "batch", "window", "burst", "quota")
VARIABLES = ("TOKEN", "ZONE", "SHARD", "POOL", "RATE", "STAGE", "OWNER", "EPOCH")
STEPS = ("init", "load", "bind", "serve")
ROWS = ("red", "green", "blue", "black", "white", "grey", "pink", "brown")


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """What one app's files say when it is well. Numbers are drawn from ranges that do not overlap."""

    name: str
    port: int
    admin: int
    limit: int
    settings: tuple[tuple[str, int], ...]
    variables: tuple[tuple[str, int], ...]
    releases: tuple[str, str]
    rows: tuple[str, ...]

    def path(self, relative: str) -> str:
        """A path of this app, seen from the top of the tree."""
        return f"{self.name}/{relative}"


def draw_app(name: str, rng: random.Random) -> App:
    """An app with this name and numbers of its own."""
    old, new = sorted(rng.sample(range(1, 10), 2))
    return App(
        name=name,
        port=rng.randrange(8000, 9000),
        admin=rng.randrange(9000, 10000),
        limit=rng.randrange(1000, 5000),
        settings=tuple((key, rng.randrange(10, 100)) for key in rng.sample(SETTINGS, 2)),
        variables=tuple((key, rng.randrange(5000, 8000)) for key in rng.sample(VARIABLES, 2)),
        releases=(f"v{old}", f"v{new}"),
        rows=tuple(f"{n} {rng.choice(ROWS)}" for n in range(1, rng.randrange(5, 10))),
    )


def ini_text(app: App) -> str:
    """app.ini."""
    settings = (("port", app.port), ("admin", app.admin), *app.settings)
    return "".join(f"{key} = {value}\n" for key, value in settings)


def json_text(app: App) -> str:
    """app.json: a flat object of numbers."""
    return f'{{\n  "admin": {app.admin},\n  "limit": {app.limit}\n}}\n'


def env_text(app: App) -> str:
    """env."""
    return "".join(f"{key}={value}\n" for key, value in app.variables)


def data_text(app: App) -> str:
    """data/seed."""
    return "".join(f"{row}\n" for row in app.rows)


def sum_text(app: App, data: str) -> str:
    """What `sha256sum NAME/data/seed` prints for this data."""
    return f"{hashlib.sha256(data.encode()).hexdigest()}  {app.path('data/seed')}\n"


def steps_text(steps: Sequence[str]) -> str:
    """steps: each step with its number in the right order of all."""
    return "".join(f"{10 * (STEPS.index(step) + 1)} {step}\n" for step in steps)


def start_text() -> str:
    """The start script, the same for every app."""
    return _shipped("start.sh")


def healthy(app: App) -> dict[str, Entry]:
    """The app's tree when all is well."""
    old, new = app.releases
    return {
        app.name: folder(),
        **{app.path(d): folder() for d in ("cache", "data", "log", "releases", "run")},
        **{app.path(f"releases/{v}"): folder() for v in (old, new)},
        app.path("app.ini"): file(ini_text(app)),
        app.path("app.json"): file(json_text(app)),
        app.path("app.json.bak"): file(json_text(app)),
        app.path("env"): file(env_text(app)),
        app.path("secret"): file(f"{app.name} secret\n", 0o600),
        app.path("run/keep.lock"): file(""),
        app.path("current"): link(f"releases/{new}"),
        app.path("data/seed"): file(data_text(app)),
        app.path("data/seed.sum"): file(sum_text(app, data_text(app))),
        app.path("steps"): file(steps_text(STEPS)),
        app.path("start"): file(start_text(), 0o755),
    }


def spec_lines(app: App) -> tuple[str, ...]:
    """What the check wants of this app, in the order in which it looks."""
    digest = hashlib.sha256(data_text(app).encode()).hexdigest()
    wanted = (
        f"ini port {app.port}",
        *(f"ini {key} {value}" for key, value in app.settings),
        f"json limit {app.limit}",
        f"both admin {app.admin}",
        *(f"env {key} {value}" for key, value in app.variables),
        "mode secret 600",
        "dir log",
        "dir run",
        "file run/keep.lock",
        f"link current releases/{app.releases[1]}",
        f"data seed {len(app.rows)}:{digest}",
        f"lines steps {len(STEPS)}",
        "start start 755",
    )
    return tuple(f"{app.name} {line}" for line in wanted)


def checker_files(apps: Sequence[App]) -> dict[str, Entry]:
    """The files that judge, which grading lays over whatever the agent made of them."""
    lines = [line for app in apps for line in spec_lines(app)]
    return {"check": file(_shipped("check.sh"), 0o755), "spec": file("".join(f"{line}\n" for line in lines))}


def _shipped(name: str) -> str:
    return files("environments.suites.service_repair").joinpath(name).read_text()
