"""Plausible wrong moves: another's mend, a wrong file, a wrong value, a look that is skipped."""

from __future__ import annotations

import random
import re

from environments.suites.service_repair.rules import Choice

_SKIPPED_LOOKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"app\.ini: missing", ("touch {app}/app.ini", "cp {app}/app.json.bak {app}/app.ini")),
    (r"app\.ini: (?P<key>\w+) missing", ("echo {key} >> {app}/app.ini",)),
    (r"admin ports differ, want (?P<right>\d+)", ("sed -i s/admin/{right}/ {app}/app.ini",)),
    (r"current: dangling link", ("ln -sfn releases/v1 {app}/current", "rm -f {app}/current")),
    (r"data/seed: checksum differs", ("sha256sum {app}/data/seed > {app}/data/seed.sum", "rm -f {app}/data/seed.sum")),
    (r"start: exit 1$", ("rm -f {app}/run/keep.lock", "sort -o {app}/steps {app}/steps", "chmod +x {app}/start")),
    (r"start: exit 127", ("chmod +x {app}/start", "sed -i 1s/bash/sh/ {app}/start")),
)
_OBVIOUS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"not valid JSON", ("touch {app}/app.json", "rm -f {app}/app.json")),
    (r"want (?P<entry>[A-Z]+=\d+)", ("echo {entry} > {app}/env",)),
    (r"secret: mode", ("chmod 644 {app}/secret", "chmod +x {app}/secret")),
    (r"start: not executable", ("chmod 777 {app}/start",)),
    (r"^ok \(cached\)", ("touch {app}/cache/ok",)),
)
_OTHER_MENDS = (
    "touch {app}/run/keep.lock",
    "chmod +x {app}/start",
    "mkdir -p {app}/log",
    "cp {app}/app.json.bak {app}/app.json",
    "sort -o {app}/steps {app}/steps",
    "rm -f {app}/cache/ok",
)
_NAMES = ("app.ini", "app.json", "env", "steps", "secret", "start")


def wrong_command(symptom: str, choice: Choice, rng: random.Random) -> str:
    """A command that one in a hurry might run instead of `choice.command`."""
    app = _app(symptom)
    tempting = _SKIPPED_LOOKS if choice.rule.then else _OBVIOUS
    for pattern, commands in tempting:
        found = re.search(pattern, symptom)
        if found and (choice.rule.then or rng.random() < 0.5):
            return rng.choice(commands).format(app=app, **found.groupdict())
    others = [command for mend in _OTHER_MENDS if (command := mend.format(app=app)) != choice.command]
    slips = (_wrong_value(choice.command, rng), _wrong_file(choice.command, rng))
    return rng.choice([rng.choice(others), *(slip for slip in slips if slip != choice.command)])


def _app(symptom: str) -> str:
    """The app that a check's line names."""
    words = symptom.removeprefix("check: ").removeprefix("ok (cached) ")
    return re.split(r"[/:]", words)[0]


def _wrong_value(command: str, rng: random.Random) -> str:
    """The last number of three digits or more with two digits swapped, or unchanged where there is none."""
    numbers = list(re.finditer(r"\d{3,}", command))
    if not numbers:
        return command
    span = numbers[-1]
    digits = list(span[0])
    at = rng.randrange(len(digits) - 1)
    digits[at], digits[at + 1] = digits[at + 1], digits[at]
    return command[: span.start()] + "".join(digits) + command[span.end() :]


def _wrong_file(command: str, rng: random.Random) -> str:
    """Another file of the same app as the last word, or unchanged where that is none of the usual files."""
    head, _, path = command.rpartition(" ")
    app, _, name = path.partition("/")
    if name not in _NAMES:
        return command
    return f"{head} {app}/{rng.choice([other for other in _NAMES if other != name])}"
