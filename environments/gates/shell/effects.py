"""Which paths the common file programs change: a table from a command's words to touches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from environments.gates.shell.state import HOLE, Call, ShellState, Touch, TouchKind

_Effect = Callable[[list[str]], Iterator[tuple[str, TouchKind]]]


def _operands(words: list[str], valued: frozenset[str] = frozenset()) -> list[str]:
    out: list[str] = []
    at = 1
    while at < len(words):
        word = words[at]
        if word == "--":
            return out + words[at + 1 :]
        if word.startswith("-") and len(word) > 1:
            at += 1 if word in valued else 0
        else:
            out.append(word)
        at += 1
    return out


def _all(kind: TouchKind, valued: frozenset[str] = frozenset()) -> _Effect:
    def effect(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
        for path in _operands(words, valued):
            yield path, kind

    return effect


def _into(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    """cp, mv, install, ln: the target, as itself and as a folder; mv also removes its sources."""
    paths = _operands(words, frozenset({"-t", "-m", "-o", "-g", "-S"}))
    if "-t" in words[:-1]:
        paths = [*paths, words[words.index("-t") + 1]]
    if words[0] == "ln" and len(paths) == 1:
        paths = [*paths, "."]
    if len(paths) < 2:
        return
    for source in paths[:-1]:
        name = source.rstrip("/").rsplit("/", 1)[-1]
        if not any(c in name for c in "*?["):  # what a glob will match there is not known
            yield paths[-1].rstrip("/") + "/" + name, "write"
        if words[0] == "mv":
            yield source, "remove"
        elif words[0] != "ln":
            yield source, "read"
    yield paths[-1], "write"


def harmless_mode(mode: str) -> bool:
    """Whether a chmod leaves a file readable and runnable by its owner: `+x`, `a+rx`, `755`."""
    if re.fullmatch(r"[0-7]{3}", mode):
        return mode[0] in "57"
    return bool(re.fullmatch(r"[ugoa]*\+[rxX]+(,[ugoa]*\+[rxX]+)*", mode))


def _chmod(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    operands = [w for w in words[1:] if not re.fullmatch(r"-R|--recursive|-[vcf]|--", w)]
    if operands and not harmless_mode(operands[0]):
        recursive = any(w in ("-R", "--recursive") for w in words)
        for path in operands[1:]:
            yield path, "remove" if recursive else "mode"


def _owner(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    for path in _operands(words)[1:]:
        yield path, "mode"


def _in_place(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    """sed -i, perl -i, awk -i inplace: every operand (the program text among them is no path that matters)."""
    flags = [w for w in words[1:] if w.startswith("-") and not w.startswith("--")]
    if any("i" in w for w in flags) or any(w.startswith("--in-place") for w in words):
        for path in _operands(words, frozenset({"-e", "-f"})):
            yield path, "write"
    if words[0] == "sed":
        for word in words[1:]:
            for path in re.findall(r"(?:^|[;/0-9$}\s])w\s+([^\s;}]+)", word):
                yield path, "write"


def _dd(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    for word in words[1:]:
        if word.startswith("of="):
            yield word[3:], "write"
        elif word.startswith("if="):
            yield word[3:], "read"


def _git(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    verb = next((w for w in words[1:] if not w.startswith("-")), "")
    if verb in ("rm", "mv"):
        at = words.index(verb)
        yield from _into(words[at:]) if verb == "mv" else _all("remove")(words[at:])


def _patch(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    for path in _operands(words, frozenset({"-i", "-o", "-d", "-p"}))[:1]:
        yield path, "write"


def _download(words: list[str]) -> Iterator[tuple[str, TouchKind]]:
    for flag in ("-O", "-o", "--output"):
        if flag in words[:-1]:
            yield words[words.index(flag) + 1], "write"


_READERS = (
    *("cat", "less", "more", "head", "tail", "xxd", "od", "strings", "nl", "tac", "base64", "cut", "sort", "grep"),
    *("egrep", "fgrep", "rg", "diff", "cmp", "wc", "tar", "zip", "gzip", "cpio", "jq"),
)
_EFFECTS: dict[str, _Effect] = {
    **dict.fromkeys(("rm", "unlink", "rmdir", "shred"), _all("remove")),
    **dict.fromkeys(("tee", "sponge", "touch", "ed", "ex", "vi", "vim", "nano", "emacs"), _all("write")),
    **dict.fromkeys(("cp", "mv", "install", "ln", "rsync"), _into),
    **dict.fromkeys(("sed", "perl", "ruby", "gawk"), _in_place),
    **dict.fromkeys(("chown", "chgrp", "chattr", "setfacl"), _owner),
    **dict.fromkeys(_READERS, _all("read")),
    **dict.fromkeys(("curl", "wget"), _download),
    "truncate": _all("write", frozenset({"-s", "-r"})),
    "chmod": _chmod,
    "dd": _dd,
    "git": _git,
    "patch": _patch,
}

_ON_LINKS = frozenset({"rm", "unlink", "mv", "ln"})


def touches(call: Call, state: ShellState) -> Iterator[Touch]:
    """The paths that a call changes or reads, absolute in `state`."""
    effect = _EFFECTS.get(call.words[0])
    if effect is None:
        return
    for path, kind in effect(list(call.words)):
        if path and path != HOLE:
            yield Touch(state.resolve(path, follow_last=call.words[0] not in _ON_LINKS), kind)
