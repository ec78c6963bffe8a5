"""What a careful agent does about what it reads: one rule a symptom, each with a few short thoughts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CHECK = "./check"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where `pattern` is found, run `command`: '{name}' stands for the group of that name.

    With `then` the command is a look, and the rules in `then` read what it shows; '@name@' in their
    patterns stands for a group of the symptom.
    """

    pattern: str
    command: str
    thoughts: tuple[str, ...]
    then: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A rule that applies, and the command it gives here."""

    rule: Rule
    command: str
    found: Mapping[str, str]


_APP = r"(?P<app>[a-z]+)"
_DATA = (
    Rule(
        r"^seed\.bak$",
        "cp {app}/data/seed.bak {app}/data/seed",
        ("there is a backup , copy it", "backup is there , restore it", "seed damaged , take the backup"),
    ),
    Rule(
        r"^seed\.sum$",
        "sha256sum {app}/data/seed > {app}/data/seed.sum",
        ("no backup , sum it anew", "no backup there , write the sum", "sum is old , make it new"),
    ),
)
_LOST_INI = Rule(
    rf"^{_APP}/app\.ini(?P<suffix>\.\w+)$",
    "mv {app}/app.ini{suffix} {app}/app.ini",
    ("name is wrong , move it", "found it , move it back", "here it is , rename it"),
)

RULES: tuple[Rule, ...] = (
    Rule(
        rf"^ok \(cached\) {_APP}$",
        "rm -f {app}/cache/ok",
        ("only cached , clear it", "ok is cached , clear the cache", "do not trust the cache , clear it"),
    ),
    Rule(
        rf"^check: {_APP}/app\.ini: missing$",
        "ls -d {app}/app.ini*",
        ("file missing , look for it", "is it under another name ?", "look for the file"),
        (_LOST_INI,),
    ),
    Rule(
        r"^check: (?P<file>\S+): mode is (?P<wrong>\d+), want (?P<right>\d+)$",
        "chmod {right} {file}",
        ("mode differs , set it", "mode is wrong , set it", "set mode as wanted"),
    ),
    Rule(
        r"^check: (?P<file>\S+): (?P<key>[a-z]+) is (?P<wrong>\d+), want (?P<right>\d+)$",
        "sed -i s/{wrong}/{right}/ {file}",
        ("{key} differs , set it", "{key} is wrong , set it", "set {key} as wanted"),
    ),
    Rule(
        rf"^check: {_APP}/app\.ini: (?P<key>\w+) missing$",
        "grep {key} {app}/app.ini",
        ("key missing , look for it", "is it under another key ?", "look for the key"),
        (
            Rule(
                r"^(?P<other>\w*@key@\w*) = ",
                "sed -i s/{other}/{key}/ {app}/app.ini",
                ("key is renamed , name it back", "wrong key , rename it", "found the key , rename it"),
            ),
        ),
    ),
    Rule(
        rf"^check: {_APP}/app\.json: not valid JSON$",
        "cp {app}/app.json.bak {app}/app.json",
        ("json is broken , take the backup", "json damaged , copy the backup", "restore json from backup"),
    ),
    Rule(
        rf"^check: {_APP}: admin ports differ, want (?P<right>\d+)$",
        "grep admin {app}/app.ini {app}/app.json",
        ("admin differs , which file ?", "look which file is wrong", "which admin is wrong ? look"),
        (
            Rule(
                r"^(?P<file>\S+?):\W*admin\W+(?P<wrong>(?!@right@)\d+)",
                "sed -i s/{wrong}/{right}/ {file}",
                ("this one is wrong , set it", "found it , set admin", "admin is wrong here , set it"),
            ),
        ),
    ),
    Rule(
        r"^check: (?P<file>\S+): (?P<key>[A-Z]+) (missing|is \S*), want (?P<entry>\S+)$",
        "echo {entry} >> {file}",
        ("entry missing , add it", "{key} is missing , add it", "add the entry"),
    ),
    Rule(
        r"^check: (?P<file>\S+): no such directory$",
        "mkdir -p {file}",
        ("directory missing , make it", "no directory , make it", "make the directory"),
    ),
    Rule(
        r"^check: (?P<file>\S+keep\.lock): missing$",
        "touch {file}",
        ("lock missing , make it", "lock is needed , touch it", "make the lock"),
    ),
    Rule(
        rf"^check: {_APP}/current: (dangling link|not the newest release)$",
        "ls {app}/releases",
        ("link is wrong , look at releases", "which releases are there ?", "look for the newest release"),
        (
            Rule(
                r"^(?P<release>v\d)\s*\Z",
                "ln -sfn releases/{release} {app}/current",
                ("last one is newest , link it", "link the newest", "point it at the newest"),
            ),
        ),
    ),
    Rule(
        rf"^check: {_APP}/data/seed: (checksum differs|\d rows, want \d)$",
        "ls {app}/data",
        ("sum differs , is there a backup ?", "seed or sum wrong ? look", "look for a backup first"),
        _DATA,
    ),
    Rule(
        r"^check: (?P<file>\S+/start): not executable$",
        "chmod +x {file}",
        ("not executable , set it", "may not run , set it", "make it executable"),
    ),
    Rule(
        r"^check: (?P<file>\S+/start): exit 127$",
        "head -n 1 {file}",
        ("exit 127 , look at first line", "is the shell wrong ? look", "look at the first line"),
        (
            Rule(
                r"^#!/bin/(?P<shell>\w+)$",
                "sed -i 1s/{shell}/sh/ {file}",
                ("wrong shell , set it", "no such shell , use sh", "shell is wrong , set sh"),
            ),
        ),
    ),
    Rule(
        r"^check: (?P<file>\S+/start): exit 1$",
        "./{file}",
        ("start fails , run it", "why ? run start", "look what start says"),
        (
            Rule(
                r"^start: (?P<lock>\S+) is held$",
                "rm -f {lock}",
                ("stale lock , remove it", "lock is held , remove it", "old lock , remove it"),
            ),
            Rule(
                r"^start: (?P<steps>\S+): \w+ after \w+$",
                "sort -o {steps} {steps}",
                ("wrong order , sort it", "steps out of order , sort", "sort the steps"),
            ),
        ),
    ),
)


def choose(rules: tuple[Rule, ...], text: str, known: Mapping[str, str], done: Sequence[str] = ()) -> Choice | None:
    """The rule found in `text` whose command was not `done` yet or longest ago, None when no rule is found.

    So where two mends fit one symptom, the second is tried when the first has not helped.
    """
    last = {command: index for index, command in enumerate(done)}
    choices = [choice for rule in rules if (choice := _apply(rule, text.strip(), known))]
    return min(choices, key=lambda choice: last.get(choice.command, -1), default=None)


def _apply(rule: Rule, text: str, known: Mapping[str, str]) -> Choice | None:
    pattern = re.sub(r"@(\w+)@", lambda match: re.escape(known[match[1]]), rule.pattern)
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        return None
    found = {**known, **match.groupdict()}
    return Choice(rule, rule.command.format(**found), found)
