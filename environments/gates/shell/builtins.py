"""Builtins and file programs that change what the shell, or the reader of it, knows from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from environments.gates.shell.state import HOLE

if TYPE_CHECKING:
    from environments.gates.shell.reader import Reader

Handler = Callable[["Reader", list[str], str], str]
"""(reader, words, stdin) -> what it would print."""


def _cd(reader: Reader, words: list[str], stdin: str) -> str:
    target = next((w for w in words[1:] if not w.startswith("-") or w == "-"), "~")
    if target == "-" or words[0] == "popd":
        target = reader.state.variables.get("OLDPWD", reader.state.cwd)
    if HOLE not in target and not target.startswith("~"):
        reader.state.variables["OLDPWD"] = reader.state.cwd
        reader.state.cwd = reader.state.resolve(target)
    return ""


def _alias(reader: Reader, words: list[str], stdin: str) -> str:
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            reader.state.aliases[name] = value
    return ""


def _unalias(reader: Reader, words: list[str], stdin: str) -> str:
    for word in words[1:]:
        reader.state.aliases.pop(word, None)
    return ""


def _export(reader: Reader, words: list[str], stdin: str) -> str:
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            reader.assign(name, value)
    return ""


def _read(reader: Reader, words: list[str], stdin: str) -> str:
    names = [w for w in words[1:] if w.isidentifier()]
    values = stdin.split(maxsplit=max(len(names) - 1, 0)) if stdin else []
    for i, name in enumerate(names):
        reader.state.variables[name] = values[i] if i < len(values) else HOLE
    return ""


def _set(reader: Reader, words: list[str], stdin: str) -> str:
    if "--" in words:
        _positional(reader, words[words.index("--") + 1 :])
    return ""


def _positional(reader: Reader, values: list[str]) -> None:
    everything = " ".join(values)
    numbered = {str(i): value for i, value in enumerate(values, 1)}
    reader.state.variables.update(numbered | {"@": everything, "*": everything})


def _ln(reader: Reader, words: list[str], stdin: str) -> str:
    operands = [w for w in words[1:] if not w.startswith("-")]
    if len(operands) == 1:
        operands.append(operands[0].rsplit("/", 1)[-1])
    for source in operands[:-1]:
        _link(reader, source, operands[-1])
    return ""


def _link(reader: Reader, source: str, name: str) -> None:
    state = reader.state
    place = state.absolute(name)
    target = state.resolve(source)
    if place != target and not target.startswith(place + "/"):
        state.links[place] = target
        state.copies[place] = target


def _cp(reader: Reader, words: list[str], stdin: str) -> str:
    operands = [w for w in words[1:] if not w.startswith("-")]
    state = reader.state
    if len(operands) == 2:
        source, target = state.resolve(operands[0]), state.resolve(operands[1])
        state.copies[target] = state.copies.get(source, source)
        state.links.pop(state.absolute(operands[1]), None)
        if source in state.files:
            state.files[target] = state.files[source]
    return ""


def _tee(reader: Reader, words: list[str], stdin: str) -> str:
    for word in words[1:]:
        if not word.startswith("-"):
            reader.state.files[reader.state.resolve(word)] = stdin
    return stdin


def _rm(reader: Reader, words: list[str], stdin: str) -> str:
    for word in words[1:]:
        for table in (reader.state.links, reader.state.copies):
            table.pop(reader.state.absolute(word), None)
    return ""


BUILTINS: dict[str, Handler] = {
    **dict.fromkeys(("cd", "pushd", "popd"), _cd),
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), _export),
    **dict.fromkeys(("read", "mapfile", "readarray"), _read),
    **dict.fromkeys(("cp", "mv", "install"), _cp),
    **dict.fromkeys(("rm", "unlink"), _rm),
    "alias": _alias,
    "unalias": _unalias,
    "set": _set,
    "ln": _ln,
    "tee": _tee,
}
